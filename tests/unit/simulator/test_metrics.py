"""Figures of runs that can be worked out by hand."""

from __future__ import annotations

import pytest

from builders_simulator import a_sim_job, a_sim_node, simulated
from hadare.simulator.metrics import metrics_of, quantile
from hadare.simulator.record import BUCKETS, Gantt, Series, Stretch


def test_a_device_that_trains_all_the_time_is_in_use_all_the_time() -> None:
    metrics = metrics_of(simulated([a_sim_job()], [a_sim_node()]))
    assert (metrics.cru, metrics.gru, metrics.ttd_s) == pytest.approx((1.0, 1.0, 3600.0))


def test_an_idle_device_halves_the_use() -> None:
    metrics = metrics_of(simulated([a_sim_job()], [a_sim_node("n1", V100=2)], "yarn-cs"))
    assert metrics.cru == pytest.approx(0.5)


def test_a_slow_device_in_use_is_worth_its_speed() -> None:
    metrics = metrics_of(simulated([a_sim_job(total_steps=54_000)], [a_sim_node("n1", V100=1, P100=1)]))
    assert metrics.cru == pytest.approx(1.0, abs=0.01)
    assert metrics.gru == pytest.approx((1.0 + 0.5) / 2, abs=0.01)


def test_total_time_is_from_the_first_arrival_to_the_last_finish() -> None:
    jobs = [a_sim_job("job-a", arrival_s=1000.0), a_sim_job("job-b", arrival_s=1000.0)]
    metrics = metrics_of(simulated(jobs, [a_sim_node()], "yarn-cs", round_s=0.0))
    assert metrics.ttd_s == pytest.approx(7200.0)
    assert metrics.mean_jct_s == pytest.approx((3600 + 7200) / 2)
    assert metrics.mean_queued_s == pytest.approx(3600 / 2)


def test_restarts_are_in_use_only_once_they_train() -> None:
    from hadare.simulator.settings import Costs

    metrics = metrics_of(simulated([a_sim_job()], [a_sim_node()], costs=Costs(restart_s=400.0), round_s=3600.0))
    assert metrics.cru == pytest.approx(3600 / 4000, abs=0.01)
    assert metrics.restart_device_s == pytest.approx(400.0)


def test_who_gets_his_fair_share_has_a_fairness_of_one() -> None:
    jobs = [a_sim_job("job-a"), a_sim_job("job-b")]
    metrics = metrics_of(simulated(jobs, [a_sim_node("n1", V100=2)], "yarn-cs"))
    assert metrics.mean_fairness == pytest.approx(1.0)


def test_who_waits_for_another_has_a_worse_one() -> None:
    jobs = [a_sim_job("job-a"), a_sim_job("job-b")]
    metrics = metrics_of(simulated(jobs, [a_sim_node()], "yarn-cs", round_s=0.0))
    # The second was there for 7,200 s, with 1.5 jobs on average: its fair share would have taken 5,400 s.
    assert metrics.worst_fairness == pytest.approx(7200 / 5400)


@pytest.mark.parametrize(("part", "value"), [(0.0, 1.0), (0.5, 2.0), (0.75, 3.0), (0.95, 4.0), (1.0, 4.0)])
def test_a_quantile_is_the_smallest_value_that_enough_do_not_exceed(part: float, value: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], part) == value


def test_a_series_keeps_its_means_when_its_buckets_are_joined() -> None:
    series = Series(["used"])
    for number in range(4 * BUCKETS):
        series.add(number * 360.0, (number + 1) * 360.0, {"used": float(number % 2)})
    points = series.points("used")
    assert len(points) <= BUCKETS
    assert all(value == pytest.approx(0.5) for _, value in points)


def test_a_stretch_grows_while_the_job_stays() -> None:
    stretches: list[Stretch] = []
    gantt = Gantt(stretches)
    for began in (0.0, 360.0, 720.0):
        gantt.add(("n1", 0), "job-a", began, began + 360.0)
    gantt.add(("n1", 0), "job-b", 1080.0, 1440.0)
    assert [(s.job_id, s.began_s, s.ended_s) for s in stretches] == [("job-a", 0.0, 1080.0), ("job-b", 1080.0, 1440.0)]
