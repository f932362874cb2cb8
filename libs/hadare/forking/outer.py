"""What becomes of the averaged change: the outer step, the average of versions, and the guard's choice. Pure.

Measured defaults and why: docs/explanation/consolidation.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hadare.forking.consolidation import path_steps
from hadare.model.jobs import ConsolidationSpec, GuardSpec

AVERAGE = "average"
FASTEST = "fastest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """An outer step of SGD with Nesterov momentum along the mean delta d: ``b ← momentum·b + d``,
    ``θ ← θ + rate·(d + momentum·b)``. Without momentum: ``θ + rate·d``. Parameters only.

    ``keeps_pace``: the rate is for forks of equal speed; with unequal ones the step is longer by as much as averaging
    shortens the fastest fork's path, and one fork alone is the version.
    """

    rate: float = 1.0
    momentum: float = 0.0
    keeps_pace: bool = False

    @property
    def is_average(self) -> bool:
        return self.rate == 1.0 and self.momentum == 0.0

    def of_round(self, steps: Sequence[int]) -> Outer:
        """The step to take after forks that did so many steps each."""
        if not self.keeps_pace:
            return self
        if len(steps) < 2:
            return Outer()
        return Outer(rate=self.rate * max(steps) / path_steps(steps), momentum=self.momentum)


# A momentum of 0.9 is best on undertrained models and ruins trained ones.
DILOCO = Outer(rate=0.7, momentum=0.5)

# In the long run a step is rate / (1 − momentum) = 1 times what the fastest fork travels.
AUTO = Outer(rate=0.5, momentum=0.5, keeps_pace=True)

# Ways to make a version that the guard compares, beside the fastest fork alone.
CANDIDATES: Mapping[str, Outer] = {AVERAGE: Outer(), "longer": Outer(rate=1.5), "nesterov": DILOCO}


def outer_of(spec: ConsolidationSpec) -> Outer:
    """The outer step that a job asks for, with the defaults of its method."""
    if spec.method == "auto":
        return AUTO
    if spec.method == "diloco":
        rate = DILOCO.rate if spec.outer_rate is None else spec.outer_rate
        momentum = DILOCO.momentum if spec.outer_momentum is None else spec.outer_momentum
        return Outer(rate=rate, momentum=momentum)
    return Outer(rate=1.0 if spec.outer_rate is None else spec.outer_rate)


def ema_decay(steps: int, half_life: float | Literal["round"]) -> float:
    """What is left of the old average after a round of so many steps: ``2^(−steps / half_life)``, or half."""
    return 0.5 if half_life == "round" else float(2.0 ** (-steps / half_life))


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
