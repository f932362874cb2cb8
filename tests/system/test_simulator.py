"""One trace through the services on the memory backplane and through the simulator: the same plans."""

from __future__ import annotations

import pytest

import builders_cluster
from builders_cluster import BASE_RATE, Cluster
from hadare.model.devices import NodeState, NodeStatus
from hadare.model.plans import ForkPlan, Gang
from hadare.runtime.memory import MemoryHub
from hadare.runtime.virtual import run_virtually
from hadare.scheduling.devices import relative_speed
from hadare.simulator.engine import Simulation, forks_jobs
from hadare.simulator.jobs import SimJob, record_of
from hadare.simulator.settings import Settings, SimNode
from hadare.wire import subjects

NODES = (("n1", "V100"), ("n2", "P100"), ("n3", "V100"), ("n4", "K80"))
SPEEDS = {"V100": 1.0, "P100": 0.7, "K80": 0.3}
ROUND_S = 10.0
Placed = tuple[str, int, Gang, int]


def the_jobs(speeds: dict[str, float], batch: int = 32, gangs: tuple[int, ...] = (1,) * 6) -> list[SimJob]:
    rates = {kind: BASE_RATE * speed for kind, speed in speeds.items()}
    return [
        SimJob(
            job_id=f"job-{number}",
            arrival_s=0.0,
            model="a model",
            batch_size=batch,
            total_steps=steps,
            fork_rates=rates,
            gang_rates=rates,
            gang=gang,
        )
        for number, (steps, gang) in enumerate(zip((900, 350, 2000, 620, 1400, 80), gangs, strict=True))
    ]


def placed(fork: ForkPlan) -> Placed:
    return fork.job_id, fork.fork, fork.gang, fork.quota


def without_quotas(plans: list[set[Placed]]) -> list[set[tuple[str, int, Gang]]]:
    return [{(job, fork, gang) for job, fork, gang, _ in plan} for plan in plans]


async def plans_of_the_services(policy: str, jobs: list[SimJob]) -> list[set[Placed]]:
    """The allocator sees the nodes ready first, and then all jobs, each with its initial model, at once."""
    cluster = Cluster(MemoryHub(), round_s=ROUND_S)
    await initial_models(cluster, jobs, policy)
    cluster.start_allocator(policy)
    states = cluster.hub.connect("user").table(subjects.NODE_STATES)
    ready: set[str] = set()
    async for change in states.watch():
        if change.entry is not None and change.entry.record.reason == "":
            ready.add(change.name)
        if len(ready) == len(NODES):
            break
    for job in jobs:
        await cluster.submit(record_of(job, forks_jobs(policy)))
    cluster.start_tracker()
    for job in jobs:
        await cluster.until(
            job.job_id, lambda progress: progress.state.ended, limit_s=3600.0
        )  # blind policies are slow
    pages = sorted(await cluster.plans(), key=lambda page: page.round)
    await cluster.stop()
    return [{placed(fork) for fork in page.forks} for page in pages if page.forks]


async def initial_models(cluster: Cluster, jobs: list[SimJob], policy: str) -> None:
    """Jobs that a tracker has initialised before there was an allocator; their records are taken away again."""
    cluster.start_pricing()
    cluster.start_tracker()
    states = cluster.hub.connect("allocator before").table(subjects.NODE_STATES)
    for node, kind in NODES:
        cluster.start_agent(node, kind)
        await states.put(node, NodeStatus(node=node, state=NodeState.READY, reason="for the initial models"))
    for job in jobs:
        await cluster.submit(record_of(job, forks_jobs(policy)))
    for job in jobs:
        await cluster.until(job.job_id, lambda progress: progress.version == 0)
    await cluster.kill("tracker")
    records = cluster.hub.connect("user").table(subjects.JOBS)
    for job in jobs:
        await records.delete(job.job_id)


def plans_of_the_simulator(policy: str, jobs: list[SimJob]) -> list[set[Placed]]:
    plans: list[set[Placed]] = []
    nodes = [SimNode(name=name, devices={kind: 1}) for name, kind in NODES]
    settings = Settings(round_s=ROUND_S)
    Simulation(jobs, nodes, policy, settings, lambda plan: plans.append({placed(fork) for fork in plan.forks})).run()
    return [plan for plan in plans if plan]


@pytest.mark.parametrize("policy", ["hadare", "hadar", "gavel", "tiresias", "yarn-cs"])
def test_what_was_simulated_is_what_runs(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders_cluster, "relative_speed", SPEEDS.__getitem__)
    jobs = the_jobs(SPEEDS)
    live = run_virtually(plans_of_the_services(policy, jobs))
    simulated = plans_of_the_simulator(policy, jobs)
    assert len(live) > 5
    assert simulated == live


EVEN = {"V100": 0.9, "P100": 0.3, "K80": 0.1}
"""Any two of them divide the batch of two ranks without rest, and do whole steps in a round."""

ESTIMATED = {kind: relative_speed(kind) for kind in SPEEDS}
"""As first estimated: gangs of mixed types are balanced from their first round on."""


@pytest.mark.parametrize(
    ("policy", "speeds", "gangs"),
    [
        ("hadar", ESTIMATED, (2, 1, 2, 2, 1, 2)),
        ("tiresias", EVEN, (2, 1, 2, 2, 1, 2)),
        ("yarn-cs", EVEN, (2, 1, 2, 2, 1, 2)),
        ("gavel", EVEN, (2, 1, 1, 1, 1, 2)),  # with more gangs turns tie
    ],
)
def test_gangs_are_placed_live_as_they_were_simulated(
    policy: str, speeds: dict[str, float], gangs: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quotas aside, which go by how well rates are known."""
    monkeypatch.setattr(builders_cluster, "relative_speed", speeds.__getitem__)
    jobs = the_jobs(speeds, batch=4000, gangs=gangs)
    live = run_virtually(plans_of_the_services(policy, jobs))
    simulated = plans_of_the_simulator(policy, jobs)
    assert any(sum(member.count for member in gang) > 1 for plan in live for _, _, gang, _ in plan)
    assert without_quotas(simulated) == without_quotas(live)
