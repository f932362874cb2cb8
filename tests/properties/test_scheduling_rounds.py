"""What must hold over many rounds: nobody starves, nobody is moved for nothing, everything ends."""

from hypothesis import given, settings
from hypothesis import strategies as st

from builders_rounds import Rounds
from builders_scheduling import FIVE_UNEQUAL, SPEED, a_job, a_node, rates
from hadare.model.plans import NodeView
from hadare.scheduling.policies import Hadar, Hadare, Policy, policy_of
from hadare.scheduling.policies.base import AHEAD_TIMES, OVERDUE_SHARE
from hadare.scheduling.utility import utility_names

PATIENCE = 4
FEWER = settings(max_examples=settings.default.max_examples // 2)
"""Each example is many rounds."""


@FEWER
@given(
    st.sampled_from([Hadare(patience=PATIENCE), Hadar(patience=PATIENCE)]),
    st.integers(1, 3),
    st.sampled_from(utility_names()),
    st.floats(1.0, 50.0),
)
def test_a_long_job_is_served_again_and_again_under_steady_arrivals_of_short_ones(
    policy: Policy, devices: int, utility: str, priority: float
) -> None:
    """Short jobs alone would keep every device busy for ever. No short one takes more than a device-round."""
    cluster = Rounds(policy, [a_node("n1", V100=devices)])
    cluster.arrive(a_job("long", steps_left=10**9, utility=utility))
    waiting = 0
    for number in range(80):
        names = [f"short-{number:02}-{i}" for i in range(devices)]
        cluster.arrive(*(a_job(name, steps_left=3000, priority=priority, utility=utility) for name in names))
        cluster.run()
        waiting = max(waiting, len(cluster.jobs))
        since = number - max(cluster.served.get("long", [-1]))
        late = max(PATIENCE, AHEAD_TIMES * waiting / devices)
        assert since <= late + 1 + (1 + waiting / devices) / OVERDUE_SHARE
    assert len(cluster.served["long"]) >= 2


@FEWER
@given(
    st.sampled_from(["hadare", "hadar"]),
    st.lists(st.tuples(st.integers(1, 60_000), st.integers(1, 3)), min_size=1, max_size=6),
    st.sampled_from([FIVE_UNEQUAL, (a_node("n1", V100=2), a_node("n2", K80=3))]),
)
def test_every_job_ends_and_soon_after_the_work_allows(
    name: str, jobs: list[tuple[int, int]], nodes: tuple[NodeView, ...]
) -> None:
    cluster = Rounds(policy_of(name), nodes)
    cluster.arrive(*(a_job(f"j{i}", steps_left=s, gang=g, restart_cost_s=10) for i, (s, g) in enumerate(jobs)))
    slowest = min(10 * SPEED[t] for n in nodes for t in n.devices)
    rounds = 10 + len(jobs) + sum(steps for steps, _ in jobs) / (slowest * 300)
    while cluster.jobs and cluster.number < rounds:
        cluster.run()
    assert not cluster.jobs


@FEWER
@given(st.sampled_from(["hadare", "hadar"]), st.lists(st.integers(200_000, 2_000_000), min_size=1, max_size=4))
def test_while_nothing_comes_or_goes_nobody_is_moved_twice(name: str, sizes: list[int]) -> None:
    cluster = Rounds(policy_of(name), FIVE_UNEQUAL)
    cluster.arrive(*(a_job(f"j{i}", steps_left=size, restart_cost_s=30) for i, size in enumerate(sizes)))
    cluster.run()
    for _ in range(8):
        cluster.run()
    assert cluster.moves == 0


def test_rates_that_were_guessed_three_times_too_low_or_high_do_not_stall_the_end() -> None:
    """The plan believes 10 steps/s everywhere; one device does 30, one 3. The job still ends in three rounds."""
    truth = {"V100": 30.0, "P100": 3.0}
    job = a_job(steps_left=6000, throughput=rates(10.0, 0.0, {"V100": 1.0, "P100": 1.0}))
    cluster = Rounds(policy_of("hadare"), [a_node("n1", V100=1), a_node("n2", P100=1)])
    cluster.arrive(job)
    left = 6000
    for _ in range(3):
        plan = cluster.run()
        left -= sum(min(fork.quota, int(truth[fork.gang[0].type] * 360)) for fork in plan.forks)
        known = rates(1.0, 0.5, truth)
        cluster.jobs = {"a": a_job(steps_left=left, total_steps=6000, throughput=known)} if left else {}
        if not left:
            break
    assert left == 0


def test_short_jobs_do_not_wait_for_a_long_one_that_came_first() -> None:
    cluster = Rounds(policy_of("hadare"), FIVE_UNEQUAL)
    cluster.arrive(a_job("long", steps_left=1_000_000))
    cluster.run()
    cluster.arrive(a_job("short", steps_left=3_000))
    while cluster.jobs:
        cluster.run()
    assert cluster.finished["short"] == 360.0
    assert cluster.finished["long"] > 10 * 360.0
