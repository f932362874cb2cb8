from __future__ import annotations

import pytest

from hadare.training.throttle import Pace, Throttle


def a_pace(rate: float = 10.0, max_lag_s: float = 1.0) -> Pace:
    pace = Pace(rate, max_lag_s=max_lag_s)
    pace.start(100.0)
    return pace


def test_a_quick_step_waits_until_its_deadline() -> None:
    assert a_pace().step_done(100.02) == pytest.approx(0.08)


def test_deadlines_do_not_drift() -> None:
    pace = a_pace()
    for n in range(1, 1000):
        pace.step_done(100.0 + n / 10)
    assert pace.next_end() == pytest.approx(200.0)


def test_a_late_step_does_not_wait() -> None:
    assert a_pace().step_done(100.3) == 0.0


def test_a_late_step_is_caught_up_by_the_next_ones() -> None:
    pace = a_pace()
    pace.step_done(100.25)
    assert pace.step_done(100.26) == 0.0
    assert pace.step_done(100.27) == pytest.approx(0.03)


def test_what_is_lost_beyond_the_bound_stays_lost() -> None:
    pace = a_pace(max_lag_s=1.0)
    pace.step_done(105.1)  # five seconds late: four are gone
    assert pace.next_end() == pytest.approx(104.2)


def test_a_rate_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        Pace(0.0)


def test_a_step_that_cannot_end_by_the_deadline_is_not_begun() -> None:
    throttle = Throttle(0.001)
    throttle.start()
    assert not throttle.fits(0.0)


@pytest.mark.parametrize("rate", [None, 0.0])
def test_without_a_rate_nothing_is_held_back(rate: float | None) -> None:
    throttle = Throttle(rate)
    throttle.start()
    throttle.wait()
    assert throttle.fits(0.0)
