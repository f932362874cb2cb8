"""What becomes of the averaged change: the outer step, the average of versions, and the guard's choice. Pure.

Measured defaults and why: docs/explanation/consolidation.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hadare.model.jobs import ConsolidationSpec, GuardSpec

AVERAGE = "average"
FASTEST = "fastest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """An outer step of SGD with Nesterov momentum along the mean delta d: ``b ← momentum·b + d``,
    ``θ ← θ + rate·(d + momentum·b)``. Without momentum: ``θ + rate·d``. Parameters only.
    """

    rate: float = 1.0
    momentum: float = 0.0

    @property
    def is_average(self) -> bool:
        return self.rate == 1.0 and self.momentum == 0.0


# A momentum of 0.9 is best on undertrained models and ruins trained ones.
DILOCO = Outer(rate=0.7, momentum=0.5)

# Ways to make a version that the guard compares, beside the fastest fork alone.
CANDIDATES: Mapping[str, Outer] = {AVERAGE: Outer(), "longer": Outer(rate=1.5), "nesterov": DILOCO}


def outer_of(spec: ConsolidationSpec) -> Outer:
    """The outer step that a job asks for, with the defaults of its method."""
    if spec.method == "diloco":
        rate = DILOCO.rate if spec.outer_rate is None else spec.outer_rate
        momentum = DILOCO.momentum if spec.outer_momentum is None else spec.outer_momentum
        return Outer(rate=rate, momentum=momentum)
    return Outer(rate=1.0 if spec.outer_rate is None else spec.outer_rate)


def ema_decay(steps: int, half_life: float) -> float:
    """What is left of the old average after a round of so many steps: ``2^(−steps / half_life)``."""
    return float(2.0 ** (-steps / half_life))


def choose(scores: Mapping[str, float], guard: GuardSpec) -> str:
    """The candidate to keep: the average, unless another's score is better than its by more than the margin.

    A score that is not finite counts as none. Equal scores: the first by name. Without any: the average.
    """
    sound = {name: score for name, score in sorted(scores.items()) if math.isfinite(score)}
    sign = 1.0 if guard.better == "higher" else -1.0
    if not sound:
        return AVERAGE
    best = max(sound, key=lambda name: sign * sound[name])
    if AVERAGE not in sound:
        return best
    gain = sign * (sound[best] - sound[AVERAGE])
    return best if gain > guard.margin * abs(sound[AVERAGE]) else AVERAGE
