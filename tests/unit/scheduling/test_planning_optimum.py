"""The dynamic programme against the exact optimum of a round, found by trying every gang of every job."""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import pytest

from builders_scheduling import a_job, a_snapshot, rates
from hadare.model.devices import NodeState
from hadare.model.plans import JobView, NodeView, Snapshot
from hadare.scheduling.eligibility import Cells, cell_rates, job_table
from hadare.scheduling.placement import Devices, Free, Gangs, PriceSums
from hadare.scheduling.planning import without
from hadare.scheduling.policies import Hadar
from hadare.scheduling.pricing import Curves


def a_round(seed: int) -> Snapshot:
    r = random.Random(seed)
    nodes = [
        NodeView(node=f"n{i}", state=NodeState.READY, devices={r.choice(["V100", "P100", "K80"]): r.choice([1, 2, 4])})
        for i in range(3)
    ]
    return a_snapshot([_a_random_job(r, i) for i in range(r.randint(2, 5))], nodes, now_s=5000.0)


def _a_random_job(r: random.Random, i: int) -> JobView:
    steps = int(10 ** r.uniform(3, 6))
    return a_job(
        f"j{i}",
        arrival_s=r.uniform(0, 5000),
        steps_left=steps,
        total_steps=steps * 2,
        gang=r.choice([1, 1, 2, 4]),
        spread_factor=r.choice([1.0, 0.8, 0.5]),
        throughput=rates(10 ** r.uniform(0, 2)),
        priority=r.choice([1.0, 1.0, 3.0]),
    )


def optimum(snapshot: Snapshot) -> float:
    """Most payoff that any set of gangs reaches."""
    cells = Cells(snapshot.nodes)
    prices = PriceSums(cells, Curves(cells, snapshot.prices))
    table = job_table(snapshot.jobs, cells.types, snapshot.now_s)
    able = cell_rates(cells, table)
    gangs = [Gangs(job, table.stake_of(i), able[i], cells, prices) for i, job in enumerate(table.jobs)]

    @cache
    def best(waiting: frozenset[int], free: Free) -> float:
        # in every order, for who comes first pays the lower marginal prices
        taken = (
            gangs[i].priced(y, free, snapshot.round_s).payoff + best(waiting - {i}, without(free, y))
            for i in waiting
            for y in every_gang(free, gangs[i].job.gang)
        )
        return max([0.0, *taken])

    return best(frozenset(range(len(gangs))), prices.capacity)


def every_gang(free: Sequence[int], want: int) -> Iterator[Devices]:
    for counts in product(*(range(min(count, want) + 1) for count in free)):
        if sum(counts) == want:
            yield tuple((cell, count) for cell, count in enumerate(counts) if count)


@pytest.mark.parametrize("batch", range(4))
def test_the_programme_is_within_a_hundredth_of_the_optimum_on_average(batch: int) -> None:
    ratios = []
    for seed in range(batch * 25, batch * 25 + 25):
        snapshot = a_round(seed)
        value = sum(fork.payoff for fork in Hadar().plan(snapshot, {})[0].forks)
        ratios.append(value / optimum(snapshot))
    assert max(ratios) <= 1 + 1e-9
    assert sum(ratios) / len(ratios) >= 0.99
    assert min(ratios) >= 0.85
