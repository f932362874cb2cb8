"""What every plan of every policy must keep to, whatever the snapshot."""

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from builders_scheduling import SPEED, a_job, a_snapshot, flat_book
from builders_snapshots import NODES, snapshots, some_nodes
from hadare.model.devices import NodeState
from hadare.model.plans import GangMember, JobView, NodeView, RoundPlan, Snapshot, Throughput
from hadare.scheduling.eligibility import Cells, placeable
from hadare.scheduling.gain import fork_rates, joint_rate
from hadare.scheduling.policies import Hadar, Policy, policy_of
from hadare.scheduling.policies.base import Memory

POLICIES: list[Policy] = [policy_of("hadare"), policy_of("hadar"), Hadar(fill=True)]
policies = st.sampled_from(POLICIES)


memories = st.builds(
    lambda waited, credit: {"waited": waited, "credit": credit},
    st.dictionaries(st.sampled_from([f"j{i}" for i in range(7)]), st.integers(1, 12)),
    st.sampled_from([0.0, 8.0]),
)


def members(plan: RoundPlan) -> list[GangMember]:
    return [member for fork in plan.forks for member in fork.gang]


@given(snapshots(), memories, policies)
def test_no_cell_holds_more_than_it_has_and_only_ready_nodes_hold_anything(
    snapshot: Snapshot, memory: Memory, policy: Policy
) -> None:
    plan, _ = policy.plan(snapshot, memory)
    taken: Counter[tuple[str, str]] = Counter()
    for member in members(plan):
        taken[member.node, member.type] += member.count
    ready = {n.node: n for n in snapshot.nodes if n.state is NodeState.READY}
    assert all(count <= ready[node].devices[device_type] for (node, device_type), count in taken.items())


@given(snapshots(), memories, policies)
def test_constraints_and_exclusions_are_honoured(snapshot: Snapshot, memory: Memory, policy: Policy) -> None:
    plan, _ = policy.plan(snapshot, memory)
    cells = Cells(snapshot.nodes)
    jobs = {job.job_id: job for job in snapshot.jobs}
    for fork in plan.forks:
        job = jobs[fork.job_id]
        assert placeable(job)
        for member in fork.gang:
            assert member.type in job.throughput
            assert cells.why_not(job, member.node, member.type) == ""


@given(snapshots(), memories, policies)
def test_a_placed_job_pays_off_unless_it_was_filled_in(snapshot: Snapshot, memory: Memory, policy: Policy) -> None:
    plan, _ = policy.plan(snapshot, memory)
    assert all(fork.payoff > 0 or fork.filled for fork in plan.forks)


@given(snapshots(), memories, policies)
def test_quotas_never_exceed_what_is_left_and_every_fork_has_work(
    snapshot: Snapshot, memory: Memory, policy: Policy
) -> None:
    plan, _ = policy.plan(snapshot, memory)
    for job in snapshot.jobs:
        quotas = [fork.quota for fork in plan.forks if fork.job_id == job.job_id]
        assert sum(quotas) <= job.steps_left
        assert all(quota >= 1 for quota in quotas)


@given(snapshots(), memories, policies)
def test_every_job_has_exactly_one_decision_that_agrees_with_its_forks(
    snapshot: Snapshot, memory: Memory, policy: Policy
) -> None:
    plan, _ = policy.plan(snapshot, memory)
    assert [d.job_id for d in plan.decisions] == sorted(job.job_id for job in snapshot.jobs)
    placed = {fork.job_id for fork in plan.forks}
    assert {d.job_id for d in plan.decisions if d.code == "chosen"} == placed
    assert all(d.message for d in plan.decisions)
    assert all(set(d.blockers) <= placed for d in plan.decisions)


