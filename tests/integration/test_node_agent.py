"""A real node agent process on a real NATS, with a fork server and forks that really train."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from builders_leases import a_lease, a_spec
from hadare.model.devices import Heartbeat, NodeInventory
from hadare.model.jobs import ObjectRef
from hadare.model.leases import ForkResult, Lease, LeaseAnswer, ResultAnswer, Revoke, Revoked
from hadare.runtime.bus import Identity, Route
from hadare.runtime.nats_connection import NatsBackplane
from hadare.training.processes import marker_of, process_table
from hadare.wire.subjects import GRANT, HEARTBEAT, NODES, RESULT, REVOKE, WEIGHTS
from hadare_node_agent.leftovers import WorkDirectory
from nats_fixtures import Connect

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.timeout(120)]

TESTS = Path(__file__).parents[1]
NODE = "north"
TINY = "node_agent_workloads:Tiny"
COMMAND = [sys.executable, "-m", "hadare_node_agent"]
PATIENCE_S = 60.0


@dataclass
class Agent:
    """One agent process, and the tracker and asker that it talks to."""

    backplane: NatsBackplane
    folder: Path
    environment: dict[str, str]
    results: asyncio.Queue[ForkResult] = field(default_factory=asyncio.Queue)
    process: subprocess.Popen[bytes] | None = None
    deaf: bool = False

    async def serve_tracker(self) -> None:
        async def on_result(result: ForkResult) -> ResultAnswer:
            if self.deaf:
                await asyncio.sleep(3600)
            await self.results.put(result)
            return ResultAnswer(counted=True)

        identity = Identity(name="tracker", version="1.0.0", description="a fake")
        await self.backplane.bus.serve(identity, [Route(RESULT, on_result)])

    async def start(self) -> NodeInventory:
        """Starts the process and waits for its inventory."""
        before = await self.backplane.table(NODES).get(NODE)
        known = before.record.incarnation if before else ""
        self.process = self._execute()
        async with asyncio.timeout(PATIENCE_S):
            async for change in self.backplane.table(NODES).watch():
                if change.entry is not None and change.entry.record.incarnation != known:
                    return change.entry.record
        raise AssertionError("the watch ended")

    def _execute(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(COMMAND, env=self.environment, cwd=self.folder)

    async def grant(self, lease: Lease) -> LeaseAnswer:
        return await self.backplane.bus.ask(GRANT, lease, timeout_s=10.0, node=NODE)

    async def revoke(self, job: str) -> Revoked:
        return await self.backplane.bus.ask(REVOKE, Revoke(job_id=job), timeout_s=30.0, node=NODE)

    async def result(self) -> ForkResult:
        return await asyncio.wait_for(self.results.get(), PATIENCE_S)

    async def version_zero(self, **spec: Any) -> ObjectRef:
        lease = a_lease(kind="init", node=NODE, spec=a_spec(**{"workload": TINY, **spec}), duration_s=60.0)
        assert (await self.grant(lease)).accepted
        result = await self.result()
        assert result.object is not None, result.failure
        return result.object

    async def signal(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, 30)

    def forks(self) -> list[int]:
        """Living processes that carry a marker of this agent's folder."""
        place = WorkDirectory(self.folder / "work", NODE).marker_prefix("")[:-1]
        return [pid for pid in process_table() if marker_of(pid).startswith(place)]


@pytest.fixture
async def agent(connect: Connect, nats_url: str, prefix: str, tmp_path: Path) -> AsyncIterator[Agent]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH")))),
        "HADARE_NATS_URL": nats_url,
        "HADARE_PREFIX": prefix,
        "HADARE_NODE": NODE,
        "HADARE_DEVICES": "1:V100,1:T4",
        "HADARE_WORK_DIR": str(tmp_path / "work"),
        "HADARE_WORKLOADS": ",".join(
            f"node_agent_workloads:{name}" for name in ("Tiny", "Littering", "Raising", "Sleeping")
        ),
        "HADARE_BASE_RATE": "50",
        "HADARE_STOP_GRACE_S": "2",
        "HADARE_CAPACITY_GB": "1",
    }
    agent = Agent(await connect("test"), tmp_path, environment)
    await agent.serve_tracker()
    yield agent
    if agent.process is not None:
        agent.process.kill()
        agent.process.wait(10)
    await until(lambda: not agent.forks())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - other processes set no event of ours
            await asyncio.sleep(0.05)


