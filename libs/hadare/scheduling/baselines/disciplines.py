"""Who runs when, on equal devices: Tiresias' least attained service, and what its paper measures it against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from hadare.scheduling.baselines.las import LasQueues, LasRules, Service
from hadare.scheduling.baselines.yarn import NodeGaps


def fitting(queue: Iterable[Service], devices: int) -> set[str]:
    """Jobs that run when each in its turn takes its devices if they are there, and is skipped if not."""
    chosen: set[str] = set()
    for job in queue:
        if job.gang <= devices:
            devices -= job.gang
            chosen.add(job.job_id)
    return chosen


class LeastAttainedService:
    """Tiresias: discretised least attained service. Whoever does not fit is skipped, and is pre-empted if it ran."""

    def __init__(self, devices: int, rules: LasRules) -> None:
        self._devices = devices
        self._queues = LasQueues(rules)

    def arrive(self, job: Service, duration_s: int) -> None:  # noqa: ARG002 - durations are not known to it
        self._queues.arrive(job)

    def leave(self, job: Service) -> None:
        self._queues.leave(job)

    def decide(self, now_s: float) -> None:
        self._queues.advance(now_s)
        self._queues.turn(fitting(self._queues.walk(), self._devices))

    def next_change(self, now_s: float) -> float:
        return now_s + self._queues.seconds_to_jump()


class _OneQueue:
    """A list of jobs, and nothing that happens by itself."""

    def __init__(self) -> None:
        self._jobs: list[Service] = []

    def arrive(self, job: Service, duration_s: int) -> None:  # noqa: ARG002 - only some disciplines know durations
        self._jobs.append(job)

    def leave(self, job: Service) -> None:
        self._jobs.remove(job)

    def next_change(self, now_s: float) -> float:  # noqa: ARG002 - arrivals and completions are all that matters
        return inf

    def _count(self, now_s: float) -> None:
        for job in self._jobs:
            job.count(now_s)

    def _turn(self, chosen: set[str]) -> None:
        for job in self._jobs:
            job.turn(job.job_id in chosen)


class FitFirst(_OneQueue):
    """First come, first served, without pre-emption; who does not fit lets later ones pass."""

    def __init__(self, devices: int) -> None:
        super().__init__()
        self._devices = devices

    def decide(self, now_s: float) -> None:
        self._count(now_s)
        held = [job for job in self._jobs if job.running]
        waiting = [job for job in self._jobs if not job.running]
        self._turn(fitting([*held, *waiting], self._devices))


class ShortestDeviceTime(_OneQueue):
    """Least remaining device-seconds first, with pre-emption: durations are known. Ties keep their old order."""

    def __init__(self, devices: int) -> None:
        super().__init__()
        self._devices = devices
        self._duration_s: dict[str, int] = {}

    def arrive(self, job: Service, duration_s: int) -> None:
        super().arrive(job, duration_s)
        self._duration_s[job.job_id] = duration_s

    def decide(self, now_s: float) -> None:
        self._count(now_s)
        self._jobs.sort(key=lambda job: (self._duration_s[job.job_id] - job.total_s) * job.gang)
        self._turn(fitting(self._jobs, self._devices))


class YarnFifo(_OneQueue):
    """YARN: first come, first served, without pre-emption; the first that does not fit blocks all behind it."""

    def __init__(self, node_sizes: Sequence[int]) -> None:
        super().__init__()
        self._gaps = NodeGaps(node_sizes)
        self._held: dict[str, tuple[tuple[int, int], ...]] = {}

    def leave(self, job: Service) -> None:
        super().leave(job)
        self._gaps.release(self._held.pop(job.job_id))

    def decide(self, now_s: float) -> None:
        self._count(now_s)
        for job in (job for job in self._jobs if not job.running):
            taken = self._gaps.find(job.gang)
            if not taken:
                return
            self._gaps.take(taken)
            self._held[job.job_id] = taken
            job.turn(running=True)