@given(snapshots(), memories, policies, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(
    snapshot: Snapshot, memory: Memory, policy: Policy, shuffler: random.Random
) -> None:
    nodes = shuffler.sample(snapshot.nodes, len(snapshot.nodes))
    mixed = replace(
        snapshot,
        nodes=tuple(replace(n, devices=dict(reversed(n.devices.items()))) for n in nodes),
        jobs=tuple(shuffler.sample(snapshot.jobs, len(snapshot.jobs))),
    )
    assert policy.plan(mixed, memory) == policy.plan(snapshot, memory)


@given(snapshots(), memories)
def test_a_hadar_gang_is_whole_or_absent(snapshot: Snapshot, memory: Memory) -> None:
    plan, _ = Hadar().plan(snapshot, memory)
    jobs = {job.job_id: job for job in snapshot.jobs}
    assert len({fork.job_id for fork in plan.forks}) == len(plan.forks)
    assert all(sum(m.count for m in fork.gang) == jobs[fork.job_id].gang for fork in plan.forks)


@given(snapshots(), memories)
def test_hadare_forks_are_one_device_and_within_the_jobs_bound(snapshot: Snapshot, memory: Memory) -> None:
    plan, _ = policy_of("hadare").plan(snapshot, memory)
    assert all(sum(m.count for m in fork.gang) == 1 for fork in plan.forks)
    for job in snapshot.jobs:
        forks = [fork for fork in plan.forks if fork.job_id == job.job_id]
        assert len(forks) <= (job.max_forks or len(forks))
        assert [fork.fork for fork in forks] == list(range(len(forks)))


@given(snapshots(), memories)
def test_hadare_leaves_no_device_idle_that_a_job_could_use(snapshot: Snapshot, memory: Memory) -> None:
    plan, _ = policy_of("hadare").plan(snapshot, memory)
    cells = Cells(snapshot.nodes)
    free = Counter({key: int(count) for key, count in zip(cells.keys, cells.capacity, strict=True)})
    free.subtract((member.node, member.type) for member in members(plan))
    idle = [key for key, count in free.items() if count > 0]
    for job in filter(placeable, snapshot.jobs):
        forks = [fork for fork in plan.forks if fork.job_id == job.job_id]
        mine = {key: job.throughput[key[1]].steps_per_s for key in cells.keys if usable(cells, job, key)}
        enough = len(forks) >= min(job.max_forks or job.steps_left, job.steps_left)
        fast = {key for key in idle if mine.get(key, 0) >= job.min_fork_share * max(mine.values(), default=0)}
        # one more fork would do at least one of the steps that are left, and the job's forks together more than now
        places = [(member.node, member.type) for fork in forks for member in fork.gang]
        now = together(job, places, snapshot.round_s)
        worth = {
            k
            for k in fast & mine.keys()
            if job.steps_left * mine[k] >= sum(f.rate for f in forks) + mine[k]
            and together(job, [*places, k], snapshot.round_s) > now * (1 + 1e-6)
        }
        assert enough or not worth


def together(job: JobView, places: list[tuple[str, str]], round_s: float) -> float:
    """Steps/s of forks there, of which cold ones start first."""
    return joint_rate(job, fork_rates(job, places, round_s), round_s)


def usable(cells: Cells, job: JobView, key: tuple[str, str]) -> bool:
    return not cells.why_not(job, *key) and key[1] in job.throughput


@given(st.lists(some_nodes(), min_size=1, max_size=5), st.integers(1, 4), st.floats(1, 100))
def test_a_job_that_is_alone_at_no_price_gets_its_fastest_gang(nodes: list[NodeView], gang: int, scale: float) -> None:
    named = [replace(n, node=name) for n, name in zip(nodes, NODES, strict=False)]
    job = a_job(gang=gang, throughput={t: Throughput(steps_per_s=scale * x) for t, x in SPEED.items()})
    plan, _ = Hadar().plan(a_snapshot([job], named, flat_book(named, 1e-12)), {})
    devices = sorted(
        (SPEED[t] * scale for n in named if n.state is NodeState.READY for t, c in n.devices.items() for _ in range(c)),
        reverse=True,
    )
    best = sum(devices[:gang]) if len(devices) >= gang else 0.0
    assert abs(sum(fork.rate for fork in plan.forks) - best) <= 1e-6 * scale
