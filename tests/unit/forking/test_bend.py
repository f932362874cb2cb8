"""When a loss curve bends."""

from __future__ import annotations

import math

import pytest

from hadare.forking.bend import LONGEST, is_bent


def first_bend(losses: list[float]) -> int | None:
    return next((n for n in range(1, len(losses) + 1) if is_bent(losses[:n])), None)


def test_a_steady_fall_has_not_bent() -> None:
    assert first_bend([3.0 - 0.1 * n for n in range(20)]) is None


@pytest.mark.parametrize(("half_life", "rounds"), [(0.5, 3), (4.0, 9)])
def test_a_fall_that_halves_bends_sooner_the_faster_it_does(half_life: float, rounds: int) -> None:
    assert first_bend([1.0 + 2.0 * math.exp(-n * math.log(2) / half_life) for n in range(30)]) == rounds


def test_a_loss_that_rises_has_bent() -> None:
    assert is_bent([3.0, 2.5, 2.6])


def test_two_rounds_are_not_a_curve() -> None:
    assert not is_bent([3.0, 2.9])


def test_no_job_waits_for_ever() -> None:
    assert is_bent([float(-n) for n in range(LONGEST)])


@pytest.mark.parametrize(
    ("losses", "rounds"),
    [
        ([0.641, 0.209, 0.241, 0.158, 0.121], 3),  # digits, rounds of 60 steps
        ([0.272, 0.098, 0.098, 0.092], 3),  # weather, 60
        ([3.157, 2.824, 2.607, 2.622, 2.502], 4),  # charlm, 60
        ([0.989, 0.902, 0.905, 0.853], 3),  # recommendation, 160
    ],
)
def test_measured_curves_of_one_worker_bend_where_they_do(losses: list[float], rounds: int) -> None:
    assert first_bend(losses) == rounds
