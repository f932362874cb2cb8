"""Real fork servers and forks: they train, stay warm, and whatever user code does, nothing of it is left behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hadare.training.artifacts import listed
from hadare.training.forkclient import ForkProcess, ForkServer, failure_of
from hadare.training.processes import marker_of, members, read_process
from hadare.training.protocol import (
    ARTIFACTS_VARIABLE,
    Done,
    Evaluate,
    Evaluated,
    Exit,
    Failed,
    ForkSpec,
    Init,
    Progress,
    Ready,
    Stop,
    Train,
)
from hadare.training.tensorfile import Reader
from hadare.training.weights import read_meta
from hadare.training.workloads import BUILTIN

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

HOSTILE = Path(__file__).parent / "hostile"
PRELOAD = tuple(workload.partition(":")[0] for workload in BUILTIN)
DIGITS = ForkSpec(workload=BUILTIN[0], batch_size=16, config={"hidden": 16})

_numbers = itertools.count()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server() -> AsyncIterator[ForkServer]:
    running = await ForkServer.start([*PRELOAD, "no.such.module"])
    yield running
    assert await running.close()


class Fork:
    """A fork with what it has said so far."""

    def __init__(self, process: ForkProcess, output: list[str]) -> None:
        self.process = process
        self.output = output
        self._reports = aiter(process)

    async def until(self, kind: type[Any]) -> Any:
        """The next report of this kind; a failure ends the test."""
        async with asyncio.timeout(60):
            async for report in self._reports:
                if isinstance(report, kind):
                    return report
                assert not isinstance(report, Failed), report.failure
        raise AssertionError(f"ended without {kind.__name__}: {self.process.exit}, {self.output}")

    async def train(self, base: Path, out: Path, **more: Any) -> Done:
        await self.process.send(a_training(base, out, **more))
        done: Done = await self.until(Done)
        return done


def a_training(base: Path, out: Path, **more: Any) -> Train:
    given = {"quota": 5, "remaining_s": 60.0, "data_seed": 1, **more}
    return Train(base=str(base), out=str(out), **given)


async def start(server: ForkServer, spec: ForkSpec, env: dict[str, str] | None = None) -> Fork:
    output: list[str] = []
    process = await server.spawn(f"test.{os.getpid()}.{next(_numbers)}", spec, env=env, on_output=output.append)
    return Fork(process, output)


async def start_with_base(server: ForkServer, spec: ForkSpec, folder: Path) -> tuple[Fork, Path]:
    fork = await start(server, spec)
    await fork.until(Ready)
    await fork.process.send(Init(out=str(folder / "v0")))
    await fork.until(Done)
    return fork, folder / "v0"


def hostile(name: str) -> ForkSpec:
    return ForkSpec(workload=f"hostile_tasks:{name}", path=(str(HOSTILE),))


def wait_until_gone(pid: int, seconds: float) -> None:
    """Returns once the process has ended, by the kernel's word."""
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([watch], [], [], seconds)[0], f"{pid} lives: {read_process(pid)}"
    finally:
        os.close(watch)


async def test_the_server_is_one_thread_and_says_what_it_can_import(server: ForkServer) -> None:
    assert server.hello.threads == 1
    assert set(server.hello.importable) == set(PRELOAD)
    assert "ModuleNotFoundError" in server.hello.failed["no.such.module"]


async def test_a_script_trains_several_leases_in_one_process(server: ForkServer, tmp_path: Path) -> None:
    script = ForkSpec(workload="scripts_for_training:fits", batch_size=16, path=(str(HOSTILE.parents[1]),))
    fork, base = await start_with_base(server, script, tmp_path)
    await fork.process.send(a_training(base, tmp_path / "one", quota=200, evaluate_base=True))
    untrained: Evaluated = await fork.until(Evaluated)
    first: Done = await fork.until(Done)
    assert (first.steps, first.updates, first.reason) == (200, 200, "quota")
    second = await fork.train(tmp_path / "one", tmp_path / "two", quota=200, data_seed=2)
    await fork.process.send(Evaluate(base=str(tmp_path / "two")))
    trained: Evaluated = await fork.until(Evaluated)
    assert trained.metrics["mse"] < untrained.metrics["mse"]
    assert second.steps == 200
    assert await fork.process.kill()


async def test_a_fork_trains_several_leases_in_one_process(server: ForkServer, tmp_path: Path) -> None:
    fork, base = await start_with_base(server, DIGITS, tmp_path)
    first = await fork.train(base, tmp_path / "one", quota=20, base_sha256="a" * 64)
    second = await fork.train(tmp_path / "one", tmp_path / "two", quota=30, data_seed=2)
    assert (first.steps, first.reason, second.steps, second.samples) == (20, "quota", 30, 480)
    assert second.loss is not None
    assert first.loss is not None
    assert second.loss < first.loss
    assert read_meta(Reader(tmp_path / "one")).base == "a" * 64
    assert fork.process.exit is None
    assert await fork.process.kill()


