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
from collections.abc import Mapping, Sequence
from typing import Self

from hadare.model.errors import Broken, Unavailable
from hadare.training.forkprocess import ForkProcess, OnOutput, failure_of
from hadare.training.linux import MARKER, marker_placeholder
from hadare.training.protocol import (
    MAX_MESSAGE_BYTES,
    SERVER_REPORTS,
    Exited,
    ForkSpec,
    Hello,
    ServerReport,
    Spawn,
    Spawned,
    decode,
    encode,
)

__all__ = ["ForkProcess", "ForkServer", "OnOutput", "failure_of"]

_SERVER_END_S = 10.0


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
        cls,
        preload: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
        python: str = "",
    ) -> Self:
        """Starts a server that has imported ``preload``. Raises ``Broken`` if it does not come up.

        ``python``: the interpreter, '' for this one; hadare of the same version must be installed in it.
        Call it from the main thread: the server ends with the thread that started it.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                process = _execute(python or sys.executable, theirs.fileno(), preload, env or {})
            except OSError as error:
                ours.close()
                raise Broken(f"the fork server did not start: {error}") from error
        server = cls(process, ours)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(server._hello)
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
        fork = self._forks[process_id] = ForkProcess(process_id)
        line, their_line = socket.socketpair()
        output, their_output = os.pipe()
        request = encode(Spawn(process_id=process_id, spec=spec, env=dict(env or {})))
        try:
            await self._send(request, [their_line.fileno(), their_output])
        finally:
            their_line.close()
            os.close(their_output)
        await fork.attach(line, output, on_output)
        await fork.until_spawned(timeout_s)
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
        """The server has ended, for whatever reason."""
        if not self._hello.done():
            self._hello.set_exception(Unavailable("it ended before it was ready"))
        if not self.gone.done():
            self.gone.set_result(None)
        for fork in self._forks.values():
            fork.lost()

    async def _clean(self) -> None:
        """What the forks had started outlives a server that was killed: end it too."""
        for fork in list(self._forks.values()):
            await fork.kill()


def _execute(python: str, control: int, preload: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """One thread in every library that would start more, as a process with threads must not fork."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    arguments = ["--control-fd", str(control), "--parent", str(os.getpid()), "--preload", *preload]
    return subprocess.Popen(
        [python, "-m", "hadare.training.forkserver", *arguments],
        env={**os.environ, **single, **env, MARKER: marker_placeholder()},
        pass_fds=[control],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
