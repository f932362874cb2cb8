"""The integer programme against every plan of tiny rounds, one after the other; and the policy against both."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest

from builders_scheduling import a_job, a_node, a_snapshot, rates
from hadare.model.devices import NodeState
from hadare.model.plans import GangMember, JobView, NodeView, PriceBook, Snapshot
from hadare.scheduling.optimum import Yardstick
from hadare.scheduling.policies import Hadar, policy_of
from hadare.scheduling.utility import Stake, utility_of

Cell = tuple[str, str]


def a_round(seed: int) -> Snapshot:
    r = random.Random(seed)
    nodes = [
        NodeView(node=f"n{i}", state=NodeState.READY, devices={r.choice(["V100", "K80"]): r.choice([1, 2, 3])})
        for i in range(2)
    ]
    jobs = [_a_random_job(r, f"j{i}") for i in range(r.randint(2, 4))]
    if r.random() < 0.5:
        node = r.choice(nodes)
        device_type = next(iter(node.devices))
        jobs[0] = replace(jobs[0], placed=((GangMember(node=node.node, type=device_type, count=1),),))
    return a_snapshot(jobs, nodes, now_s=5000.0)


def _a_random_job(r: random.Random, job_id: str) -> JobView:
    steps = int(10 ** r.uniform(3, 6))
    return a_job(
        job_id,
        arrival_s=r.uniform(0, 5000),
        steps_left=steps,
        total_steps=steps * 2,
        gang=r.choice([1, 1, 2, 3]),
        spread_factor=r.choice([1.0, 0.8, 0.5]),
        throughput=rates(10 ** r.uniform(0, 2)),
        priority=r.choice([1.0, 1.0, 3.0]),
        restart_cost_s=r.choice([0.0, 60.0]),
        batching=r.choice(["balanced", "lockstep"]),
    )


def best_of_all(snapshot: Snapshot) -> float:
    """V*, written from its definition alone."""
    cells = {(n.node, t): c for n in snapshot.nodes for t, c in n.devices.items()}
    choices = [[{}, *every_gang(cells, job.gang)] for job in snapshot.jobs]
    best = 0.0
    for plan in product(*choices):
        taken = {cell: sum(gang.get(cell, 0) for gang in plan) for cell in cells}
        if all(taken[cell] <= count for cell, count in cells.items()):
            worth = sum(utility(snapshot, job, gang) for job, gang in zip(snapshot.jobs, plan, strict=True) if gang)
            best = max(best, worth - cost(snapshot.prices, taken))
    return best


def every_gang(cells: dict[Cell, int], want: int) -> Iterator[dict[Cell, int]]:
    for counts in product(*(range(min(count, want) + 1) for count in cells.values())):
        if sum(counts) == want:
            yield {cell: count for cell, count in zip(cells, counts, strict=True) if count}


def cost(book: PriceBook, taken: dict[Cell, int]) -> float:
    return sum(curve.price(m) for curve in book.curves for m in range(taken[curve.node, curve.type]))


def utility(snapshot: Snapshot, job: JobView, gang: dict[Cell, int]) -> float:
    x = [job.throughput[t].steps_per_s for (_, t), count in gang.items() for _ in range(count)]
    rate = len(x) * min(x) if job.batching == "lockstep" else sum(x)
    rate *= job.spread_factor if len({node for node, _ in gang}) > 1 else 1.0
    where = {(m.node, m.type): m.count for placed in job.placed for m in placed}
    age_s = snapshot.now_s - job.arrival_s
    ideal_s = job.total_steps / (job.gang * max(t.steps_per_s for t in job.throughput.values()))
    finish_s = age_s + job.steps_left / rate + (0.0 if where == gang else job.restart_cost_s)
    return job.priority * job.gang * ideal_s / finish_s


@pytest.mark.parametrize("batch", range(5))
def test_the_optimum_is_that_of_all_plans_tried_one_by_one(batch: int) -> None:
    for seed in range(batch * 8, batch * 8 + 8):
        snapshot = a_round(seed)
        assert Yardstick(snapshot).optimum().value == pytest.approx(best_of_all(snapshot), rel=1e-6)


@pytest.mark.parametrize("batch", range(5))
def test_the_programme_finds_the_optimum_of_a_small_round(batch: int) -> None:
    for seed in range(batch * 20, batch * 20 + 20):
        snapshot = a_round(seed)
        yard = Yardstick(snapshot)
        assert yard.value(Hadar().plan(snapshot, {})[0]) == pytest.approx(yard.optimum().value, rel=1e-5)


def test_the_value_of_a_plan_is_what_its_forks_pay_off_together() -> None:
    for seed in range(20):
        snapshot = a_round(seed)
        plan, _ = Hadar().plan(snapshot, {})
        assert Yardstick(snapshot).value(plan) == pytest.approx(sum(fork.payoff for fork in plan.forks))


def test_the_plain_greedy_is_no_better_than_the_optimum_and_can_be_far_from_it() -> None:
    nodes = [a_node("n1", V100=2)]
    jobs = [a_job("wide", gang=2, priority=1.1), a_job("x", priority=2.0), a_job("y", priority=2.0)]
    yard = Yardstick(a_snapshot(jobs, nodes))
    assert yard.greedy() < 0.6 * yard.optimum().value


def test_a_round_without_jobs_or_devices_is_worth_nothing() -> None:
    assert Yardstick(a_snapshot([], [a_node()])).optimum().value == 0.0
    assert Yardstick(a_snapshot([a_job()], [])).optimum().value == 0.0


def test_the_optimum_with_forks_is_that_of_all_sets_of_devices() -> None:
    nodes = [a_node("n1", V100=2, K80=1), a_node("n2", K80=2)]
    jobs = [a_job("a", steps_left=40_000, max_forks=3), a_job("b", min_fork_share=0.5, fork_gain=(1.0, 1.4))]
    snapshot = a_snapshot(jobs, nodes, now_s=900.0)
    yard = Yardstick(snapshot, forks=True)
    best = 0.0
    cells: dict[Cell, int] = {("n1", "K80"): 1, ("n1", "V100"): 2, ("n2", "K80"): 2}
    sets = [dict(zip(cells, c, strict=True)) for c in product(*(range(n + 1) for n in cells.values()))]
    for one in (s for s in sets if sum(s.values()) <= 3):
        for two in (s for s in sets if s["n1", "K80"] == s["n2", "K80"] == 0):
            taken = {cell: one[cell] + two[cell] for cell in cells}
            if all(taken[cell] <= count for cell, count in cells.items()):
                worth = forks_worth(jobs[0], one, 900.0) + forks_worth(jobs[1], two, 900.0)
                best = max(best, worth - cost(snapshot.prices, taken))
    assert yard.optimum().value == pytest.approx(best, rel=1e-6)
    assert yard.value(policy_of("hadare").plan(snapshot, {})[0]) <= best * (1 + 1e-9)


def forks_worth(job: JobView, devices: dict[Cell, int], age_s: float) -> float:
    x: Sequence[float] = [job.throughput[t].steps_per_s for (_, t), n in devices.items() for _ in range(n)]
    if not x:
        return 0.0
    rate = min(sum(x), job.fork_gain[min(len(x), 2) - 1] * max(x)) if job.fork_gain else sum(x)
    stake = Stake(
        weight=1.0,
        gang=1.0,
        ideal_s=job.total_steps / 10.0,
        age_s=age_s,
        left_s=job.steps_left / 10.0,
        fair_s=1.0,
        deadline_s=1.0,
        end_s=1.0,
    )
    return utility_of("throughput").value(stake, age_s + job.steps_left / rate)
