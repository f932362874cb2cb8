"""Weights on this node: versions that were fetched, results on their way out. A bounded cache, by content hash."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from pathlib import Path
from typing import Protocol

import structlog

from hadare.model.errors import HadareError, Rejected
from hadare.model.jobs import ObjectRef
from hadare.runtime import telemetry
from hadare.runtime.backoff import retrying
from hadare.runtime.bus import Objects
from hadare.runtime.parts import remove_old_parts
from hadare.training import patches

log = structlog.get_logger("hadare.node_agent")

_BLOCK = 2**20
# A fetch that was cut off is gone on with for so long.
_PART_AGE_S = 86_400.0
# A result below this is sent whole: to compare it takes as long as to send it.
_WORTH_BYTES = 2**16
# A version that is made this long is not heard any more when it is stored.
_EXPECT_S = 60.0
# By so much a version may be larger than its base: its header differs.
_HEADER_BYTES = 2**16


class Weights(Protocol):
    """Where a fork's base comes from and where its result goes."""

    async def fetch(self, lease: str, ref: ObjectRef, *, sent: bool = False) -> Path:
        """The object as a local file, kept until ``release``. Raises ``Rejected`` (404), ``Unavailable``.

        ``sent``: it is a user's, not a version.
        """
        ...

    async def fetch_ahead(self, ref: ObjectRef, base: str = "", changes: ObjectRef | None = None) -> None:
        """Fetches a version that nobody has asked for yet, once; only its changes, if it holds their base.

        Raises ``Rejected`` (404), ``Unavailable``."""
        ...

    async def expect(self, label: str, size: int) -> None:
        """A version of this label is about to be stored: hears it, if it is small, until it has been fetched.

        Raises ``Unavailable``, ``OSError``."""
        ...

    async def upload(self, path: Path, label: str, base: str = "") -> ObjectRef:
        """Takes the file over. ``base``: a file, by its hash, that the receiver has as well; if it is here, and much of
        it is in the new file, a patch of it is sent (``training.patches``). Raises ``Unavailable``."""
        ...

    def release(self, lease: str) -> None: ...


class WeightsCache:
    """Files named by their hash in one directory, the least recently used removed first.

    A result that was uploaded stays as well: with one fork, it is the next version.
    """

    def __init__(
        self, objects: Objects, directory: Path, limit_bytes: int, patience_s: float, sent: Objects | None = None
    ) -> None:
        """``sent``: where users' own weights are."""
        self._objects = objects
        self._sent = sent or objects
        self._directory = directory
        self._limit = limit_bytes
        self._patience_s = patience_s
        self._verified: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        self._pins: dict[str, str] = {}
        self._expected: dict[str, asyncio.Event] = {}
        directory.mkdir(parents=True, exist_ok=True)
        remove_old_parts(directory, _PART_AGE_S)

    async def fetch(self, lease: str, ref: ObjectRef, *, sent: bool = False) -> Path:
        self._pins[lease] = ref.sha256
        return await self._bring(ref, self._sent if sent else self._objects, self._patience_s)

    async def fetch_ahead(self, ref: ObjectRef, base: str = "", changes: ObjectRef | None = None) -> None:
        if changes is not None and base in self._verified:
            await self._patch(ref, base, changes)
        await self._bring(ref, self._objects, 0.0)

    async def expect(self, label: str, size: int) -> None:
        if label in self._expected:
            return
        fetched = self._expected[label] = asyncio.Event()
        try:
            hearing = await self._objects.expect(label, self._directory, size + _HEADER_BYTES)
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_EXPECT_S):
                        await fetched.wait()
            finally:
                await hearing.stop()
        finally:
            del self._expected[label]

    async def upload(self, path: Path, label: str, base: str = "") -> ObjectRef:
        patch = path.with_name(f"{path.name}.patch")
        try:
            whole = await self._made_patch(path, base, patch)
            sent = patch if whole else path
            ref = await retrying(
                lambda: self._objects.put(sent, label), what=f"upload {label}", patience_s=self._patience_s
            )
        finally:
            patch.unlink(missing_ok=True)
        telemetry.count("hadare.weights.sent", ref.bytes)
        self._adopt(path, whole or ref.sha256)
        self._make_room()
        return ref

    def release(self, lease: str) -> None:
        self._pins.pop(lease, None)

    async def _made_patch(self, path: Path, base: str, patch: Path) -> str:
        """The hash of the whole file if ``patch`` was written, else ''."""
        if base not in self._verified or _size(path) < _WORTH_BYTES:
            return ""
        try:
            return await asyncio.to_thread(patches.make, path, self._path(base), patch, base_sha256=base)
        except OSError as error:
            log.info("a result is sent whole", base=base, reason=str(error))
            return ""

    async def _patch(self, ref: ObjectRef, base: str, changes: ObjectRef) -> None:
        """Makes the file of its base. If that fails it is not there, and is fetched whole."""
        path, patch = self._path(ref.sha256), self._directory / f".{ref.sha256}.patch"
        async with self._locks.setdefault(ref.sha256, asyncio.Lock()):
            if await self._holds(path, ref):
                return
            try:
                await self._objects.get(changes, patch)
                telemetry.count("hadare.weights.fetched", changes.bytes)
                known = {"base_sha256": base, "whole_sha256": ref.sha256}
                await asyncio.to_thread(patches.apply, patch, self._path(base), path, most_bytes=ref.bytes, **known)
                self._verified.add(ref.sha256)
            except (HadareError, OSError) as error:
                log.info("a version is fetched whole", sha256=ref.sha256, reason=str(error))
            finally:
                patch.unlink(missing_ok=True)

    async def _bring(self, ref: ObjectRef, source: Objects, patience_s: float) -> Path:
        path = self._path(ref.sha256)
        async with self._locks.setdefault(ref.sha256, asyncio.Lock()):
            if not await self._holds(path, ref):
                await retrying(lambda: source.get(ref, path), what=f"fetch {ref.name}", patience_s=patience_s)
                telemetry.count("hadare.weights.fetched", ref.bytes)
                self._verified.add(ref.sha256)
        if expected := self._expected.get(ref.name.rpartition(".")[0]):
            expected.set()
        path.touch()
        self._make_room()
        return path

    def _path(self, sha256: str) -> Path:
        return self._directory / f"{sha256}.safetensors"

    async def _holds(self, path: Path, ref: ObjectRef) -> bool:
        """A file of an earlier incarnation is believed only after it was hashed."""
        if not _has_size(path, ref.bytes):
            return False
        if ref.sha256 not in self._verified and await asyncio.to_thread(_digest, path) != ref.sha256:
            log.warning("a cached version is damaged", sha256=ref.sha256)
            return False
        self._verified.add(ref.sha256)
        return True

    def _adopt(self, path: Path, sha256: str) -> None:
        path.replace(self._path(sha256))
        self._verified.add(sha256)

    def _make_room(self) -> None:
        pinned = {self._path(sha256) for sha256 in self._pins.values()}
        files = sorted(self._directory.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        surplus = sum(path.stat().st_size for path in files) - self._limit
        for path in files:
            if surplus <= 0:
                break
            if path not in pinned:
                surplus -= path.stat().st_size
                path.unlink()
                self._verified.discard(path.stem)
                self._locks.pop(path.stem, None)


def _size(path: Path) -> int:
    return path.stat().st_size


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


def failure_text(error: Exception) -> str:
    """What went wrong with a transfer, in a result's words."""
    return error.message if isinstance(error, Rejected) else str(error)
