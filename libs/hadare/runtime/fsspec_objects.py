"""Immutable objects in a folder that every machine can reach by an fsspec URL: a shared file system, or a bucket.

For models that outgrow the object store of NATS. Needs the extra ``fsspec``, and the protocol's driver.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeVar

import structlog

from hadare.model.errors import Broken, HadareError, Rejected, Unavailable
from hadare.model.jobs import ObjectRef
from hadare.runtime.pace import Pace

log = structlog.get_logger("hadare.fsspec")

T = TypeVar("T")

_BLOCK = 4 * 2**20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@=-]{0,255}\Z")
_PARTS = "parts"


class FsspecObjects:
    """The ``Objects`` of a folder. One is written beside its place and moved there when it is whole.

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

    async def put(self, path: Path, label: str) -> ObjectRef:
        return await self._doing(lambda: self._put(path, label), f"put {label}")

    async def get(self, ref: ObjectRef, path: Path) -> None:
        await self._doing(lambda: self._get(ref, path), f"get {ref.name}")

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
        part = f"{self._root}/{_PARTS}/{secrets.token_hex(12)}"
        self._files.makedirs(f"{self._root}/{_PARTS}", exist_ok=True)
        try:
            with path.open("rb") as source, self._files.open(part, "wb") as target:
                if self._copy(source, target) != digest:
                    raise Rejected(409, f"{path} changed while it was uploaded")
            self._files.mv(part, place)
        finally:
            self._delete(part)
        return ref

    def _get(self, ref: ObjectRef, path: Path) -> None:
        place = self._place(ref.name)
        size = self._size(place)
        if size is None:
            raise Rejected(404, f"there is no object '{ref.name}'")
        if size != ref.bytes:
            raise Rejected(404, f"object '{ref.name}' has {size} bytes, not {ref.bytes}")
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:64]}.", suffix=".part", dir=path.parent)
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as target, self._files.open(place, "rb") as source:
                found = self._copy(source, target)
            if found != ref.sha256:
                raise Rejected(404, f"object '{ref.name}' does not have the content that it should have")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def _copy(self, source: IO[bytes], target: IO[bytes]) -> str:
        digest = hashlib.sha256()
        while block := source.read(_BLOCK):
            target.write(block)
            digest.update(block)
            if (wait_s := self._pace.take(len(block))) > 0:
                time.sleep(wait_s)
        return digest.hexdigest()

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
