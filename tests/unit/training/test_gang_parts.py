from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadare.training.gang_parts import Part, cuts, pieces

SHARES = st.lists(st.integers(1, 40), min_size=1, max_size=9)


def test_each_rank_takes_its_share_in_rank_order() -> None:
    assert cuts((10, 6, 4, 3, 1), 24, 24) == (10, 16, 20, 23, 24)


def test_the_last_update_of_a_job_has_fewer_samples_and_everybody_a_part_of_them() -> None:
    assert cuts((40, 20, 20), 40, 20) == (20, 30, 40)


def test_a_rank_may_sit_out_a_small_update() -> None:
    assert cuts((100, 1), 4, 4) == (4, 4)


@given(SHARES, st.integers(1, 50))
def test_all_samples_are_taken_once(shares: list[int], samples: int) -> None:
    ends = cuts(shares, samples, 8)
    assert len(ends) == len(shares)
    assert all(a <= b for a, b in pairwise((0, *ends)))
    assert ends[-1] == samples


@given(SHARES, st.integers(1, 6), st.integers(2, 40))
def test_no_part_of_a_batch_is_one_sample_where_that_cannot_train(shares: list[int], batches: int, size: int) -> None:
    ends = cuts(shares, batches * size, size, 2)
    parts = [part for a, b in pairwise((0, *ends)) for part in pieces(a, b, size)]
    assert all(part.last - part.first >= 2 for part in parts)
    assert sum(part.last - part.first for part in parts) == batches * size


@given(SHARES, st.integers(1, 6), st.integers(4, 40))
def test_what_has_to_move_moves_by_few_samples(shares: list[int], batches: int, size: int) -> None:
    wide = [share * 4 for share in shares]
    plain, moved = cuts(wide, sum(wide), size), cuts(wide, sum(wide), size, 2)
    assert all(abs(a - b) <= 3 for a, b in zip(plain, moved, strict=True))


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 0, []),
        (3, 7, [Part(0, 3, 7)]),
        (6, 17, [Part(0, 6, 8), Part(1, 0, 8), Part(2, 0, 1)]),
        (8, 16, [Part(1, 0, 8)]),
    ],
)
def test_samples_that_span_batches_are_taken_batch_by_batch(start: int, stop: int, expected: list[Part]) -> None:
    assert list(pieces(start, stop, 8)) == expected
