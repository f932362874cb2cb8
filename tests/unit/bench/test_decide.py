from dataclasses import replace

import pytest

from hadare.bench.decide import Case, at_scale, decision_time, feasible, growth_exponent, quality
from hadare.bench.rounds import MOST_DEVICES, MOST_JOBS, large_round, small_round
from hadare.model.plans import GangMember
from hadare.scheduling.policies import policy_of


def a_case(jobs: int, cpu_ms: float) -> Case:
    return Case(policy="hadar", jobs=jobs, devices=60, types=3, median_ms=0.0, cpu_ms=cpu_ms)


def test_small_rounds_are_small_and_the_same_for_the_same_seed() -> None:
    for seed in range(30):
        snapshot = small_round(seed)
        assert len(snapshot.jobs) <= MOST_JOBS
        assert sum(sum(n.devices.values()) for n in snapshot.nodes) <= MOST_DEVICES
        assert small_round(seed) == snapshot


def test_a_large_round_has_the_size_that_was_asked_for() -> None:
    case = decision_time("hadar", large_round(40, 6, 3, 2), repeat=1)
    assert (case.jobs, case.devices, case.types) == (40, 12, 3)
    assert case.median_ms > 0


def test_time_that_grows_with_the_square_has_the_exponent_two() -> None:
    assert growth_exponent([a_case(n, 3.0 * n**2) for n in (10, 100, 1000)]) == pytest.approx(2.0)


def test_plans_of_random_rounds_are_feasible_and_near_the_optimum() -> None:
    found = quality(range(60))
    assert found.infeasible == 0
    assert found.mean_ratio >= 0.99
    assert found.worst_ratio >= 0.95
    assert found.greedy_mean_ratio < found.mean_ratio <= 1 + 1e-6


def test_cells_that_are_equal_on_nodes_that_are_not_are_both_tried() -> None:
    # a K80 cell beside P100s and one alone: which of them a gang takes decides whether another can pack a mix
    assert quality([407]).worst_ratio == pytest.approx(1.0, rel=1e-6)


def test_plans_of_large_rounds_are_near_the_bound() -> None:
    assert 0.97 <= at_scale(64).ratio <= 1 + 1e-6


def test_half_a_gang_or_a_device_too_many_is_not_feasible() -> None:
    snapshot = small_round(1)
    plan, _ = policy_of("hadar").plan(snapshot, {})
    assert feasible(snapshot, plan, whole=True)
    first, *others = plan.forks
    more = tuple(replace(member, count=member.count + 99) for member in first.gang)
    assert not feasible(snapshot, replace(plan, forks=(replace(first, gang=more), *others)), whole=False)
    less = (GangMember(node=first.gang[0].node, type=first.gang[0].type, count=1),)
    jobs = tuple(replace(job, gang=2) for job in snapshot.jobs)
    halved = replace(plan, forks=(replace(first, gang=less),))
    assert not feasible(replace(snapshot, jobs=jobs), halved, whole=True)
