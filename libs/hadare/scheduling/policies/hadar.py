"""Hadar: one fork a job on a gang of exactly W devices, which may mix types and span nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from hadare.model.plans import ForkPlan, GangMember, RoundPlan, Snapshot
from hadare.scheduling.decisions import Outcome, conclude
from hadare.scheduling.division import quotas, slack
from hadare.scheduling.eligibility import Cells, Floats, JobTable, cell_rates, job_table
from hadare.scheduling.placement import Free, Gangs, Placement, PriceSums, rounded
from hadare.scheduling.planning import QueuePlanner, without
from hadare.scheduling.policies.base import PATIENCE_ROUNDS, Memory, overdue, remember
from hadare.scheduling.pricing import Curves

FEW_JOBS = 16
"""Up to here a round is searched thoroughly; beyond, with fewer candidates a job."""


@dataclass(frozen=True, slots=True)
class Hadar:
    """``patience``: rounds after which a waiting job has its turn before others, whatever it pays off.

    ``fill``: place jobs that prices kept out on devices that would idle.
    """

    name: str = "hadar"
    patience: int = PATIENCE_ROUNDS
    fill: bool = False

    def plan(self, snapshot: Snapshot, memory: Memory) -> tuple[RoundPlan, Memory]:
        # 1. what there is, what it costs, and what each job could hope for
        cells = Cells(snapshot.nodes)
        curves = Curves(cells, snapshot.prices)
        table = job_table(snapshot.jobs, cells.types, snapshot.now_s)
        hopes = hoped_payoffs(table, curves.reserve(cells), snapshot.round_s)
        # 2. the queue: those that waited too long, then by hope per device
        round_plan = _Round(table, cells, curves, snapshot.round_s)
        turn = overdue(table, round_plan.usable_devices(), [j.gang for j in table.jobs], memory, self.patience)
        late = set(turn.rows)
        by_hope = [row for row in _queue(table, hopes) if row not in late]
        queue = [*turn.rows, *by_hope]
        # 3. the programme, and what is left
        round_plan.place_anyway(turn.rows)
        round_plan.place_by_payoff(by_hope, hopes)
        if self.fill:
            round_plan.place_anyway(row for row in queue if row not in round_plan.placed)
        # 4. quotas and reasons
        forks = tuple(round_plan.forks())
        outcome = Outcome(
            snapshot=snapshot,
            cells=cells,
            order=[table.jobs[row].job_id for row in queue],
            forks=forks,
            refused=round_plan.refused(queue),
            devices_needed={job.job_id: job.gang for job in table.jobs},
        )
        memory = remember(memory, turn.credit, snapshot.jobs, {fork.job_id for fork in forks})
        return conclude(self.name, outcome), memory


def hoped_payoffs(table: JobTable, reserve: Floats, round_s: float) -> Floats:
    """Each job's best payoff on an empty cluster at the reserve prices, over gangs of one type."""
    if not table.types:
        return np.zeros(len(table.jobs))
    able = table.rates > 0
    rates = np.where(able, table.rates, 1.0) * table.gang[:, None]
    left_s = table.steps[:, None] / rates
    worth = table.utilities(table.stake.age_s[:, None] + left_s)
    paid = np.maximum(left_s / round_s, 1.0) * table.gang[:, None] * reserve
    return np.asarray(np.where(able, worth - paid, 0.0).max(axis=1), dtype=np.float64)


def _queue(table: JobTable, hopes: Floats) -> list[int]:
    density = hopes / table.gang
    return sorted(range(len(table.jobs)), key=lambda row: (-rounded(float(density[row])), table.jobs[row].job_id))


class _Round:
    """One round being filled: what is free, and who got what."""

    def __init__(self, table: JobTable, cells: Cells, curves: Curves, round_s: float) -> None:
        self._table = table
        self._cells = cells
        self._round_s = round_s
        self._rates = cell_rates(cells, table)
        self._prices = PriceSums(cells, curves)
        self._planner = QueuePlanner(cells, curves, round_s)
        self._free: Free = self._prices.capacity
        self.placed: dict[int, tuple[Placement, bool]] = {}

    def usable_devices(self) -> Floats:
        """Devices that each job could use on an empty cluster."""
        return np.asarray((self._rates > 0) @ np.asarray(self._prices.capacity, dtype=np.float64), dtype=np.float64)

    def place_anyway(self, rows: Iterable[int]) -> None:
        """Each job's best gang from what is free, in order; marked ``filled``, for no payoff was asked."""
        for row in rows:
            if not sum(self._free):
                return
            best = self._planner.respond(self._gangs(row), self._free)
            if best is not None:
                self.placed[row] = (best, best.payoff <= 0)
                self._free = without(self._free, best.devices)

    def place_by_payoff(self, rows: list[int], hopes: Floats) -> None:
        """The dynamic programme over the queue."""
        able = [row for row in rows if self._table.best[row] > 0]
        chosen = self._planner.plan(able, self._gangs, [float(hopes[row]) for row in able], self._free)
        for row, placement in sorted(chosen.items()):
            self.placed[row] = (placement, False)
            self._free = without(self._free, placement.devices)

    def refused(self, queue: Iterable[int]) -> frozenset[str]:
        """Jobs for which there is a gang among the free devices, at a price that they do not pay."""
        rows = [row for row in queue if row not in self.placed] if sum(self._free) else []
        return frozenset(
            self._table.jobs[row].job_id
            for row in rows
            if self._planner.respond(self._gangs(row), self._free) is not None
        )

    def forks(self) -> Iterable[ForkPlan]:
        for row, (placement, filled) in sorted(self.placed.items()):
            yield replace(self._fork(row, placement), filled=filled)

    def _gangs(self, row: int) -> Gangs:
        job = self._table.jobs[row]
        thorough = len(self._table.jobs) <= FEW_JOBS
        return Gangs(job, self._table.stake_of(row), self._rates[row], self._cells, self._prices, thorough=thorough)

    def _fork(self, row: int, placement: Placement) -> ForkPlan:
        job = self._table.jobs[row]
        gang = tuple(
            GangMember(node=self._cells.keys[cell][0], type=self._cells.keys[cell][1], count=count)
            for cell, count in placement.devices
        )
        sureness = min(job.throughput[member.type].confidence for member in gang)
        (quota,) = quotas(job.steps_left, [placement.rate * self._round_s], [slack(sureness)])
        return ForkPlan(
            job_id=job.job_id,
            fork=0,
            gang=gang,
            quota=quota,
            rate=placement.rate,
            price=placement.price,
            payoff=placement.payoff,
        )
