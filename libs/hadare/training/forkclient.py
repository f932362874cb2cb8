"""The node agent's side of its fork server: start it, have it fork, talk to forks, hear of every end at once, kill.

No user code runs in the agent, and nothing that a fork sends is trusted to be well formed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Self

from hadare.model.errors import Broken, Unavailable
from hadare.model.leases import Failure
from hadare.training.linux import MARKER, marker_placeholder
from hadare.training.outputs import LineCutter
from hadare.training.processes import end_fork
from hadare.training.protocol import (
    MAX_MESSAGE_BYTES,
    REPORTS,
    SERVER_REPORTS,
    Command,
    Exited,
    Failed,
    ForkSpec,
    FrameReader,
    Hello,
    ProtocolError,
    Report,
    ServerReport,
    Spawn,
    Spawned,
    decode,
    encode,
    frame,
)

OnOutput = Callable[[str], None]

_WAITING_REPORTS = 256
_LAST_WORDS_S = 0.5
_SERVER_END_S = 10.0


class ForkProcess:
    """One fork. Iterate over it for its reports; the iteration ends when the process has ended and is drained."""

    def __init__(self, process_id: str, spawned: asyncio.Future[Spawned]) -> None:
        self.id = process_id
        self._spawned = spawned
        self._reports: asyncio.Queue[Report | None] = asyncio.Queue(_WAITING_REPORTS)
        self._exit: asyncio.Future[Exited] = asyncio.get_running_loop().create_future()
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pid(self) -> int:
        return self._spawned.result().pid

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
        if not self._spawned.done():
            return False
        spawned = self._spawned.result()
        return await asyncio.to_thread(end_fork, spawned.pid, spawned.started, spawned.process_id)

    async def attach(self, line: socket.socket, output: int, on_output: OnOutput) -> None:
        """Begins to listen: ``line`` is the agent's end of the channel, ``output`` of the pipe of what is printed."""
        reader, self._writer = await asyncio.open_connection(sock=line)
        listening = asyncio.create_task(self._listen(reader))
        self._start(_pump_output(output, on_output))
        self._start(self._finish(listening))

    def spawned(self, report: Spawned) -> None:
        if not self._spawned.done():
            self._spawned.set_result(report)

    def exited(self, report: Exited) -> None:
        if not self._exit.done():
            self._exit.set_result(report)

    def _start(self, work: asyncio._CoroutineLike[None]) -> None:
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


def failure_of(exited: Exited) -> Failure:
    """What it means to a job that a fork ended without a word."""
    how = f"by signal {exited.signal}" if exited.signal else f"with status {exited.code}"
    return Failure(kind="killed", message=f"the fork's process ended {how}")


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


class ForkServer:
    """A running fork server. ``gone`` is done as soon as it has ended, for whatever reason."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process = process
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._hello: asyncio.Future[Hello] = self._loop.create_future()
        self._forks: dict[str, ForkProcess] = {}
        self._cleaning: asyncio.Task[None] | None = None
        self.gone: asyncio.Future[None] = self._loop.create_future()
        control.setblocking(False)
        self._loop.add_reader(control, self._hear)

    @classmethod
    async def start(
        cls, preload: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 120.0
    ) -> Self:
        """Starts a server that has imported ``preload``. Raises ``Broken`` if it does not come up.

        Call it from the main thread: the server ends with the thread that started it.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = _execute(theirs.fileno(), preload, env or {})
        server = cls(process, ours)
        try:
            await asyncio.wait_for(asyncio.shield(server._hello), timeout_s)
        except (TimeoutError, Unavailable) as error:
            await server.close()
            raise Broken(f"the fork server did not start: {error}") from error
        return server

    @property
    def hello(self) -> Hello:
        """What it could import."""
        return self._hello.result()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def spawn(
        self,
        process_id: str,
        spec: ForkSpec,
        *,
        env: Mapping[str, str] | None = None,
        on_output: OnOutput,
        timeout_s: float = 30.0,
    ) -> ForkProcess:
        """Forks a process, which builds its task and then reports ``Ready`` (or ``Failed``).

        ``process_id`` must never have been used before. Raises ``Unavailable`` if the server is gone.
        """
        if self.gone.done():
            raise Unavailable("the fork server is gone")
        fork = ForkProcess(process_id, self._loop.create_future())
        self._forks[process_id] = fork
        line, their_line = socket.socketpair()
        output, their_output = os.pipe()
        request = encode(Spawn(process_id=process_id, spec=spec, env=dict(env or {})))
        try:
            await self._send(request, [their_line.fileno(), their_output])
        finally:
            their_line.close()
            os.close(their_output)
        await fork.attach(line, output, on_output)
        try:
            await asyncio.wait_for(asyncio.shield(fork._spawned), timeout_s)
        except TimeoutError as error:
            raise Unavailable("the fork server does not answer") from error
        return fork

    async def close(self) -> bool:
        """Ends the server and every fork; true once nothing of them lives."""
        self._loop.remove_reader(self._control)
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, _SERVER_END_S)
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        self._lost()
        proofs = await asyncio.gather(*(fork.kill() for fork in self._forks.values()))
        if self._cleaning is not None:
            await self._cleaning
        return all(proofs)

    async def _send(self, body: bytes, fds: list[int]) -> None:
        while True:
            try:
                socket.send_fds(self._control, [body], fds)
            except BlockingIOError:
                await asyncio.sleep(0.01)  # the server is busy forking
            except OSError as error:
                raise Unavailable(f"the fork server is gone: {error}") from error
            else:
                return

    def _hear(self) -> None:
        while True:
            try:
                body = self._control.recv(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                body = b""
            if not body:
                self._loop.remove_reader(self._control)
                self._lost()
                self._cleaning = self._loop.create_task(self._clean())
                return
            self._handle(decode(body, SERVER_REPORTS))

    def _handle(self, report: ServerReport) -> None:
        match report:
            case Hello():
                self._hello.set_result(report)
            case Spawned():
                self._forks[report.process_id].spawned(report)
            case Exited():
                self._forks.pop(report.process_id).exited(report)

    def _lost(self) -> None:
        """The server has ended and its forks with it, as the kernel saw to."""
        if not self._hello.done():
            self._hello.set_exception(Unavailable("it ended before it was ready"))
        if not self.gone.done():
            self.gone.set_result(None)
        for fork in self._forks.values():
            if not fork._spawned.done():
                fork._spawned.set_exception(Unavailable("the fork server is gone"))
            fork.exited(Exited(process_id=fork.id, signal=9))

    async def _clean(self) -> None:
        """What the forks had started outlives a server that was killed: end it too."""
        for fork in list(self._forks.values()):
            if fork._spawned.done() and fork._spawned.exception() is None:
                await fork.kill()


def _execute(control: int, preload: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """One thread in every library that would start more, as a process with threads must not fork."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    arguments = ["--control-fd", str(control), "--parent", str(os.getpid()), "--preload", *preload]
    return subprocess.Popen(
        [sys.executable, "-m", "hadare.training.forkserver", *arguments],
        env={**os.environ, **single, **env, MARKER: marker_placeholder()},
        pass_fds=[control],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
