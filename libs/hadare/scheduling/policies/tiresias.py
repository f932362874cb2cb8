"""Tiresias: discretised two-dimensional least attained service, with pre-emption, blind to durations and to types.

Each round is an event of ``baselines.las``: service is counted, queues are left and entered, and the queues are walked
in order; who does not fit is skipped. A job that keeps running keeps its devices.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from hadare.model.plans import RoundPlan, Snapshot
from hadare.scheduling.baselines.gangs import TypedGangs, blind_order, held_before
from hadare.scheduling.baselines.las import LasQueues, LasRules, Service
from hadare.scheduling.baselines.record import typed_plan
from hadare.scheduling.eligibility import Cells, Ints, job_table, placeable
from hadare.scheduling.policies.base import Memory

_JOBS, _LEVELS = "jobs", "levels"
_FIELDS = tuple(entry.name for entry in fields(Service))


@dataclass(frozen=True, slots=True)
class Tiresias:
    """``rules``: the queues' limits and whether starved jobs are promoted. ``seed`` shuffles the order of types."""

    name: str = "tiresias"
    rules: LasRules = field(default_factory=LasRules)
    seed: int = 0

    def plan(self, snapshot: Snapshot, memory: Memory) -> tuple[RoundPlan, Memory]:
        # 1. who is in which queue now
        queues = _queues(self.rules, snapshot, memory)
        # 2. walk the queues; who does not fit is skipped
        cells = Cells(snapshot.nodes)
        table = job_table(snapshot.jobs, cells.types, snapshot.now_s)
        gangs = TypedGangs(cells, table)
        rows = {job.job_id: row for row, job in enumerate(table.jobs)}
        order = [rows[service.job_id] for service in queues.walk() if service.job_id in rows]
        self._serve(gangs, order)
        # 3. reasons and memory
        plan = typed_plan(self.name, snapshot, gangs, order)
        queues.turn({fork.job_id for fork in plan.forks})
        return plan, _remember(queues)

    def _serve(self, gangs: TypedGangs, order: list[int]) -> None:
        """In order: where it was, else on what nobody holds, else on what those behind it hold."""
        jobs, types = gangs.table.jobs, gangs.table.types
        warm = {row: gangs.free_again(row, held_before(jobs[row].placed)) for row in order}
        held: Ints = np.zeros_like(gangs.free)
        for cell, count in (part for devices in warm.values() for part in devices):
            held[cell] += count
        for row in order:
            for cell, count in warm[row]:
                held[cell] -= count
            if gangs.nothing_left:
                break
            devices = warm[row] and gangs.free_again(row, held_before(jobs[row].placed))
            if not devices:
                columns = [types.index(name) for name in blind_order(self.seed, jobs[row].job_id, types)]
                fitting = [column for column in columns if gangs.fits(row, column)]
                tries = [(c, spared) for spared in (held, None) for c in fitting]
                devices = next((d for c, spared in tries if (d := gangs.packed(row, c, spared))), ())
            if devices:
                gangs.take(row, devices)


def _queues(rules: LasRules, snapshot: Snapshot, memory: Memory) -> LasQueues:
    """The queues of the round before, without who left, with who came, brought up to now."""
    active = {job.job_id: job for job in snapshot.jobs if job.steps_left > 0}
    known = [Service(**entry) for entry in memory.get(_JOBS, ()) if entry["job_id"] in active]
    by_id = {service.job_id: service for service in known}
    queues = LasQueues(rules, jobs=known)
    for number, level in enumerate(memory.get(_LEVELS, ())):
        for service in (by_id[job] for job in level if job in by_id):
            service.level = min(number, len(rules.limits))
            queues.levels[service.level].append(service)
    for job in sorted(active.values(), key=lambda job: (job.arrival_s, job.job_id)):
        if job.job_id not in by_id:
            queues.arrive(Service(job_id=job.job_id, gang=job.gang, checked_s=snapshot.now_s))
        elif not placeable(job) and not by_id[job.job_id].running:
            by_id[job.job_id].checked_s = snapshot.now_s  # it could not have run: that is no waiting
    queues.advance(snapshot.now_s)
    return queues


def _remember(queues: LasQueues) -> dict[str, Any]:
    return {
        _JOBS: [{name: getattr(service, name) for name in _FIELDS} for service in queues.jobs],
        _LEVELS: [[service.job_id for service in level] for level in queues.levels],
    }
