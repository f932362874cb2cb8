"""What a bound is about: jobs with their steps and rates, and the devices that there are.

A bound holds for every schedule in which no device of a type serves a job faster than ``rates`` says and no job is on
more than ``width`` devices at once. So the rates are those of a device in whatever way of running is best of all that
are allowed, and summed steps count in full (``accounting: steps``, fork gain at most Σx/max x).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from hadare.model.errors import Rejected
from hadare.scheduling.eligibility import Bools, Floats


@dataclass(frozen=True, slots=True)
class Workload:
    """``rates[j, r]``: steps/s that one device of type r can add to job j, 0 where it cannot run.

    ``steps[j]``: what the job has to do; ``devices[r]``: how many there are; ``arrival_s[j]``: default all at 0;
    ``width[j]``: the most devices that the job uses at once, default any number (forks without a bound).
    Raises ``Rejected`` (400) for a job that can run nowhere.
    """

    rates: Floats
    steps: Floats
    devices: Floats
    arrival_s: Floats = field(default_factory=lambda: np.zeros(0))
    width: Floats | None = None

    def __post_init__(self) -> None:
        if not self.arrival_s.size:
            object.__setattr__(self, "arrival_s", np.zeros(len(self.steps)))
        stuck = np.flatnonzero((self.steps > 0) & ~((self.rates > 0) & (self.devices > 0)).any(axis=1))
        if stuck.size:
            raise Rejected(400, f"jobs that can run on no device: rows {stuck.tolist()}")

    @property
    def device_s(self) -> Floats:
        """Device-seconds that each job would need on each type alone; infinite where it cannot run."""
        able = (self.rates > 0) & (self.devices > 0)
        return np.where(able, self.steps[:, None] / np.where(able, self.rates, 1.0), np.inf)

    @property
    def alone_s(self) -> Floats:
        """Seconds that each job needs at least: as many devices as it may use, the fastest first."""
        rates = np.where(self.devices > 0, self.rates, 0.0)
        order = np.argsort(-rates, axis=1, kind="stable")
        width = np.full(len(self.steps), self.devices.sum()) if self.width is None else self.width
        before = np.cumsum(self.devices[order], axis=1) - self.devices[order]
        used = np.clip(width[:, None] - before, 0.0, self.devices[order])
        speed = (used * np.take_along_axis(rates, order, axis=1)).sum(axis=1)
        return np.asarray(self.steps / np.where(self.steps > 0, speed, 1.0), dtype=np.float64)

    def of(self, jobs: Bools) -> Workload:
        """The part of the workload that these jobs are."""
        width = None if self.width is None else self.width[jobs]
        return replace(
            self, rates=self.rates[jobs], steps=self.steps[jobs], arrival_s=self.arrival_s[jobs], width=width
        )
