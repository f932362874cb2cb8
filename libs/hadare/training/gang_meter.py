"""What a rank of a gang measures: its own speed, the time of an update, and what of it only goes to the exchange. Pure.

A rank's time in an exchange is mostly waiting for slower ranks. The rank that comes last waits for nobody: the least
of all ranks' times is what the exchange itself takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hadare.training.granted import WARM_UP_STEPS


@dataclass(slots=True)
class _Sums:
    updates: int = 0
    steps: float = 0.0
    own_s: float = 0.0
    update_s: float = 0.0
    exchanges: int = 0
    exchange_s: float = 0.0


class Meter:
    """Sums over updates. The first ``WARM_UP_STEPS`` are left out if more are done."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._all, self._warm = _Sums(), _Sums()
        self._began = 0.0
        self._steps = 0.0
        self.waited_s = 0.0
        """How long this rank's last exchange took, waiting included."""

    def begin(self, now: float) -> None:
        """An update begins."""
        self._began = now

    def exchanged(self, steps: float, waited_s: float, others_before_s: Sequence[float]) -> None:
        """The update's exchange took ``waited_s`` here; the one of the update before took ``others_before_s``, by rank.

        ``steps``: this rank's samples in the update, in batches of the job's size.
        """
        self.settle(others_before_s)
        self._steps, self.waited_s = steps, waited_s

    def end(self, now: float) -> None:
        """The update is over."""
        took = now - self._began
        for sums in self._kept(self._all.updates + 1):
            sums.updates += 1
            sums.steps += self._steps
            sums.own_s += took - self.waited_s
            sums.update_s += took

    def settle(self, waited_s: Sequence[float]) -> None:
        """What every rank's last exchange took is known."""
        if self._all.updates > self._all.exchanges:
            for sums in self._kept(self._all.exchanges + 1):
                sums.exchanges += 1
                sums.exchange_s += min(waited_s)

    def steps_per_s(self) -> float:
        """Of this rank alone, had it not to wait for anybody; 0 before the first update."""
        sums = self._best()
        return sums.steps / sums.own_s if sums.own_s > 0 else 0.0

    def update_s(self) -> float:
        """The mean time of an update."""
        sums = self._best()
        return sums.update_s / sums.updates if sums.updates else 0.0

    def exchange_s(self) -> float:
        """The mean time of an exchange on the rank that came last to it."""
        sums = self._best()
        return sums.exchange_s / sums.exchanges if sums.exchanges else 0.0

    def _kept(self, number: int) -> list[_Sums]:
        return [self._all, self._warm] if number > WARM_UP_STEPS else [self._all]

    def _best(self) -> _Sums:
        return self._warm if self._warm.updates else self._all
