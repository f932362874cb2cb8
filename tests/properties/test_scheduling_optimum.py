"""Plans against the optimum of their rounds: never more, hardly less, and never worse for a node that joins."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from builders_scheduling import SPEED, a_snapshot, rates
from builders_snapshots import NODES, snapshots, some_jobs
from hadare.model.devices import NodeState
from hadare.model.plans import JobView, NodeView, PriceBook, PriceCurve, Snapshot
from hadare.scheduling.optimum import Yardstick
from hadare.scheduling.policies import Hadar, policy_of
from hadare.scheduling.utility import utility_names

SOME_TYPES = ("V100", "P100", "K80")


@st.composite
def clusters(draw: st.DrawFn) -> list[NodeView]:
    """Up to four nodes and twelve devices."""
    shapes = st.dictionaries(st.sampled_from(SOME_TYPES), st.integers(1, 3), min_size=1, max_size=2)
    nodes = [
        NodeView(node=name, state=NodeState.READY, devices=devices)
        for name, devices in zip(NODES, draw(st.lists(shapes, min_size=1, max_size=4)), strict=False)
    ]
    assume(sum(sum(n.devices.values()) for n in nodes) <= 12)
    return nodes


@st.composite
def queues(draw: st.DrawFn, most: int = 6) -> list[JobView]:
    """Jobs without constraints, not placed yet, all of one utility."""
    utility = draw(st.sampled_from(utility_names()))
    plain = {"unready": "", "placed": (), "excluded": {}, "utility": utility}
    jobs = draw(st.lists(some_jobs(), min_size=1, max_size=most))
    return [
        replace(
            job,
            job_id=f"j{i}",
            steps_left=max(1, job.steps_left),
            constraints=type(job.constraints)(),
            deadline_s=draw(st.none() | st.floats(1e4, 1e6)),
            batching=draw(st.sampled_from(["balanced", "lockstep"])),
            **plain,
        )
        for i, job in enumerate(jobs)
    ]


def curves_for(nodes: list[NodeView], low: float, high: float) -> PriceBook:
    """The same curve for every cell, whatever the cluster: what stays fixed while nodes come."""
    return PriceBook(
        round=0,
        curves=tuple(
            PriceCurve(node=n.node, type=t, capacity=c, u_min=low, u_max=high)
            for n in nodes
            for t, c in n.devices.items()
        ),
    )


@given(snapshots())
def test_no_plan_is_worth_more_than_the_optimum(snapshot: Snapshot) -> None:
    yard = Yardstick(snapshot)
    bound = yard.optimum().bound
    for policy in (Hadar(), Hadar(fill=True)):
        value = yard.value(policy.plan(snapshot, {})[0])
        assert value <= bound + 1e-6 * abs(bound) + 1e-12


@given(clusters(), queues(), st.floats(10_000, 50_000))
def test_hadars_plan_of_a_small_round_is_the_optimum(nodes: list[NodeView], jobs: list[JobView], now_s: float) -> None:
    snapshot = a_snapshot(jobs, nodes, now_s=now_s)
    yard = Yardstick(snapshot)
    assert yard.value(Hadar().plan(snapshot, {})[0]) >= 0.999 * yard.optimum().value - 1e-12


@given(clusters(), queues(5), st.sampled_from([1e-9, 1e-3, 0.1]), st.sampled_from([1.0, 30.0, 1e4]))
def test_a_node_that_joins_lowers_neither_the_optimum_nor_the_value_of_the_plan(
    nodes: list[NodeView], jobs: list[JobView], low: float, ratio: float
) -> None:
    before = a_snapshot(jobs, nodes[:-1], curves_for(nodes[:-1], low, low * ratio), now_s=20_000.0)
    after = a_snapshot(jobs, nodes, curves_for(nodes, low, low * ratio), now_s=20_000.0)
    # A fair share grows with the cluster, and all work ends sooner: these utilities do not stay fixed while nodes come.
    assume(jobs[0].utility not in ("finish_time_fairness", "completion_times"))
    small, large = Yardstick(before), Yardstick(after)
    least = small.optimum().value
    assert large.optimum().value >= least - 1e-6 * abs(least)
    value = small.value(Hadar().plan(before, {})[0])
    assert large.value(Hadar().plan(after, {})[0]) >= value - 1e-6 * abs(value)


@given(clusters(), queues(5))
def test_a_plan_that_is_kept_is_worth_no_less_on_a_larger_cluster(nodes: list[NodeView], jobs: list[JobView]) -> None:
    """What ran before stays a candidate: with its places kept, the next plan is worth at least as much."""
    book = curves_for(nodes, 1e-6, 1e-2)
    before = a_snapshot(jobs, nodes[:-1], curves_for(nodes[:-1], 1e-6, 1e-2), now_s=20_000.0)
    plan, _ = Hadar().plan(before, {})
    there = {fork.job_id: (fork.gang,) for fork in plan.forks}
    kept = [replace(job, placed=there.get(job.job_id, ())) for job in jobs]
    after = a_snapshot(kept, nodes, book, now_s=20_000.0)
    value = Yardstick(after).value(plan)  # some utilities look at the whole cluster, so the old plan's is another now
    assert Yardstick(after).value(Hadar().plan(after, {})[0]) >= value - 1e-6 * abs(value)


@pytest.mark.parametrize("policy", ["hadar", "hadare"])
def test_the_plan_is_the_same_whatever_the_hash_seed(policy: str) -> None:
    program = (
        "from hadare.bench.rounds import large_round, small_round\n"
        "from hadare.scheduling.policies import policy_of\n"
        "import hashlib\n"
        "rounds = [small_round(3), small_round(4), large_round(150, 9, 3, 4)]\n"
        f"plans = [repr(policy_of({policy!r}).plan(r, {{}})) for r in rounds]\n"
        "print(hashlib.sha256(repr(plans).encode()).hexdigest())\n"
    )
    libs = str(Path(__file__).parents[2] / "libs")
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": libs},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(said) == 1


@given(st.floats(1.0, 100.0), st.integers(1, 9))
def test_jobs_that_are_equal_but_for_a_billionth_are_served_by_id(scale: float, sign: int) -> None:
    nodes = [NodeView(node="n0", state=NodeState.READY, devices={"V100": 1})]
    base = a_snapshot([], nodes)
    x = rates(scale, 1.0, SPEED)
    jobs = [
        JobView(job_id=name, arrival_s=0.0, steps_left=10**6, total_steps=10**6, throughput=x, priority=1 + tiny)
        for name, tiny in (("a", 0.0), ("b", sign * 1e-11))
    ]
    for policy in ("hadar", "hadare"):
        plan, _ = policy_of(policy).plan(a_snapshot(jobs, nodes, base.prices), {})
        assert {fork.job_id for fork in plan.forks} == {"a"}
