"""Immutable objects in a JetStream Object Store that stock tools can read, moved faster than stock tools do.

Chunks are published several at a time and read through a pull consumer. The description of an object is written last,
so nobody sees half of one; what a writer that died left behind is collected later.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import structlog

from hadare.model.errors import Rejected, Unavailable
from hadare.model.jobs import ObjectRef
from hadare.runtime.backoff import retrying
from hadare.runtime.nats_errors import ApiError, checked
from hadare.runtime.nats_heard import Expectation, Heard
from hadare.runtime.nats_link import Link
from hadare.runtime.nats_reader import Reader, latest_of
from hadare.runtime.nats_stored import Stored, last_of, subjects_of, unix_seconds
from hadare.runtime.nats_streams import Names
from hadare.runtime.pace import Pace
from hadare.runtime.parts import Part

log = structlog.get_logger("hadare.nats")

CHUNK_BYTES = 2 * 2**20
"""At most: each chunk is a message that the server syncs to disk, so few are cheaper than many. A server that takes
only smaller messages gets smaller chunks."""

IN_FLIGHT = 4
AT_ONCE_BYTES = IN_FLIGHT * CHUNK_BYTES
"""What is no larger is sent in one flight, and can be heard."""

STALL_S = 30.0
"""A transfer that makes no progress for this long has failed."""

_PUT_PATIENCE_S = 90.0
_MAX_NAME = 256
# Of the largest message, what is left for its subject and headers.
_MESSAGE_MARGIN = 32 * 1024
# Uploads that were cut off and may be gone on with; what is forgotten beyond that is garbage, and collected.
_MOST_BEGUN = 64
# Labels that can be a part of a subject.
_TOKENS = re.compile(r"^[\w=/-]+(\.[\w=/-]+)*\Z", re.ASCII)


class Disordered(Unavailable):
    """What has landed of an upload is not its beginning: it has to be done anew."""


@dataclass(slots=True)
class Upload:
    """How far an upload has come: ``sent`` chunks have landed in order, the newest at ``last`` of the stream.

    ``connection``: the one on which it began.
    """

    nuid: str
    chunk_bytes: int
    connection: int
    sent: int = 0
    last: int = 0

    def heard(self, sequence: int) -> None:
        """The next chunk has landed. Raises ``Disordered``."""
        if sequence <= self.last:
            raise Disordered("chunks arrived out of order")
        self.sent, self.last = self.sent + 1, sequence


class NatsObjects:
    """The ``Objects`` of a bucket."""

    def __init__(self, link: Link, bucket: str, pace: Pace | None = None) -> None:
        self._link = link
        self._pace = pace or Pace()
        names = Names(link.prefix)
        self._bucket = names.objects(bucket)
        self._stream = names.objects_stream(bucket)
        self._begun: dict[str, Upload] = {}
        self._heard = Heard(link, self._chunk_subject(""))

    async def put(self, path: Path, label: str) -> ObjectRef:
        if await asyncio.to_thread(os.path.getsize, path) > AT_ONCE_BYTES:
            return await self._put_large(path, label)
        what = f"put {label}"
        return await retrying(lambda: self._put_at_once(path, label), what=what, patience_s=_PUT_PATIENCE_S)

    async def get(self, ref: ObjectRef, path: Path) -> None:
        if not await self._heard.take(ref, path):
            await self._read(ref, path)

    async def expect(self, label: str, folder: Path, most_bytes: int) -> Expectation:
        return await self._heard.expect(label, folder, most_bytes)

    async def _read(self, ref: ObjectRef, path: Path) -> None:
        meta = await self._described(ref.name)
        if meta is None:
            raise Rejected(404, f"there is no object '{ref.name}'")
        if int(meta.get("size", -1)) != ref.bytes:
            raise Rejected(404, f"object '{ref.name}' has {meta.get('size')} bytes, not {ref.bytes}")
        part = await asyncio.to_thread(Part, ref, path)
        with part:
            rest = await self._download(meta, part)
            await asyncio.to_thread(part.finish, rest)

    async def delete(self, name: str) -> None:
        meta = await self._described(name)
        if meta is None:
            return
        # The description goes first: a reader either finds the object whole or does not find it.
        await self._purge(self._meta_subject(name))
        await self._purge(self._chunk_subject(meta["nuid"]))

    async def names(self) -> list[str]:
        return sorted(meta["name"] for meta in await self._descriptions())

    async def find(self, name: str) -> ObjectRef | None:
        meta = await self._described(name)
        return None if meta is None else _ref_of(name, meta)

    async def collect_garbage(self, min_age_s: float) -> int:
        """Removes chunks that no object owns and that nobody has added to for ``min_age_s``; says of how many uploads.

        Ages are by the server's clock alone. An upload that is under way is younger than any sensible ``min_age_s``.
        """
        chunks = await subjects_of(self._link, self._stream, self._chunk_subject(">"))
        owned = {self._chunk_subject(meta["nuid"]) for meta in await self._descriptions()}
        removed = 0
        for subject in sorted(chunks - owned):
            newest = await last_of(self._link, self._stream, subject)
            now = unix_seconds((await self._link.api_retrying(f"STREAM.INFO.{self._stream}"))["ts"])
            if newest is not None and now - newest.at >= min_age_s:
                await self._purge(subject)
                removed += 1
        if removed:
            log.info("orphan chunks removed", bucket=self._bucket, uploads=removed)
        return removed

    async def _put_large(self, path: Path, label: str) -> ObjectRef:
        """Sends nothing that is there already."""
        ref, is_there = await self._named(path, label)
        if not is_there:
            await retrying(lambda: self._upload(path, ref), what=f"put {ref.name}", patience_s=_PUT_PATIENCE_S)
        return ref

    async def _put_at_once(self, path: Path, label: str) -> ObjectRef:
        """What is sent in one flight is hashed, and looked for, on the way: that takes as long as to send it."""
        upload = self._new_upload(f"{label}." if _TOKENS.match(label) else "")
        naming = asyncio.create_task(self._named(path, label))
        try:
            sent = await self._send_chunks(path, upload)
            ref, is_there = await naming
            if is_there:
                await self._purge_quietly(self._chunk_subject(upload.nuid))
            else:
                await self._conclude(path, ref, upload, sent)
        except BaseException:
            await self._purge_quietly(self._chunk_subject(upload.nuid))
            raise
        finally:
            naming.cancel()
            await asyncio.gather(naming, return_exceptions=True)
        return ref

    async def _named(self, path: Path, label: str) -> tuple[ObjectRef, bool]:
        """What the file is as an object, and whether that is there already. Raises ``Rejected``, ``Unavailable``."""
        digest, size = await asyncio.to_thread(_digest_of, path)
        name = f"{label}.{digest}"
        if len(name) > _MAX_NAME:
            raise Rejected(400, f"'{label}' is too long for an object's name")
        held = await self._described(name)
        return ObjectRef(name=name, sha256=digest, bytes=size), held is not None and held.get("size") == size

    async def _upload(self, path: Path, ref: ObjectRef) -> None:
        """Goes on with one of this process that was cut off. What failed for good leaves no chunk behind."""
        upload = self._begun.pop(ref.name, None) or self._new_upload()
        try:
            if upload.sent:
                await self._catch_up(upload, path)
            await self._conclude(path, ref, upload, await self._send_chunks(path, upload))
        except Unavailable as cut_off:
            if upload.sent and not isinstance(cut_off, Disordered):
                self._begun[ref.name] = upload
                while len(self._begun) > _MOST_BEGUN:
                    self._begun.pop(next(iter(self._begun)))
            else:
                await self._purge_quietly(self._chunk_subject(upload.nuid))
            raise
        except BaseException:
            await self._purge_quietly(self._chunk_subject(upload.nuid))
            raise

    async def _conclude(self, path: Path, ref: ObjectRef, upload: Upload, sent: int) -> None:
        if sent != ref.bytes:
            raise Rejected(409, f"{path} changed while it was uploaded")
        # Only a client that connects again sends anything twice.
        once = upload.connection == self._link.connection
        if not once and await self._landed(self._chunk_subject(upload.nuid)) != upload.sent:
            raise Disordered("a chunk has landed twice")
        await self._describe(ref, upload)

    def _new_upload(self, label: str = "") -> Upload:
        """With a label it can be heard by who expects that."""
        return Upload(label + self._link.new_id(), self._chunk_bytes(), self._link.connection)

    async def _catch_up(self, upload: Upload, path: Path) -> None:
        """Chunks that landed without our hearing of it: they are read again. Raises ``Disordered``."""
        subject = self._chunk_subject(upload.nuid)
        unheard = await self._landed(subject) - upload.sent
        if unheard < 0:
            raise Disordered("chunks of the upload are gone")
        if not unheard:
            return
        with path.open("rb") as file:
            file.seek(upload.sent * upload.chunk_bytes)
            async with Reader(self._link, self._stream, [subject], after=upload.last, patience_s=STALL_S) as reader:
                for _ in range(unheard):
                    stored = await reader.next()
                    if stored is None or stored.data != await asyncio.to_thread(file.read, upload.chunk_bytes):
                        raise Disordered("chunks arrived out of order")
                    upload.sent, upload.last = upload.sent + 1, stored.sequence

    async def _landed(self, subject: str) -> int:
        """How many chunks of an upload the stream holds."""
        info = await self._link.api_retrying(f"STREAM.INFO.{self._stream}", {"subjects_filter": subject})
        return int((info["state"].get("subjects") or {}).get(subject, 0))

    async def _send_chunks(self, path: Path, upload: Upload) -> int:
        """``IN_FLIGHT`` chunks at a time; says how many bytes have been sent in all. One that fails, or that lands out
        of order, fails the whole upload."""
        subject, sent = self._chunk_subject(upload.nuid), upload.sent * upload.chunk_bytes
        acks: deque[asyncio.Task[int]] = deque()
        try:
            with path.open("rb") as file:
                file.seek(sent)
                while chunks := await asyncio.to_thread(_chunks_of, file, upload.chunk_bytes):
                    for chunk in chunks:
                        acks.append(asyncio.create_task(self._send_chunk(subject, chunk)))
                        sent += len(chunk)
                        await asyncio.sleep(self._pace.take(len(chunk)))
                        if len(acks) >= IN_FLIGHT:
                            upload.heard(await acks.popleft())
            while acks:
                upload.heard(await acks.popleft())
        finally:
            for ack in acks:
                ack.cancel()
            await asyncio.gather(*acks, return_exceptions=True)
        return sent

    async def _send_chunk(self, subject: str, chunk: bytes) -> int:
        answer = await self._link.request(subject, chunk, timeout_s=STALL_S)
        try:
            return int(checked(answer.data, subject)["seq"])
        except ApiError as error:
            raise Unavailable(f"the weights store refuses a chunk: {error}") from error

    async def _describe(self, ref: ObjectRef, upload: Upload) -> None:
        raw = bytes.fromhex(ref.sha256)
        meta = {
            "name": ref.name,
            "bucket": self._bucket,
            "nuid": upload.nuid,
            "size": ref.bytes,
            "mtime": datetime.now(UTC).isoformat(),
            "chunks": upload.sent,
            "digest": "SHA-256=" + base64.urlsafe_b64encode(raw).decode(),
            "options": {"max_chunk_size": upload.chunk_bytes},
        }
        await self._link.store(
            self._meta_subject(ref.name),
            json.dumps(meta).encode(),
            message_id=f"object:{upload.nuid}",
            headers={"Nats-Rollup": "sub"},
        )

    async def _download(self, meta: dict[str, Any], part: Part) -> list[bytes]:
        """From where the part ends, if it is of the same upload; gives the last chunks back."""
        if part.done and part.mark.get("nuid") != meta["nuid"]:
            await asyncio.to_thread(part.restart)
        known = part.mark if part.done else {}
        after, left = int(known.get("last", 0)), int(meta["chunks"]) - int(known.get("chunks", 0))
        size, held = part.done, list[Stored]()
        subject = self._chunk_subject(meta["nuid"])
        loop = asyncio.get_running_loop()
        progress = loop.time()
        async with Reader(
            self._link, self._stream, [subject], after=after, batch=2 * IN_FLIGHT, patience_s=STALL_S
        ) as reader:
            while left:
                chunk = await reader.next()
                if chunk is not None:
                    held.append(chunk)
                    left, size, progress = left - 1, size + len(chunk.data), loop.time()
                    if size > int(meta["size"]):
                        raise Rejected(404, f"object '{meta['name']}' is longer than it says")
                    if len(held) == IN_FLIGHT and left:
                        mark = {"nuid": meta["nuid"], "last": chunk.sequence, "chunks": int(meta["chunks"]) - left}
                        await asyncio.to_thread(part.append, [one.data for one in held], mark)
                        held = []
                    await asyncio.sleep(self._pace.take(len(chunk.data)))
                elif await self._described(meta["name"]) is None:
                    raise Rejected(404, f"object '{meta['name']}' was deleted while it was read")
                elif loop.time() - progress > STALL_S:
                    raise Unavailable(f"object '{meta['name']}' has lost {left} chunks")
        return [one.data for one in held]

    async def _described(self, name: str) -> dict[str, Any] | None:
        stored = await last_of(self._link, self._stream, self._meta_subject(name))
        return None if stored is None else _meta_of(stored)

    async def _descriptions(self) -> list[dict[str, Any]]:
        latest = await latest_of(self._link, self._stream, [f"$O.{self._bucket}.M.>"])
        return [meta for stored in latest if (meta := _meta_of(stored)) is not None]

    async def _purge(self, subject: str) -> None:
        await self._link.api_retrying(f"STREAM.PURGE.{self._stream}", {"filter": subject})

    async def _purge_quietly(self, subject: str) -> None:
        try:
            await self._link.api(f"STREAM.PURGE.{self._stream}", {"filter": subject}, timeout_s=2.0)
        except (Unavailable, ApiError) as error:
            log.warning("chunks of a failed upload stay until they are collected", error=str(error))

    def _chunk_bytes(self) -> int:
        return max(1, min(CHUNK_BYTES, self._link.client.max_payload - _MESSAGE_MARGIN))

    def _chunk_subject(self, nuid: str) -> str:
        return f"$O.{self._bucket}.C.{nuid}"

    def _meta_subject(self, name: str) -> str:
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _meta_of(stored: Stored) -> dict[str, Any] | None:
    """None for what was deleted, or is not a description of an object of ours."""
    try:
        meta = json.loads(stored.data)
    except ValueError:
        log.error("an object's description is not JSON", subject=stored.subject)
        return None
    if not isinstance(meta, dict) or meta.get("deleted") or not meta.get("nuid") or not meta.get("name"):
        return None
    return meta


def _ref_of(name: str, meta: dict[str, Any]) -> ObjectRef | None:
    size = meta.get("size")
    return ObjectRef(name=name, sha256=name.rpartition(".")[2], bytes=size) if isinstance(size, int) else None


def _digest_of(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return digest, file.seek(0, os.SEEK_END)


def _chunks_of(file: BinaryIO, size: int) -> list[bytes]:
    """Several at once: each visit of a thread costs about as much as a chunk."""
    return [chunk for _ in range(IN_FLIGHT) if (chunk := file.read(size))]
