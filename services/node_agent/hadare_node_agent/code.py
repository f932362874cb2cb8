"""Code bundles on this node: fetched once, unpacked read-only under their hash, removed when many are not in use."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path

import structlog

from hadare.machines.belongings import code_object
from hadare.model.errors import Rejected
from hadare.runtime.backoff import retrying
from hadare.runtime.bus import Objects
from hadare.wire import bundles

log = structlog.get_logger("hadare.node_agent")

_MOST_BUNDLES = 32


class CodeCache:
    """One folder a bundle. What an earlier incarnation unpacked is not believed: it is removed at the start."""

    def __init__(self, objects: Objects, directory: Path, patience_s: float, most: int = _MOST_BUNDLES) -> None:
        self._objects = objects
        self._directory = directory
        self._patience_s = patience_s
        self._most = most
        self._used: dict[str, None] = {}
        self._pins: dict[str, str] = {}
        self._lock = asyncio.Lock()
        remove_tree(directory)
        directory.mkdir(parents=True)

    async def folder(self, process: str, sha256: str) -> Path:
        """Where the bundle lies, kept until ``release``. Raises ``Rejected`` (400, 404), ``Unavailable``."""
        self._pins[process] = sha256
        folder = self._directory / sha256
        async with self._lock:
            if sha256 not in self._used:
                await self._fetch(sha256, folder)
            self._used.pop(sha256, None)
            self._used[sha256] = None  # now the last to go
            await asyncio.to_thread(self._make_room)
        return folder

    def release(self, process: str) -> None:
        self._pins.pop(process, None)

    async def _fetch(self, sha256: str, folder: Path) -> None:
        found = await retrying(
            lambda: self._objects.find(code_object(sha256)), what="find the code", patience_s=self._patience_s
        )
        if found is None:
            raise Rejected(404, f"code {sha256[:12]} is no longer kept; submit the job again with its code")
        if found.bytes > bundles.MAX_BYTES:
            raise Rejected(413, f"code {sha256[:12]} has {found.bytes} bytes, more than {bundles.MAX_BYTES}")
        archive = self._directory / f"{sha256}.tar"
        try:
            await retrying(
                lambda: self._objects.get(found, archive), what="fetch the code", patience_s=self._patience_s
            )
            files = await asyncio.to_thread(_unpack, archive, sha256, folder)
        finally:
            archive.unlink(missing_ok=True)
        log.info("code unpacked", sha256=sha256, files=files, bytes=found.bytes)

    def _make_room(self) -> None:
        pinned = set(self._pins.values())
        for sha256 in list(self._used):
            if len(self._used) <= self._most:
                break
            if sha256 not in pinned:
                del self._used[sha256]
                remove_tree(self._directory / sha256)


def _unpack(archive: Path, sha256: str, folder: Path) -> int:
    data = archive.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise Rejected(400, f"code {sha256[:12]} is not what it should be")
    remove_tree(folder)  # of an attempt that broke off
    return bundles.unpack(data, folder)


def remove_tree(folder: Path) -> None:
    """Removes a folder that was made read-only, if it is there."""
    if not folder.exists():
        return
    folder.chmod(0o755)
    for inner in folder.rglob("*"):
        if inner.is_dir() and not inner.is_symlink():
            inner.chmod(0o755)
    shutil.rmtree(folder)
