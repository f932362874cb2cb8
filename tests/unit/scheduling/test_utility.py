import numpy as np
import pytest
from numpy.typing import NDArray

from hadare.model.errors import Rejected
from hadare.scheduling.utility import F, Stake, register, urgency_of, utility_names, utility_of


def a_stake(**changes: float) -> Stake[float]:
    usual = {"weight": 1.0, "gang": 1.0, "ideal_s": 100.0, "age_s": 50.0, "left_s": 80.0, "fair_s": 200.0}
    return Stake(**{**usual, "deadline_s": 1000.0, "end_s": 800.0, **changes})


def test_a_job_that_finishes_in_its_ideal_time_is_worth_its_gang_times_its_weight() -> None:
    assert utility_of("throughput").value(a_stake(weight=3, gang=2), 100.0) == pytest.approx(6.0)


def test_least_remaining_work_looks_at_the_time_left_and_not_at_the_age() -> None:
    utility = utility_of("least_remaining_work")
    assert utility.value(a_stake(age_s=50), 60.0) == utility.value(a_stake(age_s=5000), 5010.0)


def test_least_remaining_work_prefers_the_job_with_less_left() -> None:
    utility = utility_of("least_remaining_work")
    assert utility.value(a_stake(), 60.0) > utility.value(a_stake(), 70.0)


def test_completion_times_prefers_short_jobs_until_a_long_one_needs_nearly_all_the_time_that_is_left() -> None:
    utility = utility_of("completion_times")

    def value(left_s: float, end_s: float) -> float:
        return utility.value(a_stake(age_s=0.0, left_s=left_s, end_s=end_s), left_s)

    assert value(80.0, 8000.0) > value(1000.0, 8000.0) > value(4000.0, 8000.0)
    assert value(7900.0, 8000.0) > value(80.0, 8000.0)


def test_completion_times_is_worth_half_at_half_the_speed() -> None:
    utility, stake = utility_of("completion_times"), a_stake(age_s=50.0, left_s=80.0)
    assert utility.value(stake, 50.0 + 160.0) == pytest.approx(utility.value(stake, 50.0 + 80.0) / 2)


def test_an_array_of_jobs_is_worth_what_each_alone_is() -> None:
    one = np.array([1.0, 1.0])
    stakes: Stake[NDArray[np.float64]] = Stake(
        weight=np.array([1.0, 2.0]),
        gang=np.array([1.0, 4.0]),
        ideal_s=np.array([9.0, 3.0]),
        age_s=np.array([0.0, 1.0]),
        left_s=one,
        fair_s=one,
        deadline_s=one,
        end_s=one,
    )
    values = utility_of("throughput").value(stakes, np.array([10.0, 6.0]))
    assert values == pytest.approx([0.9, 4.0])


def test_an_unknown_utility_is_refused_with_the_known_names() -> None:
    with pytest.raises(
        Rejected, match="finish_time_fairness, hard_deadline, least_remaining_work, makespan, throughput"
    ):
        utility_of("fame")


def test_a_new_utility_is_found_by_its_name() -> None:
    class Constant:
        name = "throughput"

        def value(self, stake: Stake[F], finish_s: F) -> F:
            return finish_s * 0 + 1

    before = utility_of("throughput")
    register(Constant())
    try:
        assert utility_of("throughput").value(a_stake(), 1e9) == 1
    finally:
        register(before)
    assert utility_names().count("throughput") == 1


def test_makespan_prefers_the_job_that_has_longest_to_go() -> None:
    utility = utility_of("makespan")
    assert utility.value(a_stake(left_s=500.0), 550.0) > utility.value(a_stake(left_s=80.0), 130.0)


def test_makespan_places_a_job_where_it_runs_near_its_best_speed() -> None:
    utility = utility_of("makespan")
    assert utility.value(a_stake(), 130.0) == pytest.approx(2 * utility.value(a_stake(), 210.0))


def test_fairness_counts_more_who_has_been_here_longer_than_a_fair_share_would_take() -> None:
    utility = utility_of("finish_time_fairness")
    assert utility.value(a_stake(age_s=600.0), 680.0) > utility.value(a_stake(age_s=0.0), 80.0)


def test_until_its_deadline_a_job_does_not_care_when_it_finishes() -> None:
    for name in ("deadline", "hard_deadline"):
        assert utility_of(name).value(a_stake(), 999.0) == utility_of(name).value(a_stake(), 200.0)


def test_after_a_soft_deadline_worth_falls_and_after_a_hard_one_there_is_none() -> None:
    assert utility_of("deadline").value(a_stake(), 1100.0) == pytest.approx(
        0.5 * utility_of("deadline").value(a_stake(), 1000.0)
    )
    assert utility_of("hard_deadline").value(a_stake(), 1001.0) == 0.0


def test_a_deadline_that_comes_near_makes_a_job_urgent() -> None:
    utility = utility_of("deadline")
    assert utility.value(a_stake(deadline_s=140.0), 130.0) > utility.value(a_stake(deadline_s=10_000.0), 130.0)


def test_a_job_without_a_deadline_has_all_the_time_in_the_world() -> None:
    assert utility_of("hard_deadline").value(a_stake(deadline_s=float("inf")), 1e12) == pytest.approx(1.0)


def test_a_utility_that_says_no_more_has_an_urgency_by_what_is_gained_per_work_done() -> None:
    assert urgency_of(utility_of("throughput"), a_stake(weight=3.0)) == 3.0
    longer, shorter = a_stake(left_s=500.0), a_stake(left_s=50.0)
    assert urgency_of(utility_of("makespan"), longer) == pytest.approx(
        100 * urgency_of(utility_of("makespan"), shorter)
    )
