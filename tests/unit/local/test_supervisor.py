import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from hadare.local import processes
from hadare.local.processes import Program
from hadare.local.supervisor import Supervisor
from hadare.model.errors import Broken

WAITS = "import signal; signal.pause()"
NOTES_ITS_END = (
    "import signal, sys\n"
    "def end(*_):\n"
    "    with open('ends', 'a') as ends: ends.write(sys.argv[1] + '\\n')\n"
    "    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, end); open(sys.argv[1] + '.up', 'w').close(); signal.pause()"
)
IGNORES_SIGTERM = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('stubborn.up', 'w').close(); signal.pause()"
)


def a_program(name: str, code: str = WAITS, stage: int = 1, grace_s: float = 10.0) -> Program:
    return Program(name=name, command=(sys.executable, "-c", code, name), stage=stage, grace_s=grace_s)


@asynccontextmanager
async def running(directory: Path, wanted: Sequence[Program]) -> AsyncIterator[list[str]]:
    said: list[str] = []
    stop = asyncio.Event()
    task = asyncio.create_task(Supervisor(directory, wanted, said.append).run(stop))
    try:
        yield said
    finally:
        stop.set()
        await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - other processes write the files that are looked at
            await asyncio.sleep(0.01)


def state_of(directory: Path) -> dict[str, dict[str, int | None]]:
    path = directory / "processes.json"
    return json.loads(path.read_text()) if path.exists() else {}


async def pid_of(directory: Path, name: str) -> int:
    await until(lambda: state_of(directory).get(name, {}).get("pid") is not None)
    pid = state_of(directory)[name]["pid"]
    assert pid is not None
    return pid


async def test_every_program_runs_and_nothing_is_left_after_the_end(tmp_path: Path) -> None:
    async with running(tmp_path, [a_program("a"), a_program("b")]):
        pids = {await pid_of(tmp_path, "a"), await pid_of(tmp_path, "b")}
        assert {p.pid for p in processes.marked(tmp_path)} == pids
    assert processes.marked(tmp_path) == []
    assert not (tmp_path / "processes.json").exists()


async def test_a_program_that_is_killed_is_started_again_and_this_is_said(tmp_path: Path) -> None:
    async with running(tmp_path, [a_program("a")]) as said:
        pid = await pid_of(tmp_path, "a")
        psutil.Process(pid).kill()
        await until(lambda: state_of(tmp_path).get("a", {}).get("pid") not in (None, pid))
        assert state_of(tmp_path)["a"]["restarts"] == 1
    assert any("a ended" in line and "SIGKILL" in line for line in said)


async def test_pauses_grow_while_a_program_keeps_dying(tmp_path: Path) -> None:
    async with running(tmp_path, [a_program("a", "raise SystemExit(7)")]) as said:
        await until(lambda: len(said) >= 4)
    assert "exit status 7" in said[1]
    assert [line.rsplit("again in ", 1)[1] for line in said[1:4]] == ["0.5 s", "1.0 s", "2.0 s"]


async def test_stages_end_in_order(tmp_path: Path) -> None:
    wanted = [a_program(name, NOTES_ITS_END, stage) for name, stage in (("bus", 2), ("service", 1), ("agent", 0))]
    async with running(tmp_path, wanted):
        await until(lambda: all((tmp_path / f"{p.name}.up").exists() for p in wanted))
    assert (tmp_path / "ends").read_text().split() == ["agent", "service", "bus"]


async def test_a_program_that_ignores_being_asked_is_killed_after_its_grace(tmp_path: Path) -> None:
    async with running(tmp_path, [a_program("a", IGNORES_SIGTERM, grace_s=0.2)]) as said:
        await until(lambda: (tmp_path / "stubborn.up").exists())
    assert any("did not end within" in line for line in said)
    assert processes.marked(tmp_path) == []


async def test_what_a_former_start_left_behind_is_ended_first(tmp_path: Path) -> None:
    stray = processes.start(a_program("stray"), tmp_path)
    async with running(tmp_path, [a_program("a")]) as said:
        await pid_of(tmp_path, "a")
        assert stray.pid not in [p.pid for p in processes.marked(tmp_path)]
    assert any("left over by a former start" in line for line in said)
    stray.wait()


async def test_a_first_program_that_never_listens_is_a_broken_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hadare.local.supervisor._LISTENING_LIMIT_S", 0.1)
    supervisor = Supervisor(tmp_path, [a_program("bus"), a_program("b")], print)
    with pytest.raises(Broken, match="bus does not listen on port 1"):
        await supervisor.run(asyncio.Event(), port=1)
    assert processes.marked(tmp_path) == []


async def test_every_start_and_every_end_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int | None]] = []
    stop = asyncio.Event()
    supervisor = Supervisor(tmp_path, [a_program("a")], print, told=lambda name, pid: told.append((name, pid)))
    task = asyncio.create_task(supervisor.run(stop))
    first = await pid_of(tmp_path, "a")
    psutil.Process(first).kill()
    await until(lambda: len(told) == 3)
    stop.set()
    await task
    assert told == [("a", first), ("a", None), ("a", told[2][1]), ("a", None)]
    assert told[2][1] not in (None, first)


async def test_the_bus_is_started_anew_when_it_is_stuck(tmp_path: Path) -> None:
    wedged, stop = asyncio.Event(), asyncio.Event()

    async def stuck() -> str:
        await wedged.wait()
        wedged.clear()
        return "no space left"

    said: list[str] = []
    supervisor = Supervisor(tmp_path, [a_program("bus"), a_program("b")], said.append, stuck=stuck)
    task = asyncio.create_task(supervisor.run(stop))
    first, other = await pid_of(tmp_path, "bus"), await pid_of(tmp_path, "b")
    wedged.set()
    await until(lambda: state_of(tmp_path)["bus"]["pid"] not in (None, first))
    assert state_of(tmp_path)["b"]["pid"] == other
    stop.set()
    await task
    assert "bus is stuck and is started anew: no space left" in said
