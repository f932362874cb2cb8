import numpy as np
import pytest
from numpy.typing import NDArray

from hadare.model.errors import Rejected
from hadare.scheduling.utility import F, Stake, register, utility_names, utility_of


def a_stake(weight: float = 1.0, gang: float = 1.0, ideal_s: float = 100.0, age_s: float = 50.0) -> Stake[float]:
    return Stake(weight=weight, gang=gang, ideal_s=ideal_s, age_s=age_s)


def test_a_job_that_finishes_in_its_ideal_time_is_worth_its_gang_times_its_weight() -> None:
    assert utility_of("throughput").value(a_stake(weight=3, gang=2), 100.0) == pytest.approx(6.0)


def test_least_remaining_work_looks_at_the_time_left_and_not_at_the_age() -> None:
    utility = utility_of("least_remaining_work")
    assert utility.value(a_stake(age_s=50), 60.0) == utility.value(a_stake(age_s=5000), 5010.0)


def test_least_remaining_work_prefers_the_job_with_less_left() -> None:
    utility = utility_of("least_remaining_work")
    assert utility.value(a_stake(), 60.0) > utility.value(a_stake(), 70.0)


def test_an_array_of_jobs_is_worth_what_each_alone_is() -> None:
    stakes: Stake[NDArray[np.float64]] = Stake(
        weight=np.array([1.0, 2.0]), gang=np.array([1.0, 4.0]), ideal_s=np.array([9.0, 3.0]), age_s=np.array([0.0, 1.0])
    )
    values = utility_of("throughput").value(stakes, np.array([10.0, 6.0]))
    assert values == pytest.approx([0.9, 4.0])


def test_an_unknown_utility_is_refused_with_the_known_names() -> None:
    with pytest.raises(Rejected, match="least_remaining_work, throughput"):
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
    assert utility_names() == ("least_remaining_work", "throughput")
