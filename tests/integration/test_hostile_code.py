"""Hostile user code, kind by kind, in the forks of a real agent: it harms its own fork only, and it shows why."""

from __future__ import annotations

import asyncio

import pytest

from builders_leases import a_lease, a_spec
from real_agents import NODE, TINY, Agent, agent

__all__ = ["agent"]  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("Raising", "exception", "no such luck"),
        ("Leaving", "exception", "sys.exit(3)"),
        ("Vanishing", "killed", "ended with status 0 before its task was made"),
        ("Unspeakable", "exception", "Mute: (its text could not be made: KeyError)"),
        ("Multiplying", "exception", "processes at once; a fork may have 40"),
        ("Swelling", "out_of_memory", "GiB of memory; a fork may have 0.40 GiB here"),
        ("Spoiling", "not_finite", "the loss is nan"),
        ("Sleeping", "hung", "did not hand back in time"),
        ("Clinging", "hung", "did not hand back in time"),
    ],
)
async def test_hostile_code_fails_its_own_fork_with_the_reason_while_its_neighbour_trains_on(
    agent: Agent, name: str, kind: str, message: str
) -> None:
    agent.environment |= {"HADARE_FORK_PROCESSES": "40", "HADARE_FORK_MEMORY_GB": "0.4"}
    await agent.start()
    base = await agent.version_zero()
    good = a_lease("good", 1, node=NODE, spec=a_spec(workload=TINY), base=base, quota=100, duration_s=200.0)
    bad = a_lease(
        "bad",
        1,
        node=NODE,
        spec=a_spec(workload=f"node_agent_workloads:{name}"),
        base=base,
        quota=100_000,
        duration_s=4.0 if kind in ("hung", "not_finite") else 60.0,
        devices=(1,),
        device_type="T4",
    )
    assert (await agent.grant(good)).accepted
    assert (await agent.grant(bad)).accepted
    results = {result.key.job_id: result for result in (await agent.result(), await agent.result())}
    failure = results["bad"].failure
    assert failure is not None
    assert (failure.kind, message in failure.message) == (kind, True), failure
    assert (results["good"].failure, results["good"].steps) == (None, 100)
    again = a_lease(
        "after", 2, node=NODE, spec=a_spec(workload=TINY), base=base, quota=5, devices=(1,), device_type="T4"
    )
    assert (await agent.grant(again)).accepted
    assert (await agent.result()).steps == 5, "the device is free again"


async def test_endless_printing_is_cut_short_and_costs_no_step(agent: Agent) -> None:
    await agent.start()
    base = await agent.version_zero()
    spec = a_spec(workload="node_agent_workloads:Chattering")
    lease = a_lease("chatty", 1, node=NODE, spec=spec, base=base, quota=20, duration_s=100.0)
    assert (await agent.grant(lease)).accepted
    assert (await agent.result()).steps == 20
    async with asyncio.timeout(30):
        told = await agent.backplane.journal.logs("chatty", limit=1000)
    assert sum(len(line.text) for _, line in told) < 2_000_000, "20 × 1000 lines of 200 characters are 4 MB"