async def heard(backplane: NatsBackplane, act: Callable[[], Awaitable[None]], count: int) -> list[Heartbeat]:
    beats: list[Heartbeat] = []
    enough = asyncio.Event()

    async def hear(beat: Heartbeat) -> None:
        beats.append(beat)
        if len(beats) >= count:
            enough.set()

    subscription = await backplane.bus.subscribe(HEARTBEAT, hear, node=NODE)
    await act()
    await asyncio.wait_for(enough.wait(), PATIENCE_S)
    await subscription.stop()
    return beats


async def test_a_lease_trains_for_real_at_the_emulated_rate(agent: Agent, tmp_path: Path) -> None:
    inventory = await agent.start()
    assert [device.type for device in inventory.devices] == ["V100", "T4"]
    assert TINY in inventory.workloads
    base = await agent.version_zero()
    spec = a_spec(workload=TINY)

    train = a_lease("apple", 1, node=NODE, spec=spec, base=base, duration_s=5.0, quota=10**6, evaluate_base=True)
    assert (await agent.grant(train)).accepted
    result = await agent.result()
    assert (result.reason, result.failure) == ("clock", None)
    assert result.nominal_rate == 50.0
    assert result.steps / result.trained_s == pytest.approx(50.0, rel=0.05)
    assert result.evaluation is not None
    assert result.evaluation.sha256 == base.sha256

    assert result.object is not None
    evaluate = a_lease("apple", 1, kind="evaluate", node=NODE, spec=spec, base=result.object, duration_s=30.0)
    assert (await agent.grant(evaluate)).accepted
    evaluated = await agent.result()
    assert evaluated.evaluation is not None
    assert evaluated.evaluation.metrics["size"] < result.evaluation.metrics["size"], "training shrinks the weights"

    warm = a_lease("apple", 2, node=NODE, spec=spec, base=result.object, duration_s=60.0, quota=25)
    assert (await agent.grant(warm)).accepted
    second = await agent.result()
    assert (second.reason, second.steps) == ("quota", 25)
    fetched = tmp_path / "fetched"
    assert second.object is not None
    await agent.backplane.objects(WEIGHTS).get(second.object, fetched)
    events = await agent.backplane.journal.read("node", NODE)
    started = [event.event.data for event in events if event.event.what == "lease_started"]
    assert [data["cold"] for data in started if data["kind"] == "train"] == [True, False]


async def test_user_code_that_raises_fails_its_lease_with_the_traceback(agent: Agent) -> None:
    await agent.start()
    base = await agent.version_zero()
    spec = a_spec(workload="node_agent_workloads:Raising")
    await agent.grant(a_lease(node=NODE, spec=spec, base=base, duration_s=30.0))
    failure = (await agent.result()).failure
    assert failure is not None
    assert (failure.kind, failure.node_specific) == ("exception", False)
    assert "no such luck" in failure.tail


async def test_a_workload_that_cannot_be_imported_here_is_a_fault_of_the_node(agent: Agent) -> None:
    await agent.start()
    await agent.grant(a_lease(kind="init", node=NODE, spec=a_spec(workload="no.such:Thing"), duration_s=30.0))
    failure = (await agent.result()).failure
    assert failure is not None
    assert (failure.kind, failure.node_specific) == ("import", True)


async def test_a_revoke_ends_grandchildren_in_sessions_of_their_own(agent: Agent) -> None:
    await agent.start()
    littering = "node_agent_workloads:Littering"
    base = await agent.version_zero()
    spec = a_spec(workload=littering)
    await agent.grant(a_lease(node=NODE, spec=spec, base=base, duration_s=60.0, quota=10**6))
    await until(lambda: len(agent.forks()) == 2)
    answer = await agent.revoke("apple")
    assert answer == Revoked(ended=("apple.1.0.0",), free=True)
    assert agent.forks() == []
    assert (await agent.result()).reason == "revoked"


