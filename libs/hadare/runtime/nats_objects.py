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
import tempfile
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import structlog

from hadare.model.errors import Rejected, Unavailable
from hadare.model.jobs import ObjectRef
from hadare.runtime.backoff import retrying
from hadare.runtime.nats_errors import ApiError, checked
from hadare.runtime.nats_link import Link
from hadare.runtime.nats_reader import Reader, latest_of
from hadare.runtime.nats_stored import Stored, last_of, subjects_of, unix_seconds
from hadare.runtime.nats_streams import Names
from hadare.runtime.pace import Pace

log = structlog.get_logger("hadare.nats")

CHUNK_BYTES = 512 * 1024
IN_FLIGHT = 8
STALL_S = 30.0
"""A transfer that makes no progress for this long has failed."""

_PUT_PATIENCE_S = 90.0
_MAX_NAME = 256


class NatsObjects:
    """The ``Objects`` of a bucket."""

    def __init__(self, link: Link, bucket: str, pace: Pace | None = None) -> None:
        self._link = link
        self._pace = pace or Pace()
        names = Names(link.prefix)
        self._bucket = names.objects(bucket)
        self._stream = names.objects_stream(bucket)

    async def put(self, path: Path, label: str) -> ObjectRef:
        digest, size = await asyncio.to_thread(_digest_of, path)
        name = f"{label}.{digest}"
        if len(name) > _MAX_NAME:
            raise Rejected(400, f"'{label}' is too long for an object's name")
        ref = ObjectRef(name=name, sha256=digest, bytes=size)
        held = await self._described(name)
        if held is None or held.get("size") != size:
            await retrying(lambda: self._upload(path, ref), what=f"put {name}", patience_s=_PUT_PATIENCE_S)
        return ref

    async def get(self, ref: ObjectRef, path: Path) -> None:
        meta = await self._described(ref.name)
        if meta is None:
            raise Rejected(404, f"there is no object '{ref.name}'")
        if int(meta.get("size", -1)) != ref.bytes:
            raise Rejected(404, f"object '{ref.name}' has {meta.get('size')} bytes, not {ref.bytes}")
        # Not forced to disk, which can cost more than the transfer: whoever finds a file after a crash hashes it.
        part = await asyncio.to_thread(_part_beside, path)
        try:
            with part.open("wb") as file:
                found = await self._download(meta, file)
            if found != ref.sha256:
                raise Rejected(404, f"object '{ref.name}' does not have the content that it should have")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

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

    async def _upload(self, path: Path, ref: ObjectRef) -> None:
        nuid = self._link.new_id()
        try:
            chunks = await self._send_chunks(path, self._chunk_subject(nuid), ref.bytes)
            await self._describe(ref, nuid, chunks)
        except BaseException:
            await self._purge_quietly(self._chunk_subject(nuid))
            raise

    async def _send_chunks(self, path: Path, subject: str, size: int) -> int:
        """``IN_FLIGHT`` chunks at a time. One that fails, or that lands out of order, fails the whole upload."""
        acks: deque[asyncio.Task[int]] = deque()
        last = count = sent = 0
        try:
            with path.open("rb") as file:
                while chunks := await asyncio.to_thread(_chunks_of, file):
                    for chunk in chunks:
                        acks.append(asyncio.create_task(self._send_chunk(subject, chunk)))
                        count, sent = count + 1, sent + len(chunk)
                        await asyncio.sleep(self._pace.take(len(chunk)))
                        if len(acks) >= IN_FLIGHT:
                            last = _in_order(await acks.popleft(), last)
            while acks:
                last = _in_order(await acks.popleft(), last)
        finally:
            for ack in acks:
                ack.cancel()
            await asyncio.gather(*acks, return_exceptions=True)
        if sent != size:
            raise Rejected(409, f"{path} changed while it was uploaded")
        return count

    async def _send_chunk(self, subject: str, chunk: bytes) -> int:
        answer = await self._link.request(subject, chunk, timeout_s=STALL_S)
        try:
            return int(checked(answer.data, subject)["seq"])
        except ApiError as error:
            raise Unavailable(f"the weights store refuses a chunk: {error}") from error

    async def _describe(self, ref: ObjectRef, nuid: str, chunks: int) -> None:
        raw = bytes.fromhex(ref.sha256)
        meta = {
            "name": ref.name,
            "bucket": self._bucket,
            "nuid": nuid,
            "size": ref.bytes,
            "mtime": datetime.now(UTC).isoformat(),
            "chunks": chunks,
            "digest": "SHA-256=" + base64.urlsafe_b64encode(raw).decode(),
            "options": {"max_chunk_size": CHUNK_BYTES},
        }
        await self._link.store(
            self._meta_subject(ref.name),
            json.dumps(meta).encode(),
            message_id=f"object:{nuid}",
            headers={"Nats-Rollup": "sub"},
        )

    async def _download(self, meta: dict[str, Any], file: BinaryIO) -> str:
        digest = hashlib.sha256()
        left, size = int(meta["chunks"]), 0
        held: list[bytes] = []
        subject = self._chunk_subject(meta["nuid"])
        loop = asyncio.get_running_loop()
        progress = loop.time()
        async with Reader(self._link, self._stream, [subject], batch=2 * IN_FLIGHT, patience_s=STALL_S) as reader:
            while left:
                chunk = await reader.next()
                if chunk is not None:
                    held.append(chunk.data)
                    left, size, progress = left - 1, size + len(chunk.data), loop.time()
                    if size > int(meta["size"]):
                        raise Rejected(404, f"object '{meta['name']}' is longer than it says")
                    if len(held) == IN_FLIGHT or not left:
                        await asyncio.to_thread(_keep, held, file, digest)
                        held = []
                    await asyncio.sleep(self._pace.take(len(chunk.data)))
                elif await self._described(meta["name"]) is None:
                    raise Rejected(404, f"object '{meta['name']}' was deleted while it was read")
                elif loop.time() - progress > STALL_S:
                    raise Unavailable(f"object '{meta['name']}' has lost {left} chunks")
        return digest.hexdigest()

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


def _in_order(sequence: int, last: int) -> int:
    if sequence <= last:
        raise Unavailable("chunks arrived out of order")
    return sequence


def _digest_of(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return digest, file.seek(0, os.SEEK_END)


def _part_beside(path: Path) -> Path:
    """A temporary file in the same folder, so that the rename at the end is atomic."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:64]}.", suffix=".part", dir=path.parent)
    os.close(handle)
    return Path(name)


def _chunks_of(file: BinaryIO) -> list[bytes]:
    """Several at once: each visit of a thread costs about as much as a chunk."""
    block = file.read(IN_FLIGHT * CHUNK_BYTES)
    return [block[at : at + CHUNK_BYTES] for at in range(0, len(block), CHUNK_BYTES)]


def _keep(chunks: list[bytes], file: BinaryIO, digest: Any) -> None:
    for chunk in chunks:
        file.write(chunk)
        digest.update(chunk)
