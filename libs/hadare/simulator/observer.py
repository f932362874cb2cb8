"""Watches a simulation and writes down what the metrics and the pictures need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hadare.model.plans import RoundPlan, Snapshot
from hadare.simulator.jobs import SimJob
from hadare.simulator.record import Gantt, JobStory, Outcome, Series
from hadare.simulator.settings import Settings, SimNode
from hadare.simulator.slots import Bound
from hadare.simulator.world import Brought, Fork


class Observer:
    """Fills an ``Outcome``."""

    def __init__(
        self, policy: str, jobs: Sequence[SimJob], nodes: Sequence[SimNode], forking: bool, settings: Settings
    ) -> None:
        devices: dict[str, int] = {}
        for node in nodes:
            for name, count in node.devices.items():
                devices[name] = devices.get(name, 0) + count
        self._total = sum(devices.values())
        self._detail = settings.detail
        self._best = {job.job_id: max(job.rates(forking).values()) for job in jobs}
        self._rates = {job.job_id: job.rates(forking) for job in jobs}
        stories = {job.job_id: _story(job, devices) for job in jobs}
        names = ["used", "waiting", *(f"used {name}" for name in devices), *(f"price {name}" for name in devices)]
        self.outcome = Outcome(policy, devices, stories, Series(names))
        self.outcome.flags = tuple(sorted({flag for job in jobs for flag in job.flags}))
        self._gantt = Gantt(self.outcome.stretches)
        self._running: set[str] = set()
        self._prices: dict[str, float] = {}
        self._waiting = 0
        self._arrivals: dict[str, float] = {}

    def planned(self, snapshot: Snapshot, plan: RoundPlan, milliseconds: float) -> None:
        """A decision was made; who was running and was not done is pre-empted if it got nothing."""
        outcome = self.outcome
        outcome.rounds += 1
        outcome.decision(milliseconds)
        placed = {fork.job_id for fork in plan.forks}
        for job_id in self._running - placed:
            if outcome.stories[job_id].finish_s is None:
                outcome.stories[job_id].preemptions += 1
        self._running = placed
        self._waiting = len(snapshot.jobs) - len(placed)
        if self._detail:
            self._prices = _marginal(snapshot, plan)

    def trained(
        self, forks: Sequence[tuple[Bound, Fork]], brought: Mapping[str, Sequence[Brought]], began: float
    ) -> None:
        """What a round brought, device by device."""
        outcome = self.outcome
        results = {id(each.fork): each for own in brought.values() for each in own}
        ended = max((each.ended_s for each in results.values()), default=began)
        used = dict.fromkeys(outcome.devices, 0.0)
        for bound, fork in forks:
            result = results[id(fork)]
            story = outcome.stories[fork.plan.job_id]
            self._add(story, fork, result)
            for member in fork.plan.gang:
                used[member.type] += member.count * result.trained_s
                if not result.lost:
                    speed = self._rates[story.job_id].get(member.type, 0.0) / self._best[story.job_id]
                    outcome.worth_s += member.count * result.trained_s * speed
            if bound.cold:
                outcome.restart_s += fork.devices * max(0.0, fork.starts_s - began)
            if self._detail:
                for slot in bound.slots:
                    self._gantt.add(slot, story.job_id, fork.starts_s, max(result.ended_s, fork.starts_s))
        for job_id in brought:
            outcome.stories[job_id].rounds += 1
        for job_id in {fork.plan.job_id for bound, fork in forks if bound.cold}:
            outcome.stories[job_id].restarts += 1
        if self._detail and ended > began:
            self._series(used, began, ended)

    def finished(self, job_id: str, at: float) -> None:
        self.outcome.stories[job_id].finish_s = at

    def _add(self, story: JobStory, fork: Fork, result: Brought) -> None:
        outcome, seconds = self.outcome, fork.devices * result.trained_s
        story.first_s = fork.starts_s if story.first_s is None else min(story.first_s, fork.starts_s)
        story.device_s += seconds
        outcome.filled_s += seconds if fork.plan.filled else 0.0
        if result.lost:
            story.lost_s += seconds
            outcome.lost_s += seconds
        else:
            outcome.busy_s += seconds

    def _series(self, used: Mapping[str, float], began: float, ended: float) -> None:
        seconds, outcome = ended - began, self.outcome
        values = {"used": sum(used.values()) / (self._total * seconds), "waiting": float(self._waiting)}
        for name, count in outcome.devices.items():
            values[f"used {name}"] = used[name] / (count * seconds)
            if name in self._prices:
                values[f"price {name}"] = self._prices[name]
        outcome.series.add(began, ended, values)


def _story(job: SimJob, devices: Mapping[str, int]) -> JobStory:
    """The references are made of one-device rates, so that they are the same for every policy."""
    rates = job.fork_rates
    whole = sum(rates.get(name, 0.0) * count for name, count in devices.items())
    return JobStory(
        job_id=job.job_id,
        arrival_s=job.arrival_s,
        gang=job.gang,
        model=job.model,
        whole_s=job.total_steps / whole,
        ideal_s=job.total_steps / (job.gang * max(rates.values())),
    )


def _marginal(snapshot: Snapshot, plan: RoundPlan) -> dict[str, float]:
    """The mean price, over a type's cells, of the next device after what the plan takes."""
    taken: dict[tuple[str, str], int] = {}
    for fork in plan.forks:
        for member in fork.gang:
            taken[member.node, member.type] = taken.get((member.node, member.type), 0) + member.count
    sums: dict[str, list[float]] = {}
    for curve in snapshot.prices.curves:
        sums.setdefault(curve.type, []).append(curve.price(min(taken.get((curve.node, curve.type), 0), curve.capacity)))
    return {name: sum(values) / len(values) for name, values in sums.items()}
