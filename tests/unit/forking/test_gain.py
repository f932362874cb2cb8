"""What forking is worth: estimated from norms and cosines alone, and checked against vectors that are known."""

from __future__ import annotations

import numpy as np
import pytest

from hadare.forking.gain import MOST, Change, gain, gains, noise_of, smoothed

STEPS = (60, 36, 24, 18, 6)


def changes(noise: float, steps: tuple[int, ...] = STEPS, size: int = 200_000, seed: int = 0) -> list[Change]:
    """Forks that share a way and have noise of their own, so that the two are equally long after ``noise`` steps."""
    random = np.random.default_rng(seed)
    shared = random.normal(size=size)
    shared /= np.linalg.norm(shared)
    deltas = [n * shared + np.sqrt(noise * n / size) * random.normal(size=size) for n in steps]
    mean = sum(n * delta for n, delta in zip(steps, deltas, strict=True)) / sum(steps)
    return [
        Change(n, float(np.linalg.norm(d)), float(d @ mean / np.linalg.norm(d) / np.linalg.norm(mean)))
        for n, d in zip(steps, deltas, strict=True)
    ]


@pytest.mark.parametrize("noise", [0.5, 10.0, 60.0, 400.0])
def test_the_noise_of_known_vectors_is_found_from_their_norms_and_cosines(noise: float) -> None:
    assert noise_of(changes(noise)) == pytest.approx(noise, rel=0.1)


def test_forks_that_share_nothing_are_all_noise() -> None:
    assert noise_of([Change(10, 1.0, 0.5**0.5), Change(10, 1.0, 0.5**0.5)]) == MOST


def test_one_fork_shows_nothing() -> None:
    assert noise_of([Change(10, 1.0, 1.0)]) is None
    assert noise_of([Change(10, 1.0, 1.0), Change(0, 0.0, 0.0)]) is None


def test_while_forks_agree_averaging_only_shortens_the_way() -> None:
    assert gain(STEPS, noise=1e-3) == pytest.approx(0.675, abs=1e-3)


def test_equal_forks_without_a_shared_way_are_worth_their_sum() -> None:
    assert gain([50.0] * 5, noise=1e9) == pytest.approx(5.0, rel=1e-3)


def test_the_gain_grows_with_the_noise_and_never_beyond_the_summed_steps() -> None:
    found = [gain(STEPS, noise) for noise in (1.0, 20.0, 100.0, 1000.0, 1e8)]
    assert found == sorted(found)
    assert found[0] < 1.0 < found[-1] <= sum(STEPS) / max(STEPS)


def test_a_step_that_keeps_pace_does_not_shorten_the_way() -> None:
    assert gain(STEPS, noise=1e-3, keeps_pace=True) == pytest.approx(1.0, abs=1e-3)


def test_one_fork_is_worth_itself_and_each_more_is_of_the_next_fastest_device() -> None:
    found = gains([3.0, 10.0, 6.0, 0.0], fastest_steps=60.0, noise=100.0)
    assert found == (1.0, gain((60.0, 36.0), 100.0), gain((60.0, 36.0, 18.0), 100.0))


def test_without_a_device_there_is_no_gain() -> None:
    assert gains([], 60.0, 100.0) == ()


def test_an_estimate_follows_a_growing_noise_and_forgets_its_first_round() -> None:
    estimate: float | None = None
    for rounds in range(30):
        estimate = smoothed(estimate, rounds, 20.0 if rounds == 0 else 200.0)
    assert estimate == pytest.approx(200.0, rel=0.01)


def test_one_odd_round_moves_an_old_estimate_by_a_part() -> None:
    assert smoothed(100.0, 20, 1000.0) == pytest.approx(100.0 * 10**0.3)
    assert smoothed(100.0, 1, 1000.0) == pytest.approx(100.0 * 10**0.5)