async def test_a_warm_fork_does_as_a_fresh_one_would(server: ForkServer, tmp_path: Path) -> None:
    """Nothing of the first lease leaks into the second: same base and seed, same weights."""
    fork, base = await start_with_base(server, DIGITS, tmp_path)
    await fork.train(base, tmp_path / "one")
    await fork.train(tmp_path / "one", tmp_path / "two", data_seed=2)
    await fork.train(base, tmp_path / "again")
    other, other_base = await start_with_base(server, DIGITS, tmp_path)
    await other.train(other_base, tmp_path / "fresh")
    first, again, fresh = ((tmp_path / name).read_bytes() for name in ("one", "again", "fresh"))
    assert first == again == fresh
    assert await fork.process.kill()
    assert await other.process.kill()


async def test_a_base_is_evaluated_before_it_is_trained_on(server: ForkServer, tmp_path: Path) -> None:
    fork, base = await start_with_base(server, DIGITS, tmp_path)
    await fork.process.send(Evaluate(base=str(base)))
    alone = await fork.until(Evaluated)
    await fork.until(Done)
    await fork.process.send(a_training(base, tmp_path / "one", evaluate_base=True))
    before = await fork.until(Evaluated)
    await fork.until(Done)
    assert before == alone
    assert set(before.metrics) == {"accuracy", "loss"}
    assert await fork.process.kill()


async def test_files_that_a_task_writes_come_with_its_result(server: ForkServer, tmp_path: Path) -> None:
    fork = await start(server, hostile("Writing"), env={ARTIFACTS_VARIABLE: str(tmp_path / "files")})
    await fork.until(Ready)
    await fork.process.send(Init(out=str(tmp_path / "v0")))
    await fork.until(Done)
    await fork.train(tmp_path / "v0", tmp_path / "one", data_seed=7)
    assert listed(tmp_path / "one") == {"seed.txt": 1}
    assert any("too_large: more than 16 MiB" in line for line in fork.output)
    assert await fork.process.kill()


async def test_a_fork_that_is_stopped_hands_back_what_it_did(server: ForkServer, tmp_path: Path) -> None:
    fork, base = await start_with_base(server, DIGITS, tmp_path)
    await fork.process.send(a_training(base, tmp_path / "one", quota=10**9, report_interval_s=0.01))
    while (await fork.until(Progress)).steps == 0:
        pass
    await fork.process.send(Stop())
    done = await fork.until(Done)
    assert done.reason == "revoked"
    assert done.steps > 0
    assert (tmp_path / "one").exists()
    assert await fork.process.kill()


async def test_a_fork_ends_its_lease_by_the_clock(server: ForkServer, tmp_path: Path) -> None:
    fork, base = await start_with_base(server, DIGITS, tmp_path)
    done = await fork.train(base, tmp_path / "one", quota=10**9, remaining_s=0.3, nominal_rate=100.0)
    assert done.reason == "clock"
    assert 1 <= done.steps <= 30
    assert await fork.process.kill()


async def test_a_fork_leaves_when_it_is_told_to(server: ForkServer, tmp_path: Path) -> None:
    fork, _ = await start_with_base(server, DIGITS, tmp_path)
    await fork.process.send(Exit())
    ended = await asyncio.wait_for(fork.process.wait(), 10)
    assert (ended.code, ended.signal) == (0, 0)


async def test_a_fork_is_a_session_of_its_own_with_its_marker_and_environment(
    server: ForkServer, tmp_path: Path
) -> None:
    fork = await start(server, DIGITS, env={"MY_SETTING": "1"})
    await fork.until(Ready)
    process = read_process(fork.process.pid)
    assert process is not None
    assert process.session == process.group == process.pid
    assert marker_of(process.pid) == fork.process.id
    assert await fork.process.kill()


async def test_a_fork_that_is_killed_is_noticed_at_once(server: ForkServer, tmp_path: Path) -> None:
    fork, base = await start_with_base(server, hostile("Hangs"), tmp_path)
    await fork.process.send(a_training(base, tmp_path / "one"))
    await fork.until(Progress)
    begun = time.monotonic()
    os.kill(fork.process.pid, signal.SIGKILL)
    ended = await asyncio.wait_for(fork.process.wait(), 5)
    assert time.monotonic() - begun < 1.0
    assert ended.signal == signal.SIGKILL
    assert failure_of(ended).kind == "killed"
    assert [report async for report in fork.process] == []


