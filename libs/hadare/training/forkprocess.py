"""One fork as its agent sees it: commands go in, reports and lines of output come out, and its end is proven.

Nothing that a fork sends is trusted to be well formed.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from hadare.model.errors import Unavailable
from hadare.model.leases import Failure
from hadare.training.outputs import LineCutter
from hadare.training.processes import end_fork
from hadare.training.protocol import (
    REPORTS,
    Command,
    Exited,
    Failed,
    FrameReader,
    ProtocolError,
    Report,
    Spawned,
    frame,
)

OnOutput = Callable[[str], None]

_WAITING_REPORTS = 256
_LAST_WORDS_S = 0.5


class ForkProcess:
    """One fork. Iterate over it for its reports; the iteration ends when the process has ended and is drained."""

    def __init__(self, process_id: str) -> None:
        self.id = process_id
        self._spawned: asyncio.Future[Spawned] = asyncio.get_running_loop().create_future()
        self._unwanted = False
        self._reports: asyncio.Queue[Report | None] = asyncio.Queue(_WAITING_REPORTS)
        self._exit: asyncio.Future[Exited] = asyncio.get_running_loop().create_future()
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pid(self) -> int:
        return self._spawned.result().pid

    @property
    def started(self) -> int:
        """Clock ticks since boot, which tell it from a later holder of its pid."""
        return self._spawned.result().started

    @property
    def exit(self) -> Exited | None:
        """How the process ended, or ``None`` while it lives."""
        return self._exit.result() if self._exit.done() else None

    async def wait(self) -> Exited:
        """Until the process has ended; what it started may live on until ``kill``."""
        return await asyncio.shield(self._exit)

    async def send(self, command: Command) -> None:
        """Raises ``Unavailable`` if the fork is gone."""
        if self._writer is None or self._exit.done():
            raise Unavailable(f"fork {self.id} has ended")
        try:
            self._writer.write(frame(command))
            await self._writer.drain()
        except OSError as error:
            raise Unavailable(f"fork {self.id} has ended: {error}") from error

    async def __aiter__(self) -> AsyncIterator[Report]:
        while (report := await self._reports.get()) is not None:
            yield report
        self._reports.put_nowait(None)  # whoever iterates again finds the end at once

    async def kill(self) -> bool:
        """Ends the process and all that it has started; true once that is proven, whoever asks, however often."""
        pid, started = 0, 0
        if self._spawned.done() and self._spawned.exception() is None:
            spawned = self._spawned.result()
            pid, started = spawned.pid, spawned.started
        return await asyncio.to_thread(end_fork, pid, started, self.id)

    async def attach(self, line: socket.socket, output: int, on_output: OnOutput) -> None:
        """Begins to listen: ``line`` is the agent's end of the channel, ``output`` of the pipe of what is printed."""
        reader, self._writer = await asyncio.open_connection(sock=line)
        listening = asyncio.create_task(self._listen(reader))
        self._start(_pump_output(output, on_output))
        self._start(self._finish(listening))

    async def until_spawned(self, timeout_s: float) -> None:
        """Raises ``Unavailable`` if the server does not fork in time; if it does later, the process is ended."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._spawned)
        except BaseException as error:
            self._unwanted = True
            if isinstance(error, TimeoutError):
                raise Unavailable("the fork server does not answer") from error
            raise

    def spawned(self, report: Spawned) -> None:
        """The server's word that the process lives."""
        self._spawned.set_result(report)
        if self._unwanted:
            self._start(self._discard())

    def exited(self, report: Exited) -> None:
        """The server's word, or the kernel's, that the process has ended."""
        if not self._exit.done():
            self._exit.set_result(report)

    def lost(self) -> None:
        """The server has ended, and the process with it, as the kernel saw to."""
        if not self._spawned.done():
            self._spawned.set_exception(Unavailable("the fork server is gone"))
            self._spawned.exception()  # nobody need be waiting for it
        self.exited(Exited(process_id=self.id, signal=9))

    async def _discard(self) -> None:
        await self.kill()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        frames = FrameReader(REPORTS)
        try:
            while data := await reader.read(2**16):
                for report in frames.feed(data):
                    await self._reports.put(report)
        except ConnectionError:
            return
        except ProtocolError as error:
            failure = Failure(kind="exception", message=f"the fork broke its channel: {error}"[:4096])
            await self._reports.put(Failed(failure=failure))
            await self.kill()

    async def _finish(self, listening: asyncio.Task[None]) -> None:
        await asyncio.shield(self._exit)
        # What it sent before it ended is still to be read; a child of its own may hold the channel open for ever.
        await asyncio.wait([listening], timeout=_LAST_WORDS_S)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
        await self._reports.put(None)


def failure_of(exited: Exited, *, ready: bool = True) -> Failure:
    """What it means to a job that a fork ended without a word; ``ready``: its task and model had been made."""
    how = f"by signal {exited.signal}" if exited.signal else f"with status {exited.code}"
    when = "" if ready else " before its task was made"
    return Failure(kind="killed", message=f"the fork's process ended {how}{when}")


async def _pump_output(output: int, on_output: OnOutput) -> None:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    pipe = os.fdopen(output, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    cutter = LineCutter()
    clock = asyncio.get_running_loop().time
    try:
        while data := await reader.read(2**16):
            for line in cutter.feed(data, clock()):
                on_output(line)
    finally:
        for line in cutter.end():
            on_output(line)
        transport.close()
