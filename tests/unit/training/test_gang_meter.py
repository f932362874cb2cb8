from __future__ import annotations

import pytest

from hadare.training.gang_meter import Meter
from hadare.training.granted import WARM_UP_STEPS


def updates(meter: Meter, count: int, *, took: float, waited: tuple[float, ...], steps: float = 0.5) -> None:
    """Updates of rank 0, of ``took`` seconds each; each rank waits as long every time."""
    for _ in range(count):
        meter.begin(0.0)
        meter.exchanged(steps, waited[0], waited)
        meter.end(took)


def test_a_ranks_own_speed_leaves_out_what_it_waits() -> None:
    meter = Meter(2)
    updates(meter, 10, took=1.0, waited=(0.8, 0.1))
    assert meter.steps_per_s() == pytest.approx(0.5 / 0.2)
    assert meter.update_s() == pytest.approx(1.0)


def test_the_exchange_is_what_the_last_to_come_spends_in_it() -> None:
    meter = Meter(3)
    updates(meter, 10, took=1.0, waited=(0.8, 0.1, 0.5))
    assert meter.exchange_s() == pytest.approx(0.1)


def test_the_first_updates_are_left_out_if_there_are_more() -> None:
    meter = Meter(1)
    updates(meter, WARM_UP_STEPS, took=9.0, waited=(3.0,))
    assert meter.update_s() == pytest.approx(9.0)
    updates(meter, 2, took=1.0, waited=(0.5,))
    meter.settle((0.5,))
    assert meter.update_s() == pytest.approx(1.0)
    assert meter.exchange_s() == pytest.approx(0.5)


def test_the_last_exchange_is_known_once_it_is_settled() -> None:
    meter = Meter(2)
    updates(meter, 1, took=1.0, waited=(0.8, 0.2))
    assert meter.exchange_s() == 0.0
    meter.settle((0.8, 0.2))
    meter.settle((0.8, 0.2))
    assert meter.exchange_s() == pytest.approx(0.2)


def test_nothing_done_is_nothing_measured() -> None:
    meter = Meter(2)
    assert (meter.steps_per_s(), meter.update_s(), meter.exchange_s()) == (0.0, 0.0, 0.0)
