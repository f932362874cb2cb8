"""Hypothesis strategies: rounds of any shape."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from builders_scheduling import SPEED, a_job, a_snapshot, flat_book
from hadare.model.devices import NodeState
from hadare.model.jobs import Constraints
from hadare.model.plans import GangMember, JobView, NodeView, Snapshot, Throughput

TYPES = tuple(SPEED)
NODES = [f"n{i}" for i in range(5)]


@st.composite
def some_nodes(draw: st.DrawFn) -> NodeView:
    return NodeView(
        node="",
        state=draw(st.sampled_from([NodeState.READY] * 4 + list(NodeState))),
        devices=draw(st.dictionaries(st.sampled_from(TYPES), st.integers(0, 4), min_size=1, max_size=2)),
        labels=draw(st.sampled_from([{}, {}, {"zone": "b"}])),
        memory_gb=draw(st.sampled_from([{}, dict.fromkeys(TYPES, 40.0)])),
    )


@st.composite
def some_jobs(draw: st.DrawFn) -> JobView:
    speeds = draw(st.dictionaries(st.sampled_from(TYPES), st.floats(0.01, 500), max_size=5))
    steps = draw(st.integers(0, 30) | st.integers(0, 10**7))
    places = st.builds(GangMember, node=st.sampled_from(NODES), type=st.sampled_from(TYPES), count=st.integers(1, 2))
    return a_job(
        "",
        arrival_s=draw(st.floats(0, 10_000)),
        steps_left=steps,
        total_steps=max(1, steps) * draw(st.integers(1, 3)),
        throughput={t: Throughput(steps_per_s=x, confidence=draw(st.floats(0, 1))) for t, x in speeds.items()},
        gang=draw(st.integers(1, 5)),
        max_forks=draw(st.none() | st.integers(1, 6)),
        min_fork_share=draw(st.sampled_from([0.0, 0.0, 0.3, 1.0])),
        spread_factor=draw(st.floats(0, 1)),
        priority=draw(st.floats(0.1, 10)),
        utility=draw(st.sampled_from(["throughput", "least_remaining_work", "makespan", "finish_time_fairness"])),
        batching=draw(st.sampled_from(["balanced", "balanced", "lockstep"])),
        fork_gain=draw(st.sampled_from([(), (), (1.0, 1.6, 1.9), (1.0, 0.9)])),
        consolidation_cost_s=draw(st.sampled_from([0.0, 0.0, 20.0])),
        constraints=draw(
            st.sampled_from(
                [Constraints()] * 3
                + [Constraints(types=("V100", "T4")), Constraints(labels={"zone": "b"}), Constraints(min_memory_gb=20)]
            )
        ),
        excluded=draw(st.sampled_from([{}, {}, {"n0": "no data"}])),
        unready=draw(st.sampled_from(["", "", "", "paused"])),
        placed=tuple((place,) for place in draw(st.lists(places, max_size=2))),
        restart_cost_s=draw(st.sampled_from([0.0, 30.0, 1000.0])),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    nodes = [replace(n, node=name) for n, name in zip(draw(st.lists(some_nodes(), max_size=5)), NODES, strict=False)]
    jobs = [replace(j, job_id=f"j{i}") for i, j in enumerate(draw(st.lists(some_jobs(), max_size=7)))]
    dear = draw(st.sampled_from([None, None, None, 1e3]))
    return a_snapshot(jobs, nodes, flat_book(nodes, dear) if dear else None, now_s=draw(st.floats(10_000, 50_000)))
