"""Tiresias' discretised least attained service: who is in which queue, and when that changes.

The rules of this file. A job enters at the end of the first queue. When what it was served since its last reset, times
its devices, reaches the queue's limit, it goes to the end of the next queue: one queue at a time, never out of the
last. Queues are walked in order. Within a queue running jobs stand before pending ones, so a later arrival never
pre-empts there. With ``promote_after`` k a job that ran, stands in a later queue, and has waited k times as long as it
was served goes back to the end of the first queue and starts anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import ceil, floor, inf

LIMITS = (3250.0, 7200.0)
"""Tiresias' own limits in device-seconds: three queues."""


@dataclass(slots=True)
class Service:
    """What a job was served and how long it waited, in seconds. ``served_s``: since its last reset.

    ``waited_s`` counts the waiting since that reset of a job that was served; ``checked_s`` is when this was counted.
    """

    job_id: str
    gang: int
    checked_s: float
    served_s: float = 0.0
    total_s: float = 0.0
    waited_s: float = 0.0
    level: int = 0
    running: bool = False
    preemptions: int = 0
    promotions: int = 0

    def count(self, now_s: float) -> None:
        """Bring the sums up to now."""
        passed = now_s - self.checked_s
        self.checked_s = now_s
        if self.running:
            self.served_s += passed
            self.total_s += passed
        elif self.served_s > 0:
            self.waited_s += passed

    def turn(self, running: bool) -> None:
        """Start, go on, or stop. Stopping a running job is a pre-emption."""
        self.preemptions += self.running and not running
        self.running = running


@dataclass(frozen=True, slots=True)
class LasRules:
    """``limits``: of every queue but the last, in device-seconds (``two_dimensional``) or seconds.

    ``late_jumps``: the original divides ``limit − seconds`` by the gang size to find the next demotion, so that gangs
    are demoted at a wrong moment unless another event comes first; only for results that must equal the original's.
    """

    limits: tuple[float, ...] = LIMITS
    two_dimensional: bool = True
    promote_after: float | None = None
    late_jumps: bool = False

    def attained(self, job: Service) -> float:
        """What is held against the limits."""
        return job.served_s * job.gang if self.two_dimensional else job.served_s

    def demoted(self, job: Service) -> bool:
        return job.running and job.level < len(self.limits) and self.attained(job) >= self.limits[job.level]

    def promoted(self, job: Service) -> bool:
        return self._may_rise(job) and job.waited_s >= self._patience_s(job)

    def seconds_to_jump(self, job: Service) -> float:
        """Seconds until the job changes its queue, if nothing else happens."""
        if job.running and job.level < len(self.limits):
            limit = self.limits[job.level]
            if not self.two_dimensional:
                return max(0.0, limit - job.served_s)
            if self.late_jumps:
                return ceil((limit - job.served_s) / job.gang)
            return max(0, ceil(limit / job.gang - job.served_s))
        if self._may_rise(job):
            wait = self._patience_s(job) - job.waited_s
            return wait if wait > 0 else inf
        return inf

    def _patience_s(self, job: Service) -> int:
        return floor(job.served_s * (self.promote_after or 0.0))

    def _may_rise(self, job: Service) -> bool:
        return self.promote_after is not None and not job.running and job.level > 0 and job.served_s > 0


@dataclass(slots=True)
class LasQueues:
    """The queues. ``jobs`` is in the order of arrival, which decides who is moved first when several are."""

    rules: LasRules
    levels: list[list[Service]] = field(default_factory=list)
    jobs: list[Service] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.levels.extend([] for _ in range(len(self.rules.limits) + 1 - len(self.levels)))

    def arrive(self, job: Service) -> None:
        self.jobs.append(job)
        self.levels[0].append(job)

    def leave(self, job: Service) -> None:
        self.jobs.remove(job)
        self.levels[job.level].remove(job)

    def advance(self, now_s: float) -> None:
        """Count time, then demote by one queue and promote to the first."""
        for job in self.jobs:
            job.count(now_s)
            if self.rules.demoted(job):
                self._move(job, job.level + 1)
            elif self.rules.promoted(job):
                job.served_s = job.waited_s = 0.0
                job.promotions += 1
                self._move(job, 0)

    def walk(self) -> Iterator[Service]:
        """Every job, first served first."""
        for level in self.levels:
            yield from level

    def turn(self, chosen: Collection[str]) -> None:
        """The chosen run, all others do not; running jobs move ahead within their queue."""
        for job in self.jobs:
            job.turn(job.job_id in chosen)
        for level in self.levels:
            level.sort(key=lambda job: not job.running)

    def seconds_to_jump(self) -> float:
        """Seconds until the next job changes its queue."""
        return min(map(self.rules.seconds_to_jump, self.jobs), default=inf)

    def _move(self, job: Service, level: int) -> None:
        self.levels[job.level].remove(job)
        self.levels[level].append(job)
        job.level = level
