"""Uploads that are heard while they are stored: who expects a small object has it when it is whole, without reading it.

A chunk is an ordinary message: who subscribes to its subject gets it as the stream does, at once, but only once and
without a promise. What was heard counts by its hash alone; what was missed is read from the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from hadare.model.jobs import ObjectRef
from hadare.runtime.nats_link import Link
from hadare.runtime.parts import PART_SUFFIX

log = structlog.get_logger("hadare.nats")

MOST_HEARD_BYTES = 24 * 2**20
"""Of all uploads that are expected at a time. They come unasked, and a client for which 64 MiB (a server's
``max_pending``) wait is cut off as too slow."""

_PATIENCE_S = 1.0


class Heard:
    """Who expects which of a bucket's uploads."""

    def __init__(self, link: Link, chunk_subject: str) -> None:
        """``chunk_subject``: what the subject of each chunk begins with, with its last dot."""
        self._link = link
        self._prefix = chunk_subject
        self._expected: list[Expectation] = []

    async def expect(self, label: str, folder: Path, most_bytes: int) -> Expectation:
        """Hears uploads of this label, and of longer ones that begin with it and a dot, unless that is too much."""
        expectation = Expectation(self, self._prefix + label, folder, most_bytes)
        if most_bytes + sum(one.most_bytes for one in self._expected) <= MOST_HEARD_BYTES:
            self._expected.append(expectation)
            try:
                await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
                await expectation.begin(self._link)
            except BaseException:
                await self.forget(expectation)
                raise
        return expectation

    async def take(self, ref: ObjectRef, path: Path) -> bool:
        """Moves the object to ``path`` if it was heard whole."""
        label = self._prefix + ref.name.rpartition(".")[0]
        for expectation in tuple(self._expected):
            if f"{label}.".startswith(f"{expectation.label}.") and await expectation.take(label, ref, path):
                return True
        return False

    async def forget(self, expectation: Expectation) -> None:
        if expectation in self._expected:
            self._expected.remove(expectation)
            await expectation.end(self._link)


class Expectation:
    """One who waits for uploads whose subjects begin with ``label``; keeps at most ``most_bytes``, the newest."""

    def __init__(self, heard: Heard, label: str, folder: Path, most_bytes: int) -> None:
        self.label = label
        self.most_bytes = most_bytes
        self._heard = heard
        self._folder = folder
        self._uploads: dict[str, _Upload] = {}
        self._at_work = asyncio.Lock()
        self._arrived: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._subscription: NatsSubscription | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """Hears no more, and forgets what was not taken."""
        await self._heard.forget(self)

    async def begin(self, link: Link) -> None:
        self._subscription = await link.subscribe(f"{self.label}.>", self._hear)
        self._keeper = asyncio.create_task(self._keep())
        await link.flush()  # else what is stored next by somebody else may be missed

    async def end(self, link: Link) -> None:
        if self._subscription is not None:
            await link.unsubscribe(self._subscription)
        if self._keeper is not None:
            self._arrived.put_nowait(None)
            await self._keeper
        await asyncio.to_thread(self._drop_all)

    async def take(self, label: str, ref: ObjectRef, path: Path) -> bool:
        """Whoever tells of an object does so after it was sent: what of it was heard has arrived by now."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._arrived.join()
        async with self._at_work:
            for subject, upload in self._uploads.items():
                if subject.rpartition(".")[0] == label and upload.is_the(ref):
                    del self._uploads[subject]
                    return await asyncio.to_thread(upload.move, path)
        return False

    async def _hear(self, message: Msg) -> None:
        self._arrived.put_nowait(message)

    async def _keep(self) -> None:
        while (message := await self._arrived.get()) is not None:
            try:
                async with self._at_work:
                    await asyncio.to_thread(self._add, message.subject, message.data)
            except OSError as error:
                log.info("an upload was heard but not kept", subject=message.subject, error=str(error))
            finally:
                self._arrived.task_done()

    def _add(self, subject: str, chunk: bytes) -> None:
        upload = self._uploads.get(subject)
        if upload is None:
            upload = self._uploads[subject] = _Upload(self._folder)
        try:
            upload.add(chunk)
        except OSError:
            self._uploads.pop(subject).drop()
            raise
        while sum(one.size for one in self._uploads.values()) > self.most_bytes:
            self._uploads.pop(next(iter(self._uploads))).drop()

    def _drop_all(self) -> None:
        while self._uploads:
            self._uploads.popitem()[1].drop()


class _Upload:
    """A file that grows by what is heard. All methods block."""

    def __init__(self, folder: Path) -> None:
        handle, name = tempfile.mkstemp(prefix=".heard.", suffix=PART_SUFFIX, dir=folder)
        self._file = os.fdopen(handle, "wb")
        self._path = Path(name)
        self._digest = hashlib.sha256()
        self.size = 0

    def add(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self._digest.update(chunk)
        self.size += len(chunk)

    def is_the(self, ref: ObjectRef) -> bool:
        return self.size == ref.bytes and self._digest.hexdigest() == ref.sha256

    def move(self, path: Path) -> bool:
        """False if it cannot be moved there; it is gone then."""
        try:
            self._file.close()
            self._path.replace(path)
        except OSError as error:
            log.info("an upload was heard but not kept", path=str(path), error=str(error))
            self._path.unlink(missing_ok=True)
            return False
        return True

    def drop(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: what could not be written is not wanted any more
            self._file.close()
        self._path.unlink(missing_ok=True)
