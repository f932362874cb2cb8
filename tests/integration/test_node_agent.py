"""A real node agent process on a real NATS, with a fork server and forks that really train."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from builders_leases import a_lease, a_spec
from hadare.model.devices import Heartbeat
from hadare.model.leases import Revoked
from hadare.runtime.nats_connection import NatsBackplane
from hadare.wire.subjects import HEARTBEAT, NODES, WEIGHTS
from real_agents import COMMAND, NODE, PATIENCE_S, TINY, Agent, agent, until

__all__ = ["agent"]  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.timeout(120)]


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
