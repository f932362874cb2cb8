"""A bound never exceeds what an exact optimum reaches, and is not empty."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from builders_bounds import Exact, small_workloads
from hadare.scheduling.bounds import (
    Workload,
    best_pooled_mean_jct,
    indexed_mean_jct,
    pooled_mean_jct,
    shortest_duration,
)
from hadare.scheduling.bounds.pooled import least_remaining_work

SOME = settings(max_examples=40, deadline=None)
CLOSE = 1 + 1e-6

any_width = st.booleans().flatmap(lambda width: small_workloads(width=width, arrivals=True))


@SOME
@given(any_width)
def test_no_schedule_ends_sooner_than_the_fluid_programme(work: Workload) -> None:
    bound, exact = shortest_duration(work), Exact(work, gangs=work.width is not None).duration()
    assert bound <= exact * CLOSE
    # whole seconds and whole devices cost at most the last second of each job, one after another
    assert bound >= exact - 1 - len(work.steps) - float(work.alone_s.sum())


@SOME
@given(small_workloads(arrivals=True), st.lists(st.floats(0.01, 10), min_size=2, max_size=2))
def test_no_schedule_of_forks_beats_the_pooled_machine_at_any_prices(work: Workload, prices: list[float]) -> None:
    assert pooled_mean_jct(work, np.array(prices[: len(work.devices)])) <= Exact(work).mean_jct() * CLOSE


@SOME
@given(small_workloads(arrivals=True))
def test_the_best_prices_still_give_a_bound(work: Workload) -> None:
    best = best_pooled_mean_jct(work)
    assert abs(best.prices @ work.devices - 1) < 1e-6
    assert 0 < best.mean_jct_s <= Exact(work).mean_jct() * CLOSE


@SOME
@given(small_workloads(), st.lists(st.floats(0.001, 10), min_size=2, max_size=2))
def test_no_prices_are_better_than_the_best_when_all_begin_together(work: Workload, prices: list[float]) -> None:
    best = best_pooled_mean_jct(work)
    tried = pooled_mean_jct(work, np.array(prices[: len(work.devices)]))
    assert tried <= best.mean_jct_s * (1 + 2e-5)
    assert best.mean_jct_s <= best.ceiling_s * CLOSE


@SOME
@given(small_workloads(arrivals=True))
def test_the_search_is_at_least_as_good_as_equal_prices_with_arrivals(work: Workload) -> None:
    assert pooled_mean_jct(work, np.ones(len(work.devices))) <= best_pooled_mean_jct(work).mean_jct_s * CLOSE


@SOME
@given(any_width)
def test_no_schedule_beats_the_time_indexed_programme(work: Workload) -> None:
    bound, exact = indexed_mean_jct(work, intervals=12, points=500), Exact(work).mean_jct()
    assert bound <= exact * CLOSE
    assert bound >= float(work.alone_s.mean()) * (1 - 1e-6)


@SOME
@given(small_workloads(width=True))
def test_gangs_cannot_beat_it_either(work: Workload) -> None:
    assert indexed_mean_jct(work, intervals=12, points=500) <= Exact(work, gangs=True).mean_jct() * CLOSE


@SOME
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 5)), min_size=1, max_size=4),
)
def test_least_remaining_work_first_is_the_best_of_one_machine(jobs: list[tuple[int, int]]) -> None:
    arrival, need = (np.array(column, dtype=float) for column in zip(*jobs, strict=True))
    total, _ = least_remaining_work(need, arrival)
    one = Workload(np.ones((len(jobs), 1)), need, np.ones(1), arrival)
    assert total == Exact(one).mean_jct() * len(jobs)


@SOME
@given(st.lists(st.tuples(st.floats(0, 8), st.floats(0.5, 5)), min_size=1, max_size=5))
def test_the_slope_says_how_much_later_everybody_ends(jobs: list[tuple[float, float]]) -> None:
    """Against a small change. At ties the slope jumps; they are moved apart first."""
    arrival, need = (np.array(column) + 1e-3 * np.arange(len(jobs)) for column in zip(*jobs, strict=True))
    total, carried = least_remaining_work(need, arrival)
    for job in range(len(jobs)):
        more = need.copy()
        more[job] += 1e-9
        less = need.copy()
        less[job] -= 1e-9
        up, down = least_remaining_work(more, arrival)[0] - total, total - least_remaining_work(less, arrival)[0]
        if abs(up - down) < 1e-12:
            assert abs(up / 1e-9 - carried[job]) < 1e-2
