"""The figures of a run. Definitions in docs/explanation/evaluation.md."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from hadare.simulator.record import JobStory, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Of one policy. Seconds, except ``decision_ms_*``; ``cru``, ``gru`` from 0 to 1.

    ``ttd_s``: first arrival to last finish. ``queued_s``: arrival to the first step. ``lost_device_s``: training whose
    steps did not count. ``unfinished``: jobs that the policy never brought to an end.
    """

    ttd_s: float
    mean_jct_s: float
    median_jct_s: float
    p95_jct_s: float
    p99_jct_s: float
    mean_queued_s: float
    p95_queued_s: float
    cru: float
    gru: float
    jobs_done: int
    unfinished: int
    preemptions: int
    restarts: int
    mean_fairness: float
    worst_fairness: float
    lost_device_s: float
    restart_device_s: float
    filled_share: float
    rounds: int
    decision_ms_median: float
    decision_ms_p99: float
    wall_s: float


def metrics_of(outcome: Outcome) -> Metrics:
    """All figures of an outcome."""
    stories = sorted(outcome.stories.values(), key=lambda story: story.job_id)
    done = [story for story in stories if story.finish_s is not None]
    jcts = sorted(story.jct_s for story in done if story.jct_s is not None)
    queued = sorted(story.first_s - story.arrival_s for story in stories if story.first_s is not None)
    began = min((story.arrival_s for story in stories), default=0.0)
    ttd = max((story.finish_s or 0.0 for story in done), default=began) - began
    exists = sum(outcome.devices.values()) * ttd
    fairness = sorted(_fairness(done))
    decisions = sorted(outcome.decision_ms)
    busy = outcome.busy_s + outcome.lost_s
    return Metrics(
        ttd_s=ttd,
        mean_jct_s=fmean(jcts) if jcts else 0.0,
        median_jct_s=median(jcts) if jcts else 0.0,
        p95_jct_s=quantile(jcts, 0.95),
        p99_jct_s=quantile(jcts, 0.99),
        mean_queued_s=fmean(queued) if queued else 0.0,
        p95_queued_s=quantile(queued, 0.95),
        cru=busy / exists if exists else 0.0,
        gru=outcome.worth_s / exists if exists else 0.0,
        jobs_done=len(done),
        unfinished=len(stories) - len(done),
        preemptions=sum(story.preemptions for story in stories),
        restarts=sum(max(0, story.restarts - 1) for story in stories),
        mean_fairness=fmean(fairness) if fairness else 0.0,
        worst_fairness=fairness[-1] if fairness else 0.0,
        lost_device_s=outcome.lost_s,
        restart_device_s=outcome.restart_s,
        filled_share=outcome.filled_s / busy if busy else 0.0,
        rounds=outcome.rounds,
        decision_ms_median=median(decisions) if decisions else 0.0,
        decision_ms_p99=quantile(decisions, 0.99),
        wall_s=outcome.wall_s,
    )


def quantile(ordered: Sequence[float], part: float) -> float:
    """The smallest value that at least ``part`` of an ordered list does not exceed; 0 of an empty one."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, -int(-part * len(ordered) // 1) - 1))]


def _fairness(done: Sequence[JobStory]) -> list[float]:
    """Themis' ρ of every job: how long it took over how long a fair share would have taken; 1 is fair, less is better.

    A fair share is 1/n of the whole cluster, n the jobs that were there on average while it was; and never more than
    the devices that it asks for.
    """
    present = _Presence(done)
    found = []
    for story in done:
        jct = max(story.jct_s or 0.0, 1e-9)
        jobs = present.integral(story.arrival_s + jct) - present.integral(story.arrival_s)
        found.append(jct / max(story.whole_s * max(1.0, jobs / jct), story.ideal_s, 1e-9))
    return found


class _Presence:
    """How many jobs were there, summed over time: ``integral(t)`` in job-seconds."""

    def __init__(self, done: Sequence[JobStory]) -> None:
        changes = [(story.arrival_s, 1) for story in done] + [(story.finish_s or 0.0, -1) for story in done]
        self._times, self._sums, self._jobs = [0.0], [0.0], [0]
        for at, change in sorted(changes):
            self._sums.append(self._sums[-1] + self._jobs[-1] * (at - self._times[-1]))
            self._times.append(at)
            self._jobs.append(self._jobs[-1] + change)

    def integral(self, at: float) -> float:
        place = max(0, bisect_right(self._times, at) - 1)
        return self._sums[place] + self._jobs[place] * (at - self._times[place])
