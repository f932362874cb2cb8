"""Immutable objects in a folder that every machine can reach by an fsspec URL: a shared file system, or a bucket.

For models that outgrow the object store of NATS. Needs the extra ``fsspec``, and the protocol's driver.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeVar

import structlog

from hadare.model.errors import Broken, HadareError, Rejected, Unavailable
from hadare.model.jobs import ObjectRef
from hadare.runtime.bus import Unheard
from hadare.runtime.pace import Pace
from hadare.runtime.parts import Part

log = structlog.get_logger("hadare.fsspec")

T = TypeVar("T")

_BLOCK = 4 * 2**20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@=-]{0,255}\Z")
_PARTS = "parts"


class FsspecObjects:
    """The ``Objects`` of a folder. One is written beside its place and moved there when it is whole.

    What was cut off is gone on with: a fetch always, an upload where files can be added to.

    Raises ``Broken`` if the URL cannot be used here.
    """

    def __init__(self, url: str, pace: Pace | None = None) -> None:
        try:
            from fsspec.core import url_to_fs

            self._files, root = url_to_fs(url)
        except ImportError as error:
            raise Broken(f"{url} needs {error.name or error}: pip install 'hadare[fsspec]'") from error
        except ValueError as error:
            raise Broken(f"{url} is not a place for weights: {error}") from error
        self._root = str(root).rstrip("/")
        self._pace = pace or Pace()
        # Buckets take a file whole or not at all.
        self._can_add = "file" in self._files.protocol
        self._begun: dict[str, str] = {}

    async def put(self, path: Path, label: str) -> ObjectRef:
        return await self._doing(lambda: self._put(path, label), f"put {label}")

    async def get(self, ref: ObjectRef, path: Path) -> None:
        await self._doing(lambda: self._get(ref, path), f"get {ref.name}")

    async def expect(self, label: str, folder: Path, most_bytes: int) -> Unheard:
        del label, folder, most_bytes
        return Unheard()

    async def delete(self, name: str) -> None:
        await self._doing(lambda: self._delete(self._place(name)), f"delete {name}")

    async def names(self) -> list[str]:
        return await self._doing(lambda: sorted(name for name, _ in self._listed(self._root)), "list")

    async def find(self, name: str) -> ObjectRef | None:
        size = await self._doing(lambda: self._size(self._place(name)), f"find {name}")
        return None if size is None else ObjectRef(name=name, sha256=name.rpartition(".")[2], bytes=size)

    async def collect_garbage(self, min_age_s: float) -> int:
        """Ages are by the clock of whatever stores the files, not by ours."""
        return await self._doing(lambda: self._collect(min_age_s), "collect garbage")

    # --- in a thread ----------------------------------------------------------------------------------------------

    def _put(self, path: Path, label: str) -> ObjectRef:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.seek(0, os.SEEK_END)
        ref = ObjectRef(name=f"{label}.{digest}", sha256=digest, bytes=size)
        place = self._place(ref.name)
        if self._size(place) == size:
            return ref
        part = self._begun.pop(ref.name, None) or f"{self._root}/{_PARTS}/{secrets.token_hex(12)}"
        self._files.makedirs(f"{self._root}/{_PARTS}", exist_ok=True)
        try:
            with path.open("rb") as source:
                if self._send(source, part) != digest:
                    raise Rejected(409, f"{path} changed while it was uploaded")
            self._files.mv(part, place)
        except BaseException as error:
            if self._can_add and not isinstance(error, Rejected):
                self._begun[ref.name] = part  # gone on with by the next attempt, or collected as garbage
            else:
                self._delete(part)
            raise
        return ref

    def _send(self, source: IO[bytes], part: str) -> str:
        """Goes on behind what an attempt before has brought; returns the hash of all."""
        done, digest = self._agreed(source, part)
        source.seek(done)
        with self._files.open(part, "ab" if done else "wb") as target:
            while block := source.read(_BLOCK):
                self._wait(len(block))
                target.write(block)
                digest.update(block)
        return str(digest.hexdigest())

    def _agreed(self, source: IO[bytes], part: str) -> tuple[int, Any]:
        """How much of the source's beginning is there, read again to be sure, and its hash."""
        done, digest = 0, hashlib.sha256()
        if not self._can_add or not self._size(part):
            return done, digest
        with self._files.open(part, "rb") as there:
            while block := there.read(_BLOCK):
                if source.read(len(block)) != block:
                    return 0, hashlib.sha256()
                digest.update(block)
                done += len(block)
        return done, digest

    def _get(self, ref: ObjectRef, path: Path) -> None:
        place = self._place(ref.name)
        size = self._size(place)
        if size is None:
            raise Rejected(404, f"there is no object '{ref.name}'")
        if size != ref.bytes:
            raise Rejected(404, f"object '{ref.name}' has {size} bytes, not {ref.bytes}")
        with Part(ref, path) as part:
            with self._files.open(place, "rb") as source:
                source.seek(part.done)
                while block := source.read(_BLOCK):
                    part.append([block])
                    self._wait(len(block))
            part.finish()

    def _wait(self, count: int) -> None:
        if (wait_s := self._pace.take(count)) > 0:
            time.sleep(wait_s)

    def _collect(self, min_age_s: float) -> int:
        folder = f"{self._root}/{_PARTS}"
        parts = [name for name, _ in self._listed(folder)]
        if not parts:
            return 0
        probe = f"{folder}/{secrets.token_hex(12)}"
        self._files.touch(probe)
        now = self._files.modified(probe)
        self._delete(probe)
        old = [name for name in parts if (now - self._files.modified(f"{folder}/{name}")).total_seconds() >= min_age_s]
        for name in old:
            self._delete(f"{folder}/{name}")
        return len(old)

    def _listed(self, folder: str) -> list[tuple[str, int]]:
        self._files.invalidate_cache()  # others write here too
        try:
            entries: list[dict[str, Any]] = self._files.ls(folder, detail=True)
        except FileNotFoundError:
            return []
        return [
            (PurePosixPath(str(entry["name"])).name, int(entry["size"] or 0))
            for entry in entries
            if entry["type"] == "file"
        ]

    def _size(self, place: str) -> int | None:
        self._files.invalidate_cache()
        try:
            return int(self._files.size(place))
        except FileNotFoundError:
            return None

    def _delete(self, place: str) -> None:
        try:
            self._files.rm_file(place)
        except FileNotFoundError:
            return

    def _place(self, name: str) -> str:
        if not _NAME.match(name):
            raise Rejected(400, f"'{name[:80]}' is not a name of an object")
        return f"{self._root}/{name}"

    async def _doing(self, work: Callable[[], T], what: str) -> T:
        """In a thread. Whatever a driver raises means that the store is not to be had now."""
        try:
            return await asyncio.to_thread(work)
        except HadareError:
            raise
        except Exception as error:
            raise Unavailable(f"the weights store cannot {what}: {type(error).__name__}: {error}") from error