async def test_a_fork_that_hangs_is_killed_and_its_device_trains_again(agent: Agent) -> None:
    await agent.start()
    base = await agent.version_zero()
    hanging = a_spec(workload="node_agent_workloads:Sleeping")
    await agent.grant(a_lease("apple", 1, node=NODE, spec=hanging, base=base, duration_s=3.0, quota=10**6))
    failure = (await agent.result()).failure
    assert failure is not None
    assert failure.kind == "hung"
    await agent.grant(a_lease("pear", 2, node=NODE, spec=a_spec(workload=TINY), base=base, duration_s=30.0, quota=5))
    assert (await agent.result()).steps == 5


async def test_a_fork_server_that_dies_fails_its_leases_and_is_replaced(agent: Agent) -> None:
    await agent.start()
    base = await agent.version_zero()
    spec = a_spec(workload=TINY)
    await agent.grant(a_lease("apple", 1, node=NODE, spec=spec, base=base, duration_s=60.0, quota=10**6))
    await until(lambda: len(agent.forks()) == 1)
    assert agent.process is not None
    (server,) = psutil.Process(agent.process.pid).children()
    server.kill()
    failure = (await agent.result()).failure
    assert failure is not None
    assert failure.kind == "killed"
    await agent.grant(a_lease("apple", 2, node=NODE, spec=spec, base=base, duration_s=60.0, quota=5))
    assert (await agent.result()).steps == 5


async def test_what_a_killed_agent_leaves_behind_is_ended_by_the_next_one(agent: Agent) -> None:
    first = await agent.start()
    base = await agent.version_zero()
    spec = a_spec(workload="node_agent_workloads:Littering")
    await agent.grant(a_lease(node=NODE, spec=spec, base=base, duration_s=60.0, quota=10**6))
    await until(lambda: len(agent.forks()) == 2)
    await agent.signal(signal.SIGKILL)
    second = await agent.start()
    assert second.incarnation != first.incarnation
    assert agent.forks() == []
    assert (await agent.grant(a_lease("apple", 2, node=NODE, spec=a_spec(workload=TINY), base=base, quota=5))).accepted
    assert (await agent.result()).steps == 5


async def test_sigterm_hands_back_what_there_is_and_exits_with_status_0(agent: Agent) -> None:
    await agent.start()
    base = await agent.version_zero()
    await agent.grant(a_lease(node=NODE, spec=a_spec(workload=TINY), base=base, duration_s=60.0, quota=10**6))
    await until(lambda: len(agent.forks()) == 1)
    beats = await heard(agent.backplane, _nothing, 2)
    assert beats[-1].busy == {"0": "apple.1.0.0"}
    assert await agent.signal(signal.SIGTERM) == 0
    result = await agent.result()
    assert result.reason == "drained"
    assert result.steps > 0
    assert agent.forks() == []


async def test_a_result_that_nobody_took_is_delivered_after_a_restart(agent: Agent) -> None:
    await agent.start()
    base = await agent.version_zero()
    agent.deaf = True
    await agent.grant(a_lease(node=NODE, spec=a_spec(workload=TINY), base=base, duration_s=60.0, quota=5))
    kept = agent.folder / "work" / "results" / "apple.1.0.0.msgpack"
    await until(kept.exists)
    await agent.signal(signal.SIGKILL)
    agent.deaf = False
    await agent.start()
    assert (await agent.result()).steps == 5
    await until(lambda: not kept.exists())


async def test_a_second_agent_in_the_same_folder_does_not_start(agent: Agent) -> None:
    await agent.start()
    second = await asyncio.create_subprocess_exec(
        *COMMAND, env=agent.environment, cwd=agent.folder, stderr=subprocess.PIPE
    )
    _, said = await asyncio.wait_for(second.communicate(), PATIENCE_S)
    assert second.returncode != 0
    assert b"another agent works in" in said


async def test_a_second_agent_under_the_same_name_does_not_start_and_the_first_keeps_its_place(agent: Agent) -> None:
    first = await agent.start()
    elsewhere = {**agent.environment, "HADARE_WORK_DIR": str(agent.folder / "elsewhere")}
    second = await asyncio.create_subprocess_exec(*COMMAND, env=elsewhere, cwd=agent.folder, stderr=subprocess.PIPE)
    _, said = await asyncio.wait_for(second.communicate(), PATIENCE_S)
    assert second.returncode != 0
    assert b"is taken: an agent runs under it" in said
    known = await agent.backplane.table(NODES).get(NODE)
    assert known is not None
    assert known.record.incarnation == first.incarnation


async def _nothing() -> None:
    await asyncio.sleep(0)
