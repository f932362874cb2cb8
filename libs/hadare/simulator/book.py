"""Each job's progress, as the tracker would keep it: steps and version, and what was measured of its throughput.

The rules are the ledger's: a fork counts at most its quota, a lost fork counts nothing, and a job's steps and version
change together. Rates are folded in by the same estimator (``scheduling.throughput.observe``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hadare.model.jobs import JobProgress, JobState, Measured, ObjectRef
from hadare.model.plans import Snapshot
from hadare.scheduling.throughput import observe
from hadare.simulator.jobs import SimJob
from hadare.simulator.settings import Settings
from hadare.simulator.world import Brought, World

_ORACLE_COUNT = 10**6


class Book:
    """All jobs that have arrived."""

    def __init__(self, world: World, settings: Settings) -> None:
        self._world = world
        self._settings = settings
        self._progress: dict[str, JobProgress] = {}
        self.unfinished: dict[str, None] = {}
        self.finished = 0

    def arrive(self, job: SimJob) -> JobProgress:
        """A job with its initial model. With an oracle its rates are known, as if they had been measured often."""
        known = {}
        if self._settings.oracle:
            rates = self._world.rates(job.job_id)
            known = {name: Measured(steps_per_s=rate, count=_ORACLE_COUNT) for name, rate in rates.items()}
        progress = JobProgress(
            job_id=job.job_id,
            name=job.job_id,
            state=JobState.WAITING,
            total_steps=job.total_steps,
            version=0,
            weights=ObjectRef(name="simulated", sha256="0" * 64, bytes=job.model_bytes),
            throughput=known,
        )
        self._progress[job.job_id] = progress
        self.unfinished[job.job_id] = None
        return progress

    def progress(self, job_id: str) -> JobProgress:
        return self._progress[job_id]

    def left(self, job_id: str) -> int:
        """Steps left to do."""
        progress = self._progress[job_id]
        return progress.total_steps - progress.steps

    def count(self, job_id: str, round_number: int, brought: Sequence[Brought]) -> bool:
        """Counts a round's results once; whether the job is done."""
        progress = self._progress[job_id]
        round_steps = sum(min(each.steps, each.fork.plan.quota) for each in brought if not each.lost)
        steps = progress.steps + round_steps
        done = steps >= progress.total_steps
        self._progress[job_id] = replace(
            progress,
            steps=steps,
            version=progress.version + (round_steps > 0),
            rounds=progress.rounds + 1,
            lost_rounds=progress.lost_rounds + (round_steps == 0),
            round_steps=round_steps,
            closed_round=round_number,
            state=JobState.COMPLETED if done else JobState.WAITING,
            throughput=progress.throughput if self._settings.oracle else self._measured(progress, brought),
        )
        if done:
            self.finished += 1
            del self.unfinished[job_id]
        return done

    def with_costs(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with what moving a job costs, where moving costs anything."""
        costs = self._settings.costs
        if costs.restart_s == 0.0 and costs.bandwidth_mb_s <= 0 and not costs.spread:
            return snapshot
        jobs = tuple(
            replace(
                job,
                restart_cost_s=self._world.restart_s(job.job_id),
                spread_factor=self._spread(job.job_id),
            )
            for job in snapshot.jobs
        )
        return replace(snapshot, jobs=jobs)

    def _spread(self, job_id: str) -> float:
        """One factor for all types: a policy is told the mean."""
        known = self._world.jobs[job_id].spread
        if not self._settings.costs.spread or not known:
            return 1.0
        return min(1.0, sum(known.values()) / len(known))

    def _measured(self, progress: JobProgress, brought: Sequence[Brought]) -> dict[str, Measured]:
        known = dict(progress.throughput)
        for each in brought:
            for name, rate in self._world.observed(each):
                known[name] = observe(known.get(name), rate)
        return known
