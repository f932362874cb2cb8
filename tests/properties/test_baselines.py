"""What every plan of every baseline must keep to, whatever the snapshot, and what memory must survive."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from builders_snapshots import snapshots
from hadare.model.devices import NodeState
from hadare.model.plans import GangMember, RoundPlan, Snapshot
from hadare.scheduling.baselines.las import LasRules
from hadare.scheduling.eligibility import Cells, placeable
from hadare.scheduling.policies import Gavel, Policy, Tiresias, YarnCs

ROUNDS = settings(max_examples=30, deadline=None)
POLICIES: list[Policy] = [
    Gavel(min_reset_rounds=0),
    Gavel(aware=False),
    Tiresias(),
    Tiresias(rules=LasRules(limits=(100.0,), promote_after=1.0)),
    YarnCs(),
]
policies = st.sampled_from(POLICIES)


def members(plan: RoundPlan) -> list[GangMember]:
    return [member for fork in plan.forks for member in fork.gang]


def two_rounds(policy: Policy, snapshot: Snapshot) -> tuple[Snapshot, RoundPlan]:
    """The second round of two, with the memory and the gangs of the first; memory goes over the wire between."""
    first, memory = policy.plan(snapshot, {})
    placed = {fork.job_id: (fork.gang,) for fork in first.forks}
    jobs = tuple(replace(job, placed=placed.get(job.job_id, ())) for job in snapshot.jobs)
    after = replace(snapshot, round=1, now_s=snapshot.now_s + snapshot.round_s, jobs=jobs)
    return after, policy.plan(after, msgpack.unpackb(msgpack.packb(memory)))[0]


@ROUNDS
@given(snapshots(), policies)
def test_no_cell_holds_more_than_it_has(snapshot: Snapshot, policy: Policy) -> None:
    after, plan = two_rounds(policy, snapshot)
    taken: Counter[tuple[str, str]] = Counter()
    for member in members(plan):
        taken[member.node, member.type] += member.count
    ready = {n.node: n for n in after.nodes if n.state is NodeState.READY}
    assert all(count <= ready[node].devices[device_type] for (node, device_type), count in taken.items())


@ROUNDS
@given(snapshots(), policies)
def test_a_gang_is_whole_of_one_type_and_where_the_job_may_be(snapshot: Snapshot, policy: Policy) -> None:
    after, plan = two_rounds(policy, snapshot)
    cells = Cells(after.nodes)
    jobs = {job.job_id: job for job in after.jobs}
    assert len({fork.job_id for fork in plan.forks}) == len(plan.forks)
    for fork in plan.forks:
        job = jobs[fork.job_id]
        assert placeable(job)
        assert sum(member.count for member in fork.gang) == job.gang
        assert len({member.type for member in fork.gang}) == 1
        assert all(cells.why_not(job, member.node, member.type) == "" for member in fork.gang)
        spread = max(job.spread_factor, 1e-6) if len({m.node for m in fork.gang}) > 1 else 1.0
        assert fork.rate == job.gang * job.throughput[fork.gang[0].type].steps_per_s * spread
        assert 1 <= fork.quota <= job.steps_left


@ROUNDS
@given(snapshots(), policies)
def test_every_job_has_one_decision_that_agrees_with_its_fork(snapshot: Snapshot, policy: Policy) -> None:
    _, plan = two_rounds(policy, snapshot)
    assert [d.job_id for d in plan.decisions] == sorted(job.job_id for job in snapshot.jobs)
    assert {d.job_id for d in plan.decisions if d.code == "chosen"} == {fork.job_id for fork in plan.forks}
    assert all(d.message for d in plan.decisions)


@ROUNDS
@given(snapshots(), policies, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(snapshot: Snapshot, policy: Policy, shuffler: random.Random) -> None:
    mixed = replace(
        snapshot,
        nodes=tuple(shuffler.sample(snapshot.nodes, len(snapshot.nodes))),
        jobs=tuple(shuffler.sample(snapshot.jobs, len(snapshot.jobs))),
    )
    assert two_rounds(policy, mixed)[1] == two_rounds(policy, snapshot)[1]


@ROUNDS
@given(snapshots(), st.sampled_from([p for p in POLICIES if p.name != "yarn-cs"]))
def test_no_whole_gang_idles_beside_a_job_that_could_be_made_of_it(snapshot: Snapshot, policy: Policy) -> None:
    after, plan = two_rounds(policy, snapshot)
    cells = Cells(after.nodes)
    free = Counter({key: int(count) for key, count in zip(cells.keys, cells.capacity, strict=True)})
    free.subtract({(m.node, m.type): 0 for m in members(plan)})
    for member in members(plan):
        free[member.node, member.type] -= member.count
    for job in after.jobs:
        if not placeable(job) or any(fork.job_id == job.job_id for fork in plan.forks):
            continue
        room: Counter[str] = Counter()
        for (node, device_type), count in free.items():
            if device_type in job.throughput and not cells.why_not(job, node, device_type):
                room[device_type] += count
        assert all(count < job.gang for count in room.values())


@ROUNDS
@given(snapshots())
def test_yarn_never_takes_a_device_from_a_job_that_can_go_on(snapshot: Snapshot) -> None:
    first, memory = YarnCs().plan(snapshot, {})
    later = tuple(replace(job, arrival_s=0.0, job_id=f"z{job.job_id}") for job in snapshot.jobs)
    again, _ = YarnCs().plan(replace(snapshot, jobs=snapshot.jobs + later), memory)
    assert {(f.job_id, f.gang) for f in first.forks} <= {(f.job_id, f.gang) for f in again.forks}
