"""Replays a trace event by event on a cluster of equal devices, as the papers of the baselines do.

Times are whole seconds; pre-emption costs nothing. Events are arrivals, completions and the changes that a discipline
announces. At each event those who ended leave, those who arrive enter, and the discipline decides who runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, median
from typing import Protocol

from hadare.model.errors import Rejected
from hadare.scheduling.baselines.las import Service


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace: seconds that it takes once it has all its devices."""

    job_id: str
    submit_s: int
    gang: int
    duration_s: int


class Discipline(Protocol):
    """Decides who runs. ``decide`` brings everybody up to now and sets who runs."""

    def arrive(self, job: Service, duration_s: int) -> None: ...

    def leave(self, job: Service) -> None: ...

    def decide(self, now_s: float) -> None: ...

    def next_change(self, now_s: float) -> float:
        """When the discipline wants to decide again if nothing arrives or ends before."""
        ...


@dataclass(frozen=True, slots=True)
class Replayed:
    """Completion times by job, in seconds from its submission, and what they cost."""

    jct_s: dict[str, float]
    finished_s: dict[str, float]
    preemptions: int
    promotions: int

    @property
    def mean_jct_s(self) -> float:
        return fmean(self.jct_s.values())

    @property
    def median_jct_s(self) -> float:
        return median(self.jct_s.values())

    @property
    def max_jct_s(self) -> float:
        return max(self.jct_s.values())

    @property
    def makespan_s(self) -> float:
        """When the last job finished, on the clock of the trace."""
        return max(self.finished_s.values())


def replay(trace: Sequence[TraceJob], discipline: Discipline) -> Replayed:
    """Run the whole trace. Raises ``Rejected`` (400) when a job can never run."""
    coming = sorted(trace, key=lambda job: job.submit_s)
    active: dict[str, tuple[TraceJob, Service]] = {}
    finished: dict[str, float] = {}
    services: list[Service] = []
    now = 0.0
    while coming or active:
        ends = [now + spec.duration_s - job.total_s for spec, job in active.values() if job.running]
        arrival = coming[0].submit_s if coming else inf
        if not ends and arrival == inf:
            raise Rejected(400, f"jobs that never fit: {', '.join(sorted(active))}")
        now = min(arrival, *ends, discipline.next_change(now))
        for spec, job in [*active.values()]:
            if job.running and job.total_s + now - job.checked_s >= spec.duration_s:
                discipline.leave(job)
                finished[spec.job_id] = now
                del active[spec.job_id]
        while coming and coming[0].submit_s <= now:
            spec = coming.pop(0)
            job = Service(job_id=spec.job_id, gang=spec.gang, checked_s=now)
            active[spec.job_id] = (spec, job)
            services.append(job)
            discipline.arrive(job, spec.duration_s)
        discipline.decide(now)
    return Replayed(
        jct_s={job.job_id: finished[job.job_id] - job.submit_s for job in trace},
        finished_s=finished,
        preemptions=sum(job.preemptions for job in services),
        promotions=sum(job.promotions for job in services),
    )
