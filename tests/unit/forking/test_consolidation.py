from __future__ import annotations

import math

import pytest

from hadare.forking.consolidation import (
    Claim,
    Evidence,
    Rule,
    combine_scalars,
    judge,
    largest,
    path_steps,
    rule_for,
    screen,
    weights,
)


def a_claim(fork: int = 0, steps: int = 10, spec: str = "s", base: str = "") -> Claim:
    return Claim(fork=fork, steps=steps, spec=spec, base=base)


def an_evidence(fork: int, norm: float, steps: int = 100, finite: bool = True) -> Evidence:
    return Evidence(fork=fork, steps=steps, finite=finite, norm=norm)


@pytest.mark.parametrize(
    ("name", "dtype", "rule"),
    [
        ("model.layer.weight", "F32", Rule.AVERAGE),
        ("model.layer.weight", "BF16", Rule.AVERAGE),
        ("model.phase", "C64", Rule.AVERAGE),
        ("model.norm.running_mean", "F32", Rule.AVERAGE),
        ("model.norm.num_batches_tracked", "I64", Rule.SUM_OF_INCREMENTS),
        ("model.ema.n_averaged", "I64", Rule.SUM_OF_INCREMENTS),
        ("model.mask", "BOOL", Rule.SAME_OR_LARGEST),
        ("model.vocabulary", "I64", Rule.SAME_OR_LARGEST),
        ("model.step", "F32", Rule.AVERAGE),
        ("optim.layer.weight.step", "F32", Rule.MAXIMUM),
        ("optim.layer.weight.step", "I64", Rule.MAXIMUM),
        ("optim.layer.weight.max_exp_avg_sq", "F32", Rule.MAXIMUM),
        ("optim.layer.weight.exp_avg_sq", "F32", Rule.AVERAGE),
        ("optim.layer.weight.momentum_buffer", "F32", Rule.AVERAGE),
    ],
)
def test_every_kind_of_tensor_has_its_rule(name: str, dtype: str, rule: Rule) -> None:
    assert rule_for(name, dtype) is rule


def test_weights_are_shares_of_the_steps() -> None:
    assert weights({2: 30, 0: 10, 1: 60}) == {0: 0.1, 1: 0.6, 2: 0.3}


def test_nobody_has_a_weight_when_nobody_has_a_step() -> None:
    assert weights({0: 0, 1: 0}) == {}


def test_a_fork_without_steps_is_left_out() -> None:
    assert screen([a_claim(steps=0)], spec="s").rejected == {0: "no steps"}


def test_a_negative_step_count_is_rejected() -> None:
    assert "negative" in screen([a_claim(steps=-5)], spec="s").rejected[0]


def test_a_fork_that_reports_more_steps_than_the_round_can_hold_is_rejected() -> None:
    verdict = screen([a_claim(0, steps=100), a_claim(1, steps=101)], spec="s", max_steps=100)
    assert (verdict.kept, list(verdict.rejected)) == ((0,), [1])


def test_a_fork_of_another_model_is_rejected_whole() -> None:
    assert screen([a_claim(0), a_claim(1, spec="t")], spec="s").kept == (0,)


def test_a_fork_of_another_base_is_rejected() -> None:
    verdict = screen([a_claim(0, base="v3"), a_claim(1, base="v2")], spec="s", base="v3")
    assert verdict.rejected == {1: "trained from another base"}


def test_a_fork_that_does_not_name_its_base_is_the_ledgers_to_judge() -> None:
    assert screen([a_claim(base="")], spec="s", base="v3").kept == (0,)


def test_a_fork_that_is_not_finite_is_dropped_and_the_others_stay() -> None:
    verdict = judge([an_evidence(0, 1.0), an_evidence(1, math.inf, finite=False)], max_norm_ratio=5)
    assert (verdict.kept, verdict.rejected) == ((0,), {1: "not finite"})


def test_a_delta_far_above_the_median_is_an_outlier() -> None:
    verdict = judge([an_evidence(0, 1.0), an_evidence(1, 1.2), an_evidence(2, 6.1)], max_norm_ratio=5)
    assert list(verdict.rejected) == [2]


def test_a_delta_may_be_longer_because_more_steps_were_done() -> None:
    """√n: a hundred times the steps allow ten times the norm."""
    seen = [an_evidence(0, 1.0, steps=100), an_evidence(1, 1.1, steps=100), an_evidence(2, 10.0, steps=10_000)]
    assert judge(seen, max_norm_ratio=2).kept == (0, 1, 2)


def test_two_forks_cannot_outvote_one_another() -> None:
    assert judge([an_evidence(0, 1.0), an_evidence(1, 1000.0)], max_norm_ratio=1.5).kept == (0, 1)


def test_a_broken_fork_does_not_count_as_a_vote() -> None:
    seen = [an_evidence(0, 1.0), an_evidence(1, 1000.0), an_evidence(2, 1.0, finite=False)]
    assert judge(seen, max_norm_ratio=5).kept == (0, 1)


def test_forks_that_changed_nothing_are_no_yardstick() -> None:
    seen = [an_evidence(0, 0.0), an_evidence(1, 0.0), an_evidence(2, 1.0)]
    assert judge(seen, max_norm_ratio=5).kept == (0, 1, 2)


def test_the_largest_fork_is_the_one_with_most_steps_and_then_the_smallest_id() -> None:
    assert largest({3: 5, 1: 9, 2: 9}) == 1


def test_one_fork_moves_a_job_by_all_of_its_steps() -> None:
    assert path_steps([120]) == 120


def test_equal_forks_move_a_job_by_the_steps_of_one() -> None:
    assert path_steps([50, 50, 50, 50]) == 50


def test_unequal_forks_move_a_job_by_their_weighted_mean() -> None:
    """10:6:4:3:1 advance 0.675 of the fastest one's steps (docs/explanation/consolidation.md)."""
    assert path_steps([1000, 600, 400, 300, 100]) == 675


def test_an_optimisers_step_number_is_the_maximum() -> None:
    assert combine_scalars({0: {"w.step": 10}, 1: {"w.step": 7}}, {0: 5, 1: 50}) == {"w.step": 10}


def test_a_fraction_among_the_optimisers_numbers_is_averaged_by_steps() -> None:
    combined = combine_scalars({0: {"w.eta": 1.0}, 1: {"w.eta": 2.0}}, {0: 75, 1: 25})
    assert combined == {"w.eta": 1.25}


def test_other_values_are_the_largest_forks() -> None:
    scalars = {0: {"w.mode": "a", "w.n": 3, "w.on": True}, 1: {"w.mode": "b", "w.n": 4, "w.on": False}}
    assert combine_scalars(scalars, {0: 1, 1: 2}) == {"w.mode": "b", "w.n": 4, "w.on": False}
