"""What holds of every consolidation, whatever the forks did."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builders_training import Round
from hadare.forking.consolidation import Evidence, judge, path_steps, weights
from hadare.forking.schedule import position

step_counts = st.lists(st.integers(1, 10**9), min_size=1, max_size=12)
values = st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3)
forks = st.lists(st.tuples(st.integers(1, 10**6), values), min_size=1, max_size=6)


@given(step_counts)
def test_weights_add_up_to_one_and_keep_the_order_of_the_steps(steps: list[int]) -> None:
    shares = weights(dict(enumerate(steps)))
    assert abs(sum(shares.values()) - 1) < 1e-9
    assert sorted(range(len(steps)), key=lambda f: (steps[f], f)) == sorted(shares, key=lambda f: (steps[f], f))
    assert all(shares[a] <= shares[b] for a in shares for b in shares if steps[a] <= steps[b])


@given(step_counts)
def test_a_path_is_never_longer_than_its_largest_fork_nor_shorter_than_the_mean(steps: list[int]) -> None:
    assert sum(steps) / len(steps) * (1 - 1e-9) <= path_steps(steps) <= max(steps) * (1 + 1e-9)


@given(st.lists(st.lists(st.integers(1, 100), min_size=1, max_size=5), min_size=1, max_size=20))
def test_a_schedule_never_turns_back_and_ends_at_one(rounds: list[list[int]]) -> None:
    total = sum(map(sum, rounds))
    steps, path, places = 0, 0.0, [0.0]
    for planned in rounds:
        steps, path = steps + sum(planned), path + path_steps(planned)
        places.append(position(steps=steps, path=path, total_steps=total))
    assert places == sorted(places)
    assert places[-1] == 1.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8), st.floats(1.01, 10))
def test_the_outlier_rule_never_rejects_the_majority(norms: list[float], ratio: float) -> None:
    verdict = judge((Evidence(fork=f, steps=1, finite=True, norm=n) for f, n in enumerate(norms)), max_norm_ratio=ratio)
    assert len(verdict.kept) * 2 >= len(norms)


@settings(max_examples=25, deadline=None)
@given(values, forks)
def test_a_version_lies_between_its_forks_and_is_their_weighted_mean(
    base: list[float], done: list[tuple[int, list[float]]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = Round(Path(folder), {"w": torch.tensor(base)})
        for steps, row in done:
            made.fork(steps, {"w": torch.tensor(row)})
        result = made.consolidate()
        kept = {a.fork: a.weight for a in result.accepted}
        rows = {f: torch.tensor(done[f][1], dtype=torch.float64) for f in kept}
        mean = torch.stack([w * rows[f] for f, w in kept.items()]).sum(dim=0)
        assert torch.allclose(made.tensor("w").double(), mean, rtol=1e-5, atol=1e-3)
        assert not set(kept) & set(result.rejected)


@settings(max_examples=25, deadline=None)
@given(values, values, step_counts)
def test_consolidating_equal_forks_changes_nothing(base: list[float], common: list[float], steps: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = Round(Path(folder), {"w": torch.tensor(base)})
        for n in steps:
            made.fork(n, {"w": torch.tensor(common)})
        if made.consolidate().accepted:
            assert torch.equal(made.tensor("w"), torch.tensor(common))


@settings(max_examples=25, deadline=None)
@given(values, forks, st.randoms(use_true_random=False))
def test_the_order_in_which_forks_arrive_does_not_matter(
    base: list[float], done: list[tuple[int, list[float]]], chance: object
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = Round(Path(folder), {"w": torch.tensor(base)})
        for steps, row in done:
            made.fork(steps, {"w": torch.tensor(row)})
        first = made.consolidate()
        chance.shuffle(made.files)  # type: ignore[attr-defined]
        assert made.consolidate() == first
