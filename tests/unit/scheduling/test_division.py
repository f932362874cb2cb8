import pytest

from hadare.scheduling.division import quotas, share, slack


def test_steps_are_shared_by_speed_so_that_forks_end_together() -> None:
    assert quotas(100, [1000.0, 3000.0], [1.5, 1.5]) == (25, 75)


def test_with_much_left_the_clock_ends_the_forks_and_the_quota_is_a_generous_bound() -> None:
    assert quotas(10**9, [1000.0, 3000.0], [1.5, 4.0]) == (1500, 12000)


def test_just_before_the_end_the_whole_rest_is_given_out() -> None:
    # the round is expected to hold 4,000 of 5,000 steps; rates may prove higher, so all 5,000 may be done
    assert sum(quotas(5000, [1000.0, 3000.0], [1.5, 1.5])) == 5000


def test_fewer_steps_than_forks_leave_the_slowest_without() -> None:
    assert quotas(2, [5.0, 9.0, 7.0], [1.5] * 3) == (0, 1, 1)


def test_a_single_fork_gets_all_that_is_left() -> None:
    assert quotas(7, [1e6], [1.5]) == (7,)


def test_a_very_slow_fork_still_gets_a_step() -> None:
    assert share(10, [1000.0, 0.001]) == (9, 1)


def test_equal_remainders_go_to_the_earlier_fork() -> None:
    assert share(5, [1.0, 1.0]) == (3, 2)


def test_nothing_left_gives_nothing() -> None:
    assert quotas(0, [5.0], [1.5]) == (0,)


@pytest.mark.parametrize(("sureness", "bound"), [(0.0, 4.0), (1.0, 1.5), (7.0, 1.5), (-1.0, 4.0)])
def test_unmeasured_forks_get_more_room(sureness: float, bound: float) -> None:
    assert slack(sureness) == bound
