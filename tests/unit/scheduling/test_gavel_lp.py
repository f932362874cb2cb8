"""Gavel's programmes: the optimum of Gavel's own code, and what the optimum must obey."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders_baselines import golden
from hadare.scheduling.baselines.gavel_lp import Shares, max_min_shares, max_sum_shares
from hadare.scheduling.eligibility import Floats

GOLDEN = golden("gavel_lp.json")
TYPES = ("v100", "p100", "k80")


def arrays(case: dict[str, Any]) -> tuple[Floats, Floats, Floats, Floats]:
    jobs = list(case["scale_factors"])
    rates = np.array([[GOLDEN["throughputs"][job][t] for t in TYPES] for job in jobs])
    gang = np.array([float(case["scale_factors"][job]) for job in jobs])
    weight = np.array([float(case["priority"][job]) for job in jobs])
    return rates, gang, weight, np.array([float(case["cluster"][t]) for t in TYPES])


def feasible(solved: Shares, gang: Floats, devices: Floats) -> bool:
    shares = solved.shares
    return bool(
        (shares >= 0).all() and (shares.sum(axis=1) <= 1 + 1e-6).all() and (gang @ shares <= devices + 1e-6).all()
    )


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"{case['policy']}-{case['cluster']}")
def test_the_optimum_equals_that_of_gavels_own_code(case: dict[str, Any]) -> None:
    rates, gang, weight, devices = arrays(case)
    if "objective_sum_steps_s" in case:
        solved, expected = max_sum_shares(rates, gang, devices), case["objective_sum_steps_s"]
    else:
        known = rates if "aware" in case["policy"] else np.ones_like(rates)
        solved, expected = max_min_shares(known, gang, weight, devices), case["objective_min"]
    assert solved.value == pytest.approx(expected, abs=1e-3)
    assert feasible(solved, gang, devices)


def reached(shares: Floats, rates: Floats, gang: Floats, weight: Floats, devices: Floats) -> Floats:
    """Every job's scaled throughput, straight from its definition."""
    proportional = devices / devices.sum()
    return np.array(
        [g / w * (x @ s) / (x @ proportional) for x, s, g, w in zip(rates, shares, gang, weight, strict=True)]
    )


def test_the_value_is_what_the_worst_served_job_reaches() -> None:
    rates, gang, weight, devices = arrays(GOLDEN["cases"][-2])
    solved = max_min_shares(rates, gang, weight, devices)
    assert reached(solved.shares, rates, gang, weight, devices).min() == pytest.approx(solved.value)


def test_a_larger_weight_brings_a_larger_share() -> None:
    rates, gang, devices = np.ones((2, 1)), np.ones(2), np.ones(1)
    assert max_min_shares(rates, gang, np.array([3.0, 1.0]), devices).shares == pytest.approx(
        np.array([[0.75], [0.25]])
    )


def test_a_missing_cell_is_never_used_and_does_not_count_in_the_equal_share() -> None:
    rates = np.array([[2.0, 0.0], [2.0, 1.0]])
    solved = max_min_shares(rates, np.ones(2), np.ones(2), np.array([1.0, 1.0]))
    # job 0 has 1 of an equal share of 1; job 1 of 1.5: with share s of the fast type, s/½ = (2(1−s) + s)/1.5
    assert solved.value == pytest.approx(1.0)
    assert solved.shares[0, 1] == pytest.approx(0.0, abs=1e-9)


def test_a_job_that_runs_nowhere_gets_nothing_and_drags_nobody_down() -> None:
    rates = np.array([[0.0, 0.0], [1.0, 1.0]])
    solved = max_min_shares(rates, np.ones(2), np.ones(2), np.array([1.0, 1.0]))
    assert solved.value == pytest.approx(1.0)
    assert not solved.shares[0].any()


@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (0, 0)])
def test_without_jobs_or_devices_there_is_nothing_to_share(shape: tuple[int, int]) -> None:
    solved = max_min_shares(np.ones(shape), np.ones(shape[0]), np.ones(shape[0]), np.ones(shape[1]))
    assert solved.value == 0.0
    assert solved.shares.shape == shape
    assert max_sum_shares(np.ones(shape), np.ones(shape[0]), np.ones(shape[1])).value == 0.0


def test_devices_of_a_type_that_has_none_are_not_shared_out() -> None:
    solved = max_min_shares(np.array([[5.0, 1.0]]), np.ones(1), np.ones(1), np.array([0.0, 1.0]))
    assert solved.value == pytest.approx(1.0)
    assert solved.shares[0, 0] == pytest.approx(0.0, abs=1e-9)
