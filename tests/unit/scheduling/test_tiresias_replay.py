"""The disciplines on equal devices: what the original simulator gave, and each rule on its own."""

from __future__ import annotations

import pytest

from builders_baselines import golden, tiresias_trace
from hadare.model.errors import Rejected
from hadare.scheduling.baselines.disciplines import FitFirst, LeastAttainedService, ShortestDeviceTime, YarnFifo
from hadare.scheduling.baselines.las import LasQueues, LasRules, Service
from hadare.scheduling.baselines.replay import Discipline, TraceJob, replay
from hadare.scheduling.baselines.yarn import NodeGaps

CASES: dict[str, dict[str, float]] = golden("tiresias_sim.json")["results"]


def discipline(name: str) -> Discipline:
    """The original's names: ``dlas`` counts seconds, ``dlas-gpu-k`` device-seconds with promotion after k."""
    plain: dict[str, Discipline] = {
        "yarn-fifo": YarnFifo([4] * 4),
        "fjf": FitFirst(16),
        "shortest-gpu": ShortestDeviceTime(16),
        "dlas": LeastAttainedService(16, LasRules(two_dimensional=False)),
    }
    if name in plain:
        return plain[name]
    return LeastAttainedService(16, LasRules(promote_after=float(name.removeprefix("dlas-gpu-")), late_jumps=True))


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_original_simulators_results_are_reproduced(case: str) -> None:
    name = case.removeprefix("60_job_")
    trace = tiresias_trace(20 if name.startswith("x20_") else 1)
    result = replay(trace, discipline(name.removeprefix("x20_")))
    expected = CASES[case]
    assert result.mean_jct_s == pytest.approx(expected["avg_jct"], abs=0.006)
    assert result.median_jct_s == expected["median_jct"]
    assert result.max_jct_s == expected["max_jct"]
    assert result.makespan_s == expected["makespan"]
    assert (result.preemptions, result.promotions) == (expected["preempt"], expected["promote"])


def run(trace: list[tuple[int, int, int]], how: Discipline) -> dict[str, float]:
    """Completion times of jobs a, b, … given as (submit, gang, duration)."""
    jobs = [TraceJob("abcdefgh"[i], *job) for i, job in enumerate(trace)]
    return replay(jobs, how).jct_s


def test_a_job_past_its_limit_lets_a_newcomer_pass() -> None:
    rules = LasRules(limits=(100.0,))
    assert run([(0, 2, 80), (50, 2, 30)], LeastAttainedService(2, rules)) == {"a": 110, "b": 30}
    assert run([(0, 2, 80), (49, 2, 30)], LeastAttainedService(2, rules)) == {"a": 110, "b": 31}


def test_one_dimensional_service_ignores_the_gang_size() -> None:
    rules = LasRules(limits=(100.0,), two_dimensional=False)
    assert run([(0, 2, 80), (50, 2, 30)], LeastAttainedService(2, rules)) == {"a": 80, "b": 60}


def test_a_gang_is_demoted_in_time_unless_the_originals_jumps_are_asked_for() -> None:
    """b comes when a has 10 of the 50 seconds that it may have in the first queue."""
    trace = [(0, 2, 200), (10, 2, 30)]
    assert run(trace, LeastAttainedService(2, LasRules(limits=(100.0,))))["b"] == 70
    assert run(trace, LeastAttainedService(2, LasRules(limits=(100.0,), late_jumps=True)))["b"] == 75


def test_a_job_is_demoted_by_one_queue_at_a_time_and_never_out_of_the_last() -> None:
    queues = LasQueues(LasRules(limits=(10.0, 20.0)))
    job = Service("a", gang=1, checked_s=0.0)
    queues.arrive(job)
    levels = []
    for now_s in (0.0, 50.0, 50.0, 90.0):
        queues.advance(now_s)
        queues.turn({"a"})
        levels.append(job.level)
    assert levels == [0, 1, 2, 2]


def test_who_does_not_fit_is_skipped_and_later_ones_pass() -> None:
    assert run([(0, 1, 50), (1, 2, 10), (2, 1, 10)], LeastAttainedService(2, LasRules()))["c"] == 10


def test_running_jobs_are_not_pre_empted_by_later_arrivals_of_their_queue() -> None:
    trace = [TraceJob("a", 0, 1, 50), TraceJob("b", 1, 2, 10), TraceJob("c", 2, 1, 10), TraceJob("d", 11, 2, 5)]
    assert replay(trace, LeastAttainedService(2, LasRules())).preemptions == 0


def starved(promote_after: float | None) -> dict[str, float]:
    """One device, a long job of 10 s a turn, and a new short one every 12 s."""
    rules = LasRules(limits=(10.0,), promote_after=promote_after)
    short = [(9 + 9 * i, 1, 9) for i in range(7)]
    return run([(0, 1, 30), *short], LeastAttainedService(1, rules))


def test_without_promotion_short_jobs_starve_a_long_one_and_with_it_they_do_not() -> None:
    assert starved(None)["a"] == 30 + 7 * 9
    assert starved(1.0)["a"] < starved(None)["a"]


def test_a_promoted_job_starts_anew_in_the_first_queue() -> None:
    queues = LasQueues(LasRules(limits=(10.0,), promote_after=2.0))
    job = Service("a", gang=1, checked_s=0.0)
    queues.arrive(job)
    queues.turn({"a"})
    queues.advance(10.0)
    queues.turn(set())
    queues.advance(29.0)
    assert (job.level, job.promotions) == (1, 0)
    assert queues.seconds_to_jump() == 1.0
    queues.advance(30.0)
    assert (job.level, job.promotions, job.served_s, job.waited_s) == (0, 1, 0.0, 0.0)


def test_the_head_of_yarns_line_blocks_everybody_behind_it() -> None:
    trace = [(0, 1, 50), (1, 2, 10), (2, 1, 10)]
    assert run(trace, YarnFifo([2])) == {"a": 50, "b": 59, "c": 68}
    assert run(trace, FitFirst(2))["c"] == 10


def test_yarn_keeps_a_small_gang_on_one_node_though_devices_are_free_elsewhere() -> None:
    gaps = NodeGaps([4, 4], free=[1, 1])
    assert gaps.find(2) == ()
    assert gaps.find(1) == ((0, 1),)


def test_yarn_gives_a_large_gang_idle_nodes_and_the_rest_on_another() -> None:
    assert NodeGaps([4, 4, 4], free=[2, 4, 4]).find(6) == ((1, 4), (0, 2))
    assert NodeGaps([4, 4, 4], free=[4, 3, 3]).find(8) == ()
    assert NodeGaps([4, 4, 4], free=[4, 4, 1]).find(10) == ()


def test_the_shortest_device_time_first_pre_empts() -> None:
    result = replay([TraceJob("a", 0, 2, 100), TraceJob("b", 10, 1, 20)], ShortestDeviceTime(2))
    assert result.jct_s == {"a": 120, "b": 20}
    assert result.preemptions == 1


def test_a_job_that_can_never_run_is_named() -> None:
    with pytest.raises(Rejected, match="never fit: b"):
        run([(0, 1, 5), (0, 5, 5)], FitFirst(4))
