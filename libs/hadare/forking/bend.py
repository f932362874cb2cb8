"""When a loss curve bends: until then a model learns the same from every fork, and averaging gains nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

FLAT = 0.5
"""A round that lowers the loss by less than this part of the mean of those before is past the bend."""

LONGEST = 200
"""Rounds after which a curve counts as bent, whatever it does."""


def is_bent(losses: Sequence[float]) -> bool:
    """``losses``: the mean training loss of each round of one worker, oldest first. Three are needed at least.

    A curve that rises has bent: more of the same does not help.
    """
    if len(losses) >= LONGEST:
        return True
    falls = [before - after for before, after in pairwise(losses)]
    if len(falls) < 2:
        return False
    return falls[-1] < FLAT * max(0.0, fmean(falls[:-1]))
