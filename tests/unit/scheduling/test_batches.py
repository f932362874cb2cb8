"""Shares of a gang's batch."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadare.scheduling.batches import balanced, equal, slowest_s

SPEEDS = st.lists(st.floats(0.1, 100.0), min_size=1, max_size=8)


def brute(batch: int, speeds: list[float], least: int) -> float:
    """The least time of any division."""
    divisions = (parts for parts in product(range(least, batch + 1), repeat=len(speeds)) if sum(parts) == batch)
    return min(slowest_s(parts, speeds, 1) for parts in divisions)


def test_shares_are_in_proportion_to_speeds() -> None:
    assert balanced(24, [10.0, 6.0, 4.0, 3.0, 1.0]) == (10, 6, 4, 3, 1)


def test_nobody_has_less_than_a_sample_however_slow() -> None:
    assert balanced(8, [100.0, 1.0, 1.0]) == (6, 1, 1)


def test_who_would_only_hold_up_the_others_is_left_out_if_that_is_allowed() -> None:
    assert balanced(16, [10.0, 6.0, 4.0, 3.0, 0.5], least=0)[-1] == 0


def test_fewer_samples_than_devices_are_refused_by_their_numbers() -> None:
    with pytest.raises(ValueError, match="a batch of 2 samples is too small for 3 devices"):
        balanced(2, [1.0, 1.0, 1.0])


def test_a_speed_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        balanced(8, [1.0, 0.0])


def test_lockstep_shares_are_equal_whatever_the_speeds() -> None:
    assert equal(12, 3) == (4, 4, 4)
    assert equal(13, 3) == (5, 4, 4)


@given(st.integers(1, 12), st.lists(st.floats(0.1, 100.0), min_size=1, max_size=3), st.sampled_from([0, 1]))
def test_no_division_is_done_sooner(batch: int, speeds: list[float], least: int) -> None:
    if batch < least * len(speeds):
        return
    shares = balanced(batch, speeds, least)
    assert slowest_s(shares, speeds, 1) <= brute(batch, speeds, least) * (1 + 1e-9)


@given(st.integers(8, 10**7), SPEEDS, st.sampled_from([0, 1]))
def test_shares_add_up_to_the_batch(batch: int, speeds: list[float], least: int) -> None:
    shares = balanced(batch, speeds, least)
    assert sum(shares) == batch
    assert min(shares) >= least
