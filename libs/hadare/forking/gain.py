"""What forking is worth to a job, estimated from what its forks changed: how long their ways were and how they agree.

A fork's change after n steps is taken to be a way that all forks share, ``σ·n`` long, and noise of its own that grows
like ``√(ν·n)``. One number says how the two compare: ``noise = ν/σ²``, the steps after which they are equally long.
What it was measured against: docs/explanation/consolidation.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hadare.forking.consolidation import path_steps

LEAST, MOST = 1e-3, 1e9
"""Bounds of the noise in steps: beyond them the forks agree fully, or not at all."""

SMALLEST_GAIN = 0.3
"""A new round counts for at least so much in the estimate: the noise grows as a job gets on."""


@dataclass(frozen=True, slots=True)
class Change:
    """A fork's steps, the norm of its change, and its cosine with the mean change (weighted by steps)."""

    steps: int
    norm: float
    agreement: float


def noise_of(changes: Sequence[Change]) -> float | None:
    """The noise in steps that one round's changes show; ``None`` from fewer than two forks.

    The mean's norm follows from the cosines, ``‖m‖ = Σ w_f c_f ‖d_f‖``. What of ``‖m‖²`` does not come from each fork's
    own ``w_f² ‖d_f‖²`` is what they share: ``σ² Σ_{f≠g} w_f w_g n_f n_g``. The rest of each ``‖d_f‖²`` is its noise.
    """
    forks = [change for change in changes if change.steps > 0 and math.isfinite(change.norm) and change.norm > 0]
    if len(forks) < 2:
        return None
    total = sum(fork.steps for fork in forks)
    weights = [fork.steps / total for fork in forks]
    mean = sum(w * fork.agreement * fork.norm for w, fork in zip(weights, forks, strict=True))
    own = sum((w * fork.norm) ** 2 for w, fork in zip(weights, forks, strict=True))
    travelled = [w * fork.steps for w, fork in zip(weights, forks, strict=True)]
    pairs = sum(travelled) ** 2 - sum(way * way for way in travelled)
    shared = max(0.0, mean * mean - own) / pairs
    if shared <= 0.0:
        return MOST
    excess = [max(0.0, fork.norm**2 - shared * fork.steps**2) / fork.steps for fork in forks]
    noise = sum(w * e for w, e in zip(weights, excess, strict=True)) / shared
    return float(min(MOST, max(LEAST, noise)))


def smoothed(known: float | None, rounds: int, seen: float) -> float:
    """The estimate after one more round, in log space; ``rounds`` are those in ``known``."""
    if known is None or rounds == 0:
        return seen
    part = max(SMALLEST_GAIN, 1.0 / (rounds + 1))
    return float(known * (seen / known) ** part)


def gain(steps: Sequence[float], noise: float, *, keeps_pace: bool = False) -> float:
    """Progress of the averaged forks over that of the fastest of them alone, if each does so many steps in a round.

    Progress is the way gone times what a step in that direction can gain at best, which is its squared cosine with the
    shared way, ``S²/(S² + N²)``: of the fastest fork ``n/(n + noise)``, of the mean ``p²/(p² + noise·Σ w² n)`` with
    ``p = Σ w n`` its way. With an outer step that ``keeps_pace`` the mean goes as far as the fastest fork. Never more
    than the summed steps over the fastest's; below 1 where forking loses.
    """
    done = [n for n in steps if n > 0]
    if len(done) < 2:
        return 1.0
    total, fastest = sum(done), max(done)
    way = path_steps(done)
    spread = sum(n**3 for n in done) / total**2
    mean = way**2 / (way**2 + noise * spread)
    alone = fastest / (fastest + noise)
    pace = 1.0 if keeps_pace else way / fastest
    return min(total / fastest, pace * mean / alone)


def gains(rates: Sequence[float], fastest_steps: float, noise: float, *, keeps_pace: bool = False) -> tuple[float, ...]:
    """``g(1), g(2), …`` of the fastest one, two, … of the forks at these rates.

    ``fastest_steps``: what the fastest does in a round.
    """
    ordered = sorted((rate for rate in rates if rate > 0), reverse=True)
    steps = [rate / ordered[0] * fastest_steps for rate in ordered]
    return tuple(gain(steps[:count], noise, keeps_pace=keeps_pace) for count in range(1, len(steps) + 1))
