"""Which samples of a gang's batch each rank takes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple


class Part(NamedTuple):
    """Samples ``first`` to ``last`` of a batch, which is the ``batch``-th of those of an update."""

    batch: int
    first: int
    last: int


def cuts(shares: Sequence[int], samples: int, size: int, least: int = 1) -> tuple[int, ...]:
    """Where each rank's samples end, of ``samples`` in batches of ``size``: as many as its share, in rank order.

    Of fewer samples than the shares together (the last update of a job) each rank has its part. ``least`` 2, for
    models with batch normalisation, which cannot train on one sample: cuts that would leave a rank with a single
    sample of a batch move by a few samples, to where none does, if there is such a place.
    """
    total = sum(shares)
    ends = [round(end * samples / total) for end in accumulate(shares)]
    if least <= 1 or size < least:
        return tuple(ends)
    found, before = [], 0
    for end in ends[:-1]:
        before = next((c for c in _nearest(end, before, samples) if _fits(c, before, samples, size)), before)
        found.append(before)
    return (*found, samples)


def _nearest(wanted: int, low: int, high: int) -> Iterator[int]:
    wanted = max(wanted, low)
    yield wanted
    for step in range(1, high - low + 1):
        for candidate in (wanted + step, wanted - step):
            if low <= candidate <= high:
                yield candidate


def _fits(cut: int, before: int, samples: int, size: int) -> bool:
    apart = cut == before or cut - before >= 2
    return apart and cut % size not in (1, size - 1) and samples - cut != 1


def pieces(start: int, stop: int, size: int) -> Iterator[Part]:
    """The samples ``start`` to ``stop`` of consecutive batches of ``size``, batch by batch."""
    while start < stop:
        batch, first = divmod(start, size)
        last = min(size, first + stop - start)
        yield Part(batch, first, last)
        start += last - first
