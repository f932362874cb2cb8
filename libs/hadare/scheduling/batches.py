"""How a gang's global batch is divided over its ranks: in proportion to their speeds, so that all are done together.

The slowest rank to finish its rows is what every update waits for, so shares are whole numbers that make its time least
(the greedy choice is exact: a sample goes to the rank that would finish it first).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from math import floor


def balanced(batch: int, speeds: Sequence[float], least: int = 1) -> tuple[int, ...]:
    """Samples of one batch for each rank; they add up to ``batch``, and nobody has fewer than ``least``.

    With ``least=0`` a rank that would only hold up the others gets none. Ties go to the earlier rank. Raises
    ``ValueError`` if there are not enough samples, or if a speed is not above 0.
    """
    if not speeds or min(speeds) <= 0:
        raise ValueError(f"speeds must be above 0: {list(speeds)}")
    if batch < least * len(speeds):
        raise ValueError(f"a batch of {batch} samples is too small for {len(speeds)} devices")
    total = sum(speeds)
    # Below its proportional part, rounded down, no rank comes in the best division: the search may begin there.
    shares = [max(least, floor(batch * speed / total * (1 - 1e-12))) for speed in speeds]
    _take_back(shares, speeds, sum(shares) - batch, least)
    next_done = [((share + 1) / speed, rank) for rank, (share, speed) in enumerate(zip(shares, speeds, strict=True))]
    heapify(next_done)
    for _ in range(batch - sum(shares)):
        _, rank = next_done[0]
        shares[rank] += 1
        heapreplace(next_done, ((shares[rank] + 1) / speeds[rank], rank))
    return tuple(shares)


def equal(batch: int, ranks: int) -> tuple[int, ...]:
    """Equal shares, as far as they can be; raises ``ValueError`` if there are fewer samples than ranks."""
    return balanced(batch, [1.0] * ranks)


def slowest_s(shares: Sequence[int], speeds: Sequence[float], batch_size: int) -> float:
    """Seconds in which every rank has computed its rows; ``speeds`` are steps/s, a step ``batch_size`` samples."""
    return max(share / (speed * batch_size) for share, speed in zip(shares, speeds, strict=True))


def _take_back(shares: list[int], speeds: Sequence[float], surplus: int, least: int) -> None:
    """What the minimum gave too much, from whoever is done last."""
    for _ in range(surplus):
        able = [rank for rank, share in enumerate(shares) if share > least]
        shares[max(able, key=lambda rank: (shares[rank] / speeds[rank], rank))] -= 1
