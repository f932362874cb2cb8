"""A round ends with a job that ends if that loses less device time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import some_progress
from hadare.machines.round_length import length_of, round_length
from hadare.machines.round_phases import RoundSettings
from hadare.model.plans import ForkPlan, GangMember, RoundPlan


def a_plan(**jobs: tuple[int, float]) -> RoundPlan:
    """job=(devices, rate of each in steps/s)."""
    forks = [
        ForkPlan(
            job_id=job,
            fork=fork,
            gang=(GangMember(node=f"{job}-{fork}", type="V100"),),
            quota=10**6,
            rate=rate,
            price=0.0,
            payoff=1.0,
        )
        for job, (count, rate) in jobs.items()
        for fork in range(count)
    ]
    return RoundPlan(round=1, epoch=1, forks=tuple(forks))


def test_a_round_in_which_no_job_ends_is_a_full_one() -> None:
    assert round_length(a_plan(a=(2, 10.0)), {"a": 10**6}, 10.0, 0.2) == 10.0


def test_a_round_ends_with_the_job_that_holds_most_devices() -> None:
    lengths = round_length(a_plan(a=(4, 10.0), b=(1, 10.0)), {"a": 200, "b": 10**6}, 10.0, 0.2)
    assert lengths == pytest.approx(5.0)


def test_one_device_of_many_is_not_worth_a_boundary_for_all() -> None:
    assert round_length(a_plan(a=(1, 10.0), b=(59, 10.0)), {"a": 90, "b": 10**6}, 10.0, 0.2) == 10.0


def test_a_costly_boundary_makes_rounds_longer() -> None:
    plan, left = a_plan(a=(4, 10.0), b=(1, 10.0)), {"a": 200, "b": 10**6}
    assert round_length(plan, left, 10.0, 9.0) == 10.0


def test_a_job_that_is_almost_done_does_not_make_a_round_of_nothing() -> None:
    assert round_length(a_plan(a=(4, 10.0), b=(1, 10.0)), {"a": 1, "b": 10**6}, 10.0, 0.0) == 10.0


def test_a_round_that_ends_with_a_job_leaves_it_time_for_its_last_steps() -> None:
    plan, settings = a_plan(a=(4, 10.0), b=(1, 10.0)), RoundSettings(epoch=1, round_s=10.0, boundary_s=0.2)
    progress = {
        name: some_progress(name, total_steps=1000, steps=1000 - left) for name, left in (("a", 200), ("b", 900))
    }
    late = 5.0 * 1.01 + 0.1  # the rate was a bit too high, and the first step came after the weights
    assert late < length_of(plan, progress, settings) < 5.5
    assert length_of(plan, progress, replace(settings, exact=True)) == pytest.approx(5.0)


@pytest.mark.parametrize("boundary_s", [None, 0.2])
def test_no_round_is_longer_than_a_full_one(boundary_s: float | None) -> None:
    plan, settings = a_plan(a=(4, 10.0)), RoundSettings(epoch=1, round_s=10.0, boundary_s=boundary_s)
    assert length_of(plan, {"a": some_progress("a", total_steps=1000, steps=602)}, settings) == 10.0


def test_an_empty_plan_has_the_full_length() -> None:
    assert round_length(a_plan(), {}, 10.0, 0.2) == 10.0


@given(
    jobs=st.dictionaries(
        st.sampled_from("abcdef"), st.tuples(st.integers(1, 8), st.floats(0.1, 100.0)), min_size=1, max_size=6
    ),
    left=st.lists(st.integers(1, 100_000), min_size=6, max_size=6),
    boundary_s=st.floats(0.0, 5.0),
)
def test_it_never_loses_more_than_the_full_round_and_lies_within_it(
    jobs: dict[str, tuple[int, float]], left: list[int], boundary_s: float
) -> None:
    steps_left = dict(zip("abcdef", left, strict=True))
    length = round_length(a_plan(**jobs), steps_left, 10.0, boundary_s)
    assert 1.0 <= length <= 10.0

    def lost(seconds: float) -> float:
        idle = sum(count * max(0.0, seconds - steps_left[job] / (count * rate)) for job, (count, rate) in jobs.items())
        return (sum(count for count, _ in jobs.values()) * boundary_s + idle) / seconds

    assert lost(length) <= lost(10.0) * (1 + 1e-9)
