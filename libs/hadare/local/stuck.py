"""Notices a bus that has stopped writing for good: after a write error (a full disk) a stream of nats-server takes no
message any more until the server is started anew, also once there is room again.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from urllib.parse import urlsplit

EVERY_S = 2.0
_LIMIT_S = 2.0
_MOST_BYTES = 65_536
_ROOM_BYTES = 16 * 2**20
_SYMPTOM = "write error"


async def until_stuck(folder: Path, every_s: float = EVERY_S) -> str:
    """Waits until the server that keeps its data in ``folder`` says that it cannot write although there is room.

    Returns what it says. A server that is away or silent is somebody else's to notice.
    """
    while True:
        await asyncio.sleep(every_s)
        said = await _health(folder)
        if _SYMPTOM in said and await asyncio.to_thread(_has_room, folder):
            return said


async def _health(folder: Path) -> str:
    """The body of its health check; empty if there is none."""
    try:
        address = await asyncio.to_thread(_monitoring, folder)
        if address is None:
            return ""
        async with asyncio.timeout(_LIMIT_S):
            reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
                answer = await reader.read(_MOST_BYTES)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return ""
    return answer.partition(b"\r\n\r\n")[2].decode(errors="replace").strip()


def _monitoring(folder: Path) -> tuple[str, int] | None:
    """Where the server that was started last answers; one that was killed leaves its file behind."""
    try:
        newest = max(folder.glob("*.ports"), key=lambda path: path.stat().st_mtime_ns)
        url = urlsplit(json.loads(newest.read_text())["monitoring"][0])
    except (ValueError, KeyError, IndexError, OSError):
        return None  # just being written, or of a server without one
    return (url.hostname, url.port) if url.hostname and url.port else None


def _has_room(folder: Path) -> bool:
    return shutil.disk_usage(folder).free >= _ROOM_BYTES
