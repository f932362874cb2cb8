"""What is true, and what a round's forks bring: rates, costs and steps. Policies see none of it but by measuring."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, inf

from hadare.model.jobs import GangSpan
from hadare.model.plans import ForkPlan
from hadare.scheduling.batches import slowest_s
from hadare.scheduling.modes import ring_s
from hadare.simulator.jobs import SimJob
from hadare.simulator.settings import Costs, Settings


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork that runs: since when (after its restart), how fast, on how many devices, and until when at most."""

    plan: ForkPlan
    rate: float
    starts_s: float
    quota_s: float
    cold: bool

    def over(self, rounds: int) -> Fork:
        """The fork for so many rounds in one; each of them has its quota."""
        plan = replace(self.plan, quota=self.plan.quota * rounds)
        return replace(self, plan=plan, quota_s=self.starts_s + plan.quota / self.rate if self.rate > 0 else inf)

    @property
    def devices(self) -> int:
        return sum(member.count for member in self.plan.gang)


@dataclass(frozen=True, slots=True)
class Brought:
    """What a fork brought: steps, the seconds that it trained, and when it was over. ``lost``: it counts nothing."""

    fork: Fork
    steps: int
    trained_s: float
    ended_s: float
    lost: bool = False


class World:
    """The jobs as they really are."""

    def __init__(self, jobs: Iterable[SimJob], forking: bool, settings: Settings) -> None:
        self.jobs = {job.job_id: job for job in jobs}
        self._forking = forking
        self._costs: Costs = settings.costs
        self._noise = settings.noise
        self._chance = random.Random(settings.seed)
        self._rest: dict[str, float] = {}
        self._rates = {job_id: job.rates(forking) for job_id, job in self.jobs.items()}

    def rates(self, job_id: str) -> Mapping[str, float]:
        """Steps/s of one rank by type."""
        return self._rates[job_id]

    def rate(self, plan: ForkPlan) -> float:
        """Steps/s of a fork: its ranks' batches are sized to their speed, so a gang is as fast as they are together."""
        rates = self._rates[plan.job_id]
        if plan.batch_shares:
            return self._lockstep_rate(plan, rates)
        total = 0.0
        for member in plan.gang:
            total += member.count * rates.get(member.type, 0.0)
        return total * self.spread_factor(plan)

    def _lockstep_rate(self, plan: ForkPlan, rates: Mapping[str, float]) -> float:
        """Of a gang that was made of a job's forks: it exchanges gradients over links as they are assumed to be."""
        job = self.jobs[plan.job_id]
        x = [rates.get(member.type, 0.0) for member in plan.gang for _ in range(member.count)]
        if min(x) <= 0:
            return 0.0
        span: GangSpan = "packed" if len({member.node for member in plan.gang}) == 1 else "spread"
        batch = max(1, job.batch_size)
        update_s = slowest_s(plan.batch_shares, x, batch) + ring_s(job.model_bytes, len(x), span)
        return sum(plan.batch_shares) / batch / update_s

    def spread_factor(self, plan: ForkPlan) -> float:
        """What is left of a gang's rate because it spans nodes."""
        if not self._costs.spread or len({member.node for member in plan.gang}) < 2:
            return 1.0
        known = self.jobs[plan.job_id].spread
        return min((known.get(member.type, 1.0) for member in plan.gang), default=1.0)

    def restart_s(self, job_id: str) -> float:
        """Until a cold process of the job does its first step."""
        given = self._costs.restart_s
        own = self.jobs[job_id].restart_s if given is None else given
        return own + self._transfer_s(job_id)

    def start(self, plan: ForkPlan, at: float, cold: bool, forks: int) -> Fork:
        """A fork of a job that has ``forks`` of them. A warm one fetches the new version only if others made it too."""
        delay = self.restart_s(plan.job_id) if cold else (self._transfer_s(plan.job_id) if forks > 1 else 0.0)
        rate = self.rate(plan)
        starts = at + delay
        return Fork(plan, rate, starts, starts + plan.quota / rate if rate > 0 else inf, cold)

    def consolidation_s(self, job_id: str, forks: Sequence[ForkPlan]) -> float:
        """From the last step to the new version: the busiest node's uploads, and the averaging of all forks."""
        if self._costs.bandwidth_mb_s <= 0:
            return 0.0
        on_node: dict[str, int] = {}
        for fork in forks:
            on_node[fork.gang[0].node] = on_node.get(fork.gang[0].node, 0) + 1
        megabytes = self.jobs[job_id].model_bytes / 1e6
        averaging = len(forks) * megabytes / self._costs.averaging_mb_s if len(forks) > 1 else 0.0
        return max(on_node.values()) * megabytes / self._costs.bandwidth_mb_s + averaging

    def train(self, forks: Sequence[Fork], until_s: float, fails: Mapping[str, float]) -> list[Brought]:
        """What the forks of one job bring by ``until_s``; ``fails`` says when a node failed in the meantime.

        Parts of a step are carried over to the job's next round, so that short rounds lose none.
        """
        brought = []
        for fork in forks:
            plan = fork.plan
            failed = min((fails.get(member.node, inf) for member in plan.gang), default=inf) if fails else inf
            end = min(until_s, fork.quota_s)
            if failed < end:
                brought.append(Brought(fork, 0, max(0.0, failed - fork.starts_s), failed, lost=True))
                continue
            trained = max(0.0, end - fork.starts_s)
            if fork.quota_s <= until_s:
                steps = plan.quota
            else:
                exact = fork.rate * trained + self._rest.get(plan.job_id, 0.0)
                steps = max(0, min(plan.quota, floor(exact + 0.5)))
                self._rest[plan.job_id] = min(max(exact - steps, -1.0), 1.0)
            brought.append(Brought(fork, steps, trained, max(end, fork.starts_s) if trained else until_s))
        return brought

    def observed(self, brought: Brought) -> list[tuple[str, float]]:
        """What the agents measured: the type and the steps/s of each rank of the fork."""
        if brought.steps <= 0 or brought.lost:
            return []
        factor = self.spread_factor(brought.fork.plan)
        rates = self._rates[brought.fork.plan.job_id]
        return [
            (member.type, rates[member.type] * factor * self._error())
            for member in brought.fork.plan.gang
            if member.type in rates
            for _ in range(member.count)
        ]

    def _error(self) -> float:
        return max(0.1, self._chance.gauss(1.0, self._noise)) if self._noise > 0 else 1.0

    def _transfer_s(self, job_id: str) -> float:
        bandwidth = self._costs.bandwidth_mb_s
        return self.jobs[job_id].model_bytes / 1e6 / bandwidth if bandwidth > 0 else 0.0
