"""What a simulation leaves behind, in memory that does not grow with the number of rounds.

Sums are kept, and two things for pictures: time series in at most ``BUCKETS`` buckets, whose width doubles when they
run out, and (on demand) the stretches of each device, joined where a job stays, at most ``STRETCHES`` of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hadare.simulator.slots import Slot

BUCKETS = 400
STRETCHES = 60_000
_DECISIONS = 200_000


@dataclass(slots=True)
class JobStory:
    """One job's life. Times in seconds of the simulation; ``lost_s`` are device-seconds whose steps did not count.

    ``whole_s``: what it would take on the whole cluster alone; ``ideal_s``: on as many of its best devices as it asks.
    """

    job_id: str
    arrival_s: float
    gang: int
    model: str = ""
    first_s: float | None = None
    finish_s: float | None = None
    whole_s: float = 0.0
    ideal_s: float = 0.0
    device_s: float = 0.0
    preemptions: int = 0
    restarts: int = 0
    rounds: int = 0
    lost_s: float = 0.0

    @property
    def jct_s(self) -> float | None:
        return None if self.finish_s is None else self.finish_s - self.arrival_s


@dataclass(slots=True)
class Stretch:
    """A device that trained for a job without a break."""

    slot: Slot
    job_id: str
    began_s: float
    ended_s: float


class Series:
    """Means over time of several named values, each weighted by how long it held."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.width_s = 360.0
        self._sums: dict[str, array[float]] = {name: array("d", [0.0] * BUCKETS) for name in self.names}
        self._seconds = array("d", [0.0] * BUCKETS)

    def add(self, began_s: float, ended_s: float, values: Mapping[str, float]) -> None:
        """Values that held from ``began_s`` to ``ended_s``."""
        while ended_s > self.width_s * BUCKETS:
            self._halve()
        bucket = int(began_s / self.width_s)
        while began_s < ended_s and bucket < BUCKETS:
            until = min(ended_s, (bucket + 1) * self.width_s)
            seconds = until - began_s
            self._seconds[bucket] += seconds
            for name, value in values.items():
                self._sums[name][bucket] += value * seconds
            began_s = until
            bucket += 1

    def points(self, name: str) -> list[tuple[float, float]]:
        """(middle of the bucket, mean) wherever there is something."""
        return [
            ((bucket + 0.5) * self.width_s, total / seconds)
            for bucket, (total, seconds) in enumerate(zip(self._sums[name], self._seconds, strict=True))
            if seconds > 0
        ]

    def _halve(self) -> None:
        for values in (*self._sums.values(), self._seconds):
            for bucket in range(BUCKETS // 2):
                values[bucket] = values[2 * bucket] + values[2 * bucket + 1]
            for bucket in range(BUCKETS // 2, BUCKETS):
                values[bucket] = 0.0
        self.width_s *= 2


@dataclass(slots=True)
class Outcome:
    """What one policy made of the trace. ``busy_s``, ``worth_s``: device-seconds, and those weighted by speed."""

    policy: str
    devices: Mapping[str, int]
    stories: dict[str, JobStory]
    series: Series
    rounds: int = 0
    decided: int = 0
    busy_s: float = 0.0
    worth_s: float = 0.0
    lost_s: float = 0.0
    restart_s: float = 0.0
    filled_s: float = 0.0
    ended_s: float = 0.0
    wall_s: float = 0.0
    decision_ms: array[float] = field(default_factory=lambda: array("f"))
    stretches: list[Stretch] = field(default_factory=list)
    stuck: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    def decision(self, milliseconds: float) -> None:
        self.decided += 1
        if len(self.decision_ms) < _DECISIONS:
            self.decision_ms.append(milliseconds)


class Gantt:
    """Collects the stretches of all devices; forgets the shortest breaks when there are too many."""

    def __init__(self, into: list[Stretch]) -> None:
        self._into = into
        self._last: dict[Slot, Stretch] = {}
        self._gap_s = 30.0

    def add(self, slot: Slot, job_id: str, began_s: float, ended_s: float) -> None:
        last = self._last.get(slot)
        if last is not None and last.job_id == job_id and began_s - last.ended_s <= self._gap_s:
            last.ended_s = ended_s
            return
        if len(self._into) >= STRETCHES:
            self._thin()
        self._last[slot] = Stretch(slot, job_id, began_s, ended_s)
        self._into.append(self._last[slot])

    def _thin(self) -> None:
        """Drops the shorter half: in a picture of so many they are narrower than a pixel."""
        lengths = sorted(stretch.ended_s - stretch.began_s for stretch in self._into)
        least = lengths[len(lengths) // 2]
        self._into[:] = [stretch for stretch in self._into if stretch.ended_s - stretch.began_s > least]
