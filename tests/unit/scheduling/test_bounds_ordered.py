"""The exact mean completion time of a few jobs that fork ideally."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from hadare.bench.paper import mix_rows, nodes_named
from hadare.model.errors import Rejected
from hadare.scheduling.bounds import Workload, best_pooled_mean_jct, ordered_mean_jct
from hadare.scheduling.bounds.ordered import mean_jct_in
from hadare.simulator.rates import shipped_table
from hadare.simulator.study import devices_of, prepare


def work(rates: list[list[float]], steps: list[float], devices: list[float]) -> Workload:
    return Workload(np.array(rates, dtype=float), np.array(steps, dtype=float), np.array(devices, dtype=float))


def mix(name: str, cluster: str) -> Workload:
    nodes = nodes_named(cluster)
    jobs, devices = prepare(mix_rows(name, 0), shipped_table(), nodes), devices_of(nodes)
    rates = [[job.rates(True).get(kind, 0.0) for kind in devices] for job in jobs]
    return work(rates, [job.total_steps for job in jobs], list(devices.values()))


def test_equal_devices_serve_the_shortest_first() -> None:
    of_three = work([[1], [1], [1]], [3, 1, 2], [1])
    assert ordered_mean_jct(of_three) == pytest.approx((1 + 3 + 6) / 3)
    assert ordered_mean_jct(of_three) == pytest.approx(best_pooled_mean_jct(of_three).mean_jct_s, rel=1e-4)


def test_jobs_that_can_use_one_type_each_do_not_wait_for_each_other() -> None:
    assert ordered_mean_jct(work([[1, 0], [0, 1]], [10, 30], [1, 1])) == pytest.approx(20)


def test_where_jobs_are_good_at_different_types_the_pooled_bound_is_out_of_reach() -> None:
    """Each alone on its own type: 10 s both. Pooled, the first would end after 5 s, as if it were as fast on both."""
    own = work([[10, 1], [1, 10]], [100, 100], [1, 1])
    assert best_pooled_mean_jct(own).mean_jct_s == pytest.approx(7.5, rel=1e-4)
    assert ordered_mean_jct(own) == pytest.approx(10)


def test_another_order_is_never_better_than_the_best() -> None:
    some = mix("M-3", "aws-like")
    best = ordered_mean_jct(some)
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        assert mean_jct_in(order, some) >= best * (1 - 1e-9)


def test_on_devices_whose_speeds_differ_by_job_a_tenth_of_the_pooled_bound_is_missing_and_else_nothing() -> None:
    apart, alike = mix("M-3", "aws-like"), mix("M-3", "testbed-like")
    assert ordered_mean_jct(apart) / best_pooled_mean_jct(apart).mean_jct_s == pytest.approx(1.078, abs=0.002)
    assert ordered_mean_jct(alike) / best_pooled_mean_jct(alike).mean_jct_s == pytest.approx(1.0, abs=0.001)


def test_more_work_never_ends_sooner() -> None:
    values = [ordered_mean_jct(work([[3, 1], [1, 2]], [50 * k, 100], [1, 2])) for k in (1, 2, 3)]
    assert all(less < more for less, more in pairwise(values))


def test_what_the_programme_cannot_do_is_refused() -> None:
    with pytest.raises(Rejected, match="only for up to 6 jobs"):
        ordered_mean_jct(work([[1]] * 7, [1] * 7, [1]))
