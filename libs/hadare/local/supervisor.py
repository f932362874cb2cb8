"""Keeps the processes of a local cluster alive, and ends them so that nothing is left.

Run as ``python -m hadare.local.supervisor DIRECTORY`` it serves a directory that was prepared before.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import psutil

from hadare.local import processes
from hadare.local.directory import HOST, held, remembered, write_json
from hadare.local.processes import Program
from hadare.local.programs import programs, spans_directory
from hadare.local.stuck import until_stuck
from hadare.model.errors import Broken, HadareError, Rejected

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 30.0
_LISTENING_LIMIT_S = 30.0
_SPANS_BYTES = 200_000_000


class Supervisor:
    """Runs programs, starts again what dies (with back-off), and writes who lives to ``processes.json``.

    ``told`` hears of every start (the process id) and every end (None) of a program. ``stuck`` returns when the first
    program has to be started anew, and says why.
    """

    def __init__(
        self,
        directory: Path,
        wanted: Sequence[Program],
        say: Callable[[str], None],
        *,
        longest_pause_s: float = _LONGEST_PAUSE_S,
        told: Callable[[str, int | None], None] = lambda _name, _pid: None,
        stuck: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self._directory = directory
        self._wanted = tuple(wanted)
        self._say = say
        self._longest_pause_s = longest_pause_s
        self._told = told
        self._stuck = stuck
        self._ending = asyncio.Event()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._restarts: dict[str, int] = {}

    async def run(self, stop: asyncio.Event, port: int | None = None) -> None:
        """Until ``stop`` is set. The first program starts alone until ``port`` (its own) accepts connections.

        Raises ``Broken`` if in the end a process could not be ended.
        """
        self._clear("left over by a former start")
        first, *others = self._wanted
        self._say(f"starting {', '.join(program.name for program in self._wanted)}")
        tasks = [asyncio.create_task(self._keep(first))]
        try:
            if port is not None:
                await self._until_listening(port, stop)
            tasks += [asyncio.create_task(self._keep(program)) for program in others]
            tasks += [asyncio.create_task(self._mend(first, self._stuck))] if self._stuck else []
            await self._until(stop, tasks)
        finally:
            self._ending.set()
            self._say("ending")
            await self._end_stages()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._clear("still there after its parent ended")
            (self._directory / "processes.json").unlink(missing_ok=True)
            self._say("ended")

    async def _until(self, stop: asyncio.Event, tasks: Sequence[asyncio.Task[None]]) -> None:
        waiting = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        for task in done - {waiting}:
            await task

    async def _until_listening(self, port: int, stop: asyncio.Event) -> None:
        deadline = time.monotonic() + _LISTENING_LIMIT_S
        while not stop.is_set():
            try:
                _, writer = await asyncio.open_connection(HOST, port)
            except OSError as error:
                if time.monotonic() > deadline:
                    log = self._directory / "logs" / f"{self._wanted[0].name}.log"
                    raise Broken(f"{self._wanted[0].name} does not listen on port {port}: see {log}") from error
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return

    async def _keep(self, program: Program) -> None:
        pause = _FIRST_PAUSE_S
        while not self._ending.is_set():
            started = time.monotonic()
            process = processes.start(program, self._directory)
            self._running[program.name] = process
            self._told(program.name, process.pid)
            self._write_state()
            status = await processes.exited(process)
            del self._running[program.name]
            self._told(program.name, None)
            if self._ending.is_set():
                return
            lived = time.monotonic() - started
            pause = _FIRST_PAUSE_S if lived > _STEADY_S else pause
            self._say(f"{program.name} ended after {lived:.1f} s ({_meaning(status)}); again in {pause:.1f} s")
            processes.end_marked(self._directory, program.name)
            self._restarts[program.name] = self._restarts.get(program.name, 0) + 1
            self._write_state()
            await self._pause(pause)
            pause = min(2 * pause, self._longest_pause_s)

    async def _mend(self, program: Program, stuck: Callable[[], Awaitable[str]]) -> None:
        """Ends the program whenever it is stuck; it is started again as after any other end."""
        while not self._ending.is_set():
            waiting = asyncio.ensure_future(stuck())
            ending = asyncio.create_task(self._ending.wait())
            await asyncio.wait({waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            if not waiting.done():
                waiting.cancel()
                return
            process = self._running.get(program.name)
            if process is not None:
                self._say(f"{program.name} is stuck and is started anew: {waiting.result()}")
                process.kill()

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._ending.wait(), seconds)
        except TimeoutError:
            return

    async def _end_stages(self) -> None:
        for stage in sorted({program.stage for program in self._wanted}):
            members = [p for p in self._wanted if p.stage == stage and p.name in self._running]
            await asyncio.gather(*(self._end(program) for program in members))

    async def _end(self, program: Program) -> None:
        process = self._running[program.name]
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(processes.exited(process), program.grace_s)
        except TimeoutError:
            self._say(f"{program.name} did not end within {program.grace_s:.0f} s of being asked: killed")
            tree = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            await processes.exited(process)
            await asyncio.to_thread(processes.end, tree, 0.0)

    def _clear(self, why: str) -> None:
        found = processes.marked(self._directory)
        if not found:
            return
        self._say(f"ending {len(found)} processes {why}: {', '.join(str(process.pid) for process in found)}")
        left = processes.end_marked(self._directory)
        if left:
            raise Broken(f"these processes cannot be ended: {', '.join(map(str, left))}")

    def _write_state(self) -> None:
        state = {
            program.name: {
                "pid": self._running[program.name].pid if program.name in self._running else None,
                "restarts": self._restarts.get(program.name, 0),
            }
            for program in self._wanted
        }
        write_json(self._directory / "processes.json", state)


def _meaning(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


async def serve(directory: Path, say: Callable[[str], None], stop: asyncio.Event) -> None:
    """Runs the cluster that ``cluster.json`` describes until SIGINT, SIGTERM or ``stop``.

    Raises ``Rejected`` (409) if another supervisor holds the directory.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    with held(directory):
        cluster = remembered(directory)
        if cluster is None:
            raise Rejected(404, f"there is no cluster in {directory}")
        processes.trim(spans_directory(directory), _SPANS_BYTES)
        wanted = programs(cluster, directory)
        stuck = partial(until_stuck, directory / "nats")
        await Supervisor(directory, wanted, say, stuck=stuck).run(stop, cluster.port)


def log_line(text: str) -> None:
    """A line on standard error, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> int:
    try:
        asyncio.run(serve(Path(sys.argv[1]), log_line, asyncio.Event()))
    except HadareError as error:
        log_line(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
