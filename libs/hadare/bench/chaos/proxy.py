"""A TCP proxy in front of the bus that can cut, stall and slow a link, double its messages, and hold results back.

It understands as much of NATS' client protocol as it takes to see where a message ends and what its subject is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from hadare.local.directory import HOST

_CHUNK = 2**16
_MOST_HELD = 1000
_DOUBLED = (".result", ".heartbeat", ".report", ".grant", ".open", ".close", ".event.v1.")
_HELD = (".tracker.v1.result",)


class Trouble(Enum):
    """What a link can suffer; several at once."""

    CUT = auto()
    STALL = auto()
    SLOW = auto()
    DOUBLE = auto()
    LATE = auto()


@dataclass(slots=True)
class Frame:
    """A command of the client as it travels; ``subject`` is empty unless it publishes."""

    subject: str
    data: bytes


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[Frame]:
    """What a NATS client says, command by command, until it hangs up."""
    while True:
        try:
            line = await reader.readuntil(b"\r\n")
            words = line.split()
            if words and words[0].upper() in (b"PUB", b"HPUB"):
                body = await reader.readexactly(int(words[-1]) + 2)
                yield Frame(words[1].decode(), line + body)
            else:
                yield Frame("", line)
        except (asyncio.IncompleteReadError, ConnectionError):
            return


class Proxy:
    """The way of one program to the bus. ``with proxy.suffers(Trouble.CUT): …`` is a fault."""

    def __init__(self, name: str, upstream_port: int, slow_s: float = 0.3) -> None:
        self.name = name
        self.port = 0
        self.doubled = 0
        self.held_back = 0
        self._upstream_port = upstream_port
        self._slow_s = slow_s
        self._troubles: list[Trouble] = []
        self._changed = asyncio.Event()
        self._links: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0, limit=2**22)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._drop()
        await asyncio.gather(*self._links, return_exceptions=True)

    def suffers(self, trouble: Trouble) -> AbstractContextManager[None]:
        """The link has this trouble inside the ``with``."""
        return self._suffering(trouble)

    @contextmanager
    def _suffering(self, trouble: Trouble) -> Any:
        self._troubles.append(trouble)
        if trouble is Trouble.CUT:
            self._drop()
        try:
            yield
        finally:
            self._troubles.remove(trouble)
            self._changed.set()
            self._changed = asyncio.Event()

    def _has(self, trouble: Trouble) -> bool:
        return trouble in self._troubles

    def _drop(self) -> None:
        for link in list(self._links):
            link.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        try:
            if not self._has(Trouble.CUT):
                await self._link(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the link is cut, or one of its ends has gone: what that means is for both ends to find out
        finally:
            self._links.discard(task)
            writer.transport.abort()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_bus, to_bus = await asyncio.open_connection(HOST, self._upstream_port, limit=2**22)
        ways = [
            asyncio.ensure_future(self._upward(reader, to_bus)),
            asyncio.ensure_future(self._down(from_bus, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            to_bus.transport.abort()

    async def _upward(self, reader: asyncio.StreamReader, to_bus: asyncio.StreamWriter) -> None:
        held: list[bytes] = []
        async for frame in frames(reader):
            await self._passable()
            if held and not self._has(Trouble.LATE):
                to_bus.writelines(held)
                held.clear()
            if self._has(Trouble.LATE) and frame.subject.endswith(_HELD) and len(held) < _MOST_HELD:
                held.append(frame.data)
                self.held_back += 1
                continue
            to_bus.write(frame.data)
            if self._has(Trouble.DOUBLE) and any(part in frame.subject for part in _DOUBLED):
                to_bus.write(frame.data)
                self.doubled += 1
            await to_bus.drain()

    async def _down(self, from_bus: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await from_bus.read(_CHUNK):
            await self._passable()
            writer.write(data)
            await writer.drain()

    async def _passable(self) -> None:
        if self._has(Trouble.SLOW):
            await asyncio.sleep(self._slow_s)
        while self._has(Trouble.STALL):
            await self._changed.wait()