async def test_a_fork_that_ignores_its_lease_is_ended_by_force(server: ForkServer, tmp_path: Path) -> None:
    fork, base = await start_with_base(server, hostile("Hangs"), tmp_path)
    await fork.process.send(a_training(base, tmp_path / "one", remaining_s=0.01))
    await fork.until(Progress)
    await fork.process.send(Stop())
    assert await fork.process.kill()
    assert read_process(fork.process.pid) is None or fork.process.pid not in members(fork.process.pid, 0, "")


@pytest.mark.parametrize(
    ("task", "kind", "message"),
    [
        ("Raises", "exception", "LookupError: no such column"),
        ("Leaves", "exception", "sys.exit(3)"),
        ("Diverges", "not_finite", "the loss is nan after 1 steps"),
        ("SpoilsItsWeights", "not_finite", "holds values that are not finite"),
        ("RunsOutOfMemory", "out_of_memory", "out of memory"),
    ],
)
async def test_a_fork_that_breaks_says_why_and_ends(
    server: ForkServer, tmp_path: Path, task: str, kind: str, message: str
) -> None:
    fork, base = await start_with_base(server, hostile(task), tmp_path)
    await fork.process.send(a_training(base, tmp_path / "one", quota=1))
    async with asyncio.timeout(30):
        reports = [report async for report in fork.process]
    assert isinstance(reports[-1], Failed)
    assert reports[-1].failure.kind == kind
    assert message in reports[-1].failure.message
    assert reports[-1].failure.tail or task == "Leaves"
    assert fork.process.exit is not None
    assert fork.process.exit.code == 1
    assert not (tmp_path / "one").exists()


async def test_a_task_that_cannot_be_built_shows_the_tail_of_its_traceback(server: ForkServer) -> None:
    fork = await start(server, hostile("FailsToBuild"))
    async with asyncio.timeout(30):
        (failed,) = [report async for report in fork.process]
    assert "in build_model" in failed.failure.tail
    assert any("no such layer" in line for line in fork.output)


async def test_a_workload_that_is_not_here_may_be_elsewhere(server: ForkServer) -> None:
    fork = await start(server, ForkSpec(workload="not.installed:Task"))
    async with asyncio.timeout(30):
        (failed,) = [report async for report in fork.process]
    assert (failed.failure.kind, failed.failure.node_specific) == ("import", True)


async def test_a_process_that_vanishes_without_a_word_has_an_exit_status(server: ForkServer, tmp_path: Path) -> None:
    fork, base = await start_with_base(server, hostile("Vanishes"), tmp_path)
    await fork.process.send(a_training(base, tmp_path / "one"))
    assert (await asyncio.wait_for(fork.process.wait(), 10)).code == 7


async def test_an_endless_print_is_bounded_and_does_not_stop_the_fork(server: ForkServer, tmp_path: Path) -> None:
    fork, base = await start_with_base(server, hostile("Chatters"), tmp_path)
    assert (await fork.train(base, tmp_path / "one", quota=2)).steps == 2
    assert await fork.process.kill()
    assert sum(map(len, fork.output)) < 2_000_000


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("task", "processes"), [("LeavesProcesses", 3), ("LoadsInWorkers", 2), ("RunsTorchrun", 3)])
async def test_killing_a_fork_ends_what_it_started_too(server: ForkServer, task: str, processes: int) -> None:
    fork = await start(server, hostile(task))
    await fork.until(Ready)
    left = [int(pid) for line in fork.output if line.startswith("left") for pid in line.split()[1:]]
    assert len(left) == processes
    assert await fork.process.kill()
    assert all((found := read_process(pid)) is None or found.state in "ZX" for pid in left)


async def test_a_server_that_is_killed_takes_its_forks_with_it(tmp_path: Path) -> None:
    own = await ForkServer.start([])
    fork = await start(own, hostile("LeavesProcesses"))
    await fork.until(Ready)
    left = [int(pid) for line in fork.output if line.startswith("left") for pid in line.split()[1:]]
    os.kill(own.pid, signal.SIGKILL)
    await asyncio.wait_for(asyncio.shield(own.gone), 5)
    assert (await asyncio.wait_for(fork.process.wait(), 5)).signal == signal.SIGKILL
    assert await own.close()
    for pid in (fork.process.pid, *left):
        wait_until_gone(pid, 5)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_killing_the_starter_leaves_no_process(number: signal.Signals) -> None:
    command = [sys.executable, str(HOSTILE / "starter.py"), str(HOSTILE)]
    starter = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert starter.stdout is not None
    line = await asyncio.wait_for(starter.stdout.readline(), 60)
    pids = [int(pid) for pid in line.split()]
    assert len(pids) == 5
    starter.send_signal(number)
    await asyncio.wait_for(starter.wait(), 10)
    for pid in pids:
        wait_until_gone(pid, 10)
