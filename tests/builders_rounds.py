"""Runs a policy round after round on jobs whose true rates are known: progress is what the forks can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hadare.model.plans import JobView, NodeView, RoundPlan, Snapshot
from hadare.scheduling.policies import Policy
from hadare.scheduling.policies.base import Memory
from hadare.scheduling.pricing import price_book

ROUND_S = 360.0


@dataclass
class Rounds:
    """A cluster on which time passes by whole rounds. A fork that is not where one was pays the restart cost."""

    policy: Policy
    nodes: Sequence[NodeView]
    jobs: dict[str, JobView] = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)
    number: int = 0
    finished: dict[str, float] = field(default_factory=dict)
    served: dict[str, list[int]] = field(default_factory=dict)
    moves: int = 0

    def arrive(self, *jobs: JobView) -> None:
        for job in jobs:
            self.jobs[job.job_id] = replace(job, arrival_s=self.number * ROUND_S)

    def run(self) -> RoundPlan:
        jobs, now_s = tuple(self.jobs.values()), self.number * ROUND_S
        snapshot = Snapshot(
            round=self.number,
            epoch=1,
            now_s=now_s,
            round_s=ROUND_S,
            nodes=tuple(self.nodes),
            jobs=jobs,
            prices=price_book(self.number, self.nodes, jobs, ROUND_S, now_s=now_s),
        )
        plan, self.memory = self.policy.plan(snapshot, self.memory)
        for job in jobs:
            self._progress(job, plan)
        self.number += 1
        return plan

    def _progress(self, job: JobView, plan: RoundPlan) -> None:
        forks = [fork for fork in plan.forks if fork.job_id == job.job_id]
        warm = list(job.placed)
        steps = 0.0
        for fork in forks:
            cold = fork.gang not in warm
            self.moves += cold and bool(job.placed)
            if not cold:
                warm.remove(fork.gang)
            steps += min(fork.quota, fork.rate * max(0.0, ROUND_S - cold * job.restart_cost_s))
        if forks:
            self.served.setdefault(job.job_id, []).append(self.number)
        left = job.steps_left - int(steps)
        if left <= 0:
            self.finished[job.job_id] = (self.number + 1) * ROUND_S - job.arrival_s
            del self.jobs[job.job_id]
        else:
            self.jobs[job.job_id] = replace(job, steps_left=left, placed=tuple(fork.gang for fork in forks))
