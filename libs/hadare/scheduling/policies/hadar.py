"""Hadar: one fork a job on a gang of exactly W devices, which may mix types and span nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hadare.model.plans import ForkPlan, GangMember, RoundPlan, Snapshot
from hadare.scheduling.decisions import Outcome, conclude
from hadare.scheduling.division import gang_quota
from hadare.scheduling.duals import Relaxation, type_duals
from hadare.scheduling.eligibility import Cells, Floats, JobTable, in_order, job_table
from hadare.scheduling.holding import Devices, Holding, Market
from hadare.scheduling.placement import Candidate, Gangs
from hadare.scheduling.planning import Choice, Programme
from hadare.scheduling.policies.base import PATIENCE_ROUNDS, Memory, ahead_of, overdue, remember
from hadare.scheduling.pricing import Curves
from hadare.scheduling.repair import Repair

FEW_JOBS, FEW_DEVICES = 16, 64
"""Up to here the programme looks at a round as a whole, with some ``EFFORT``; surely enough for the smaller ones."""
SMALL_JOBS, SMALL_DEVICES = 10, 24
EFFORT, SMALL_EFFORT = 6_000, 40_000
CANDIDATES = 12
"""Gangs of a job that are looked at in larger rounds."""
WINDOW = 1.5
"""Jobs that are looked at closely want so many times the devices that there are."""


@dataclass(frozen=True, slots=True)
class Hadar:
    """``patience``: rounds after which a waiting job has its turn before others, whatever it pays off.

    ``fill``: place jobs that prices kept out on devices that would idle. ``utility``: of all jobs, whatever they name.
    """

    name: str = "hadar"
    patience: int = PATIENCE_ROUNDS
    fill: bool = False
    utility: str | None = None

    default_utility: ClassVar[str] = "completion_times"
    """Normalised speed, the paper's, lets short jobs wait as long as long ones: 4 times the mean completion time."""

    def plan(self, snapshot: Snapshot, memory: Memory) -> tuple[RoundPlan, Memory]:
        # 1. what there is, what it costs, and what each job could make of it
        cells = Cells(snapshot.nodes)
        table = job_table(snapshot.jobs, cells.types, snapshot.now_s, int(cells.capacity.sum()), self.utility)
        making = _Round(table, Market(cells, Curves(cells, snapshot.prices)), snapshot.round_s)
        # 2. the queue: those that waited too long, then by payoff per device at the dual prices
        needs = [job.gang for job in table.jobs]
        turn = overdue(table, making.gangs.open.sum(axis=1).astype(np.float64), needs, memory, self.patience)
        queue = making.queue(turn.rows)
        # 3. the plan, and what it leaves
        making.place(turn.rows, queue)
        if self.fill:
            making.fill(queue)
        # 4. quotas and reasons
        forks = tuple(making.forks())
        outcome = Outcome(
            snapshot=snapshot,
            cells=cells,
            order=[table.jobs[row].job_id for row in queue],
            forks=forks,
            refused=making.refused(),
            devices_needed={job.job_id: job.gang for job in table.jobs},
        )
        ahead = ahead_of(table, cells, queue, snapshot.round_s)
        memory = remember(memory, turn.credit, snapshot.jobs, {fork.job_id for fork in forks}, ahead)
        return conclude(self.name, outcome), memory


class _Round:
    """One round being filled: what is free, and who got what."""

    def __init__(self, table: JobTable, market: Market, round_s: float) -> None:
        self._table = table
        self._market = market
        self._round_s = round_s
        self.gangs = Gangs(table, market.cells)
        self._worths: Floats = self.gangs.of_one_type() if market.capacity else np.zeros((len(table.jobs), 0))
        self._duals = type_duals(self._worths, table.gang, market)
        self._holding = Holding(market)
        self._placed: dict[int, Choice] = {}

    def queue(self, first: Sequence[int]) -> list[int]:
        """Rows in the order in which they are served: ``first``, then by payoff per device at the dual prices."""
        rows, gang = len(self._table.jobs), self._table.gang
        if not self._market.capacity:
            return list(range(rows))
        reduced = (self._worths - gang[:, None] * self._duals).max(axis=1) / gang
        # No single type is enough for these: they are judged by the types that they could mix.
        for row in np.flatnonzero((self._worths.max(axis=1) <= 0) & (self.gangs.open.sum(axis=1) >= gang)):
            mixed = self.gangs.candidates([int(row)], self._duals, 1)[int(row)]
            if mixed:
                paid = sum(float(self._duals[r]) * n for r, n in enumerate(mixed[0].counts))
                reduced[row] = (mixed[0].worth - paid) / gang[row]
        late = set(first)
        worth = np.maximum(self._worths.max(axis=1), np.abs(reduced) * gang) / gang
        return [*first, *(row for row in in_order(-reduced, worth) if row not in late)]

    def place(self, first: Sequence[int], queue: Sequence[int]) -> None:
        """Those that must wait no longer, whatever it costs; then the plan that is worth most."""
        devices = sum(self._market.of_type)
        thorough = len(queue) <= FEW_JOBS and devices <= FEW_DEVICES
        self._place_anyway(first)
        window = self._window([row for row in queue if row not in self._placed], devices)
        candidates = self.gangs.candidates(window, self._duals, None if thorough else CANDIDATES)
        if not window:
            return
        relaxation = Relaxation([candidates[row] for row in window], self._market)
        bound = relaxation.value(self._duals)[0] - float(self._duals @ self._holding.totals)
        repair = Repair(candidates, window, self._copy(), self._duals.tolist(), bound)
        repair.run()
        chosen = repair.chosen
        if thorough:
            chosen = self._programme(candidates, relaxation, repair) or chosen
        for row, choice in sorted(chosen.items()):
            self._put(row, choice)
        self._insert_others(queue, set(window))

    def _programme(
        self, candidates: Mapping[int, Sequence[Candidate]], relaxation: Relaxation, known: Repair
    ) -> dict[int, Choice] | None:
        """What the dynamic programme finds, if it is better than the known plan."""
        rows = list(candidates)
        value = known.value()
        duals, _ = relaxation.improve(self._duals, value)
        self._market.tell_apart(self.gangs.marks())
        small = len(rows) <= SMALL_JOBS and sum(self._market.of_type) <= SMALL_DEVICES
        effort = SMALL_EFFORT if small else EFFORT
        better, _ = Programme([candidates[row] for row in rows], self._copy(), duals, effort).solve(value)
        return None if better is None else {rows[position]: choice for position, choice in better.items()}

    def fill(self, queue: Sequence[int]) -> None:
        """Each job's best gang from what is left, whatever it pays off."""
        for row in queue:
            if not self._holding.free():
                return
            if row not in self._placed and self._enough_free(row):
                self._place_anyway([row])

    def refused(self) -> frozenset[str]:
        """Jobs for which there is a gang among the free devices, at a price that they do not pay."""
        if not self._holding.free():
            return frozenset()
        rows = [row for row in range(len(self._table.jobs)) if row not in self._placed and self._enough_free(row)]
        return frozenset(self._table.jobs[row].job_id for row in rows)

    def forks(self) -> Iterable[ForkPlan]:
        """The forks of the placed jobs. Who comes first in the order of ids pays the lower steps of a curve."""
        taken = [0] * len(self._market.capacity)
        for row, devices in sorted(self._settle().items()):
            price = 0.0
            for cell, count in devices:
                price += self._market.sums[cell][taken[cell] + count] - self._market.sums[cell][taken[cell]]
                taken[cell] += count
            yield self._fork(row, devices, price)

    def _fork(self, row: int, devices: Devices, price: float) -> ForkPlan:
        job = self._table.jobs[row]
        rate = self.gangs.rate(row, devices)
        payoff = self.gangs.worth(row, devices) - price
        members = [(*self._market.cells.keys[cell], count) for cell, count in devices]
        gang = tuple(GangMember(node=node, type=device_type, count=count) for node, device_type, count in members)
        confidence = min(job.throughput[member.type].confidence for member in gang)
        return ForkPlan(
            job_id=job.job_id,
            fork=0,
            gang=gang,
            quota=gang_quota(job.steps_left, rate * self._round_s, confidence, job.gang),
            rate=rate,
            price=price,
            payoff=payoff,
            filled=payoff <= 0,
        )

    def _window(self, queue: Sequence[int], devices: int) -> list[int]:
        """The jobs that are looked at closely: the first of the queue that can run, with the devices for some more."""
        window: list[int] = []
        wanted, most = 0.0, WINDOW * devices + 2 * float(self._table.gang.max(initial=1))
        for row in queue:
            if wanted >= most and len(window) >= FEW_JOBS:
                break
            if self.gangs.open[row].sum() >= self._table.gang[row]:
                window.append(row)
                wanted += float(self._table.gang[row])
        return window

    def _insert_others(self, queue: Sequence[int], seen: set[int]) -> None:
        """Jobs behind the window that still fit and pay off."""
        for row in queue:
            if not self._holding.free():
                return
            if row in seen or row in self._placed or not self._enough_free(row):
                continue
            one = Repair(
                self.gangs.candidates([row], self._duals, CANDIDATES), [row], self._holding, self._duals.tolist()
            )
            if one.insert(row):
                self._placed[row] = one.chosen[row]

    def _place_anyway(self, rows: Sequence[int]) -> None:
        candidates = self.gangs.candidates(rows, self._duals, None if len(rows) <= FEW_JOBS else CANDIDATES)
        for row in rows:
            best = Repair(candidates, [row], self._holding, self._duals.tolist()).best(row)
            if best is not None:
                self._put(row, best[0])

    def _put(self, row: int, choice: Choice) -> None:
        self._placed[row] = choice
        self._holding.take(choice[0].counts, choice[1])

    def _copy(self) -> Holding:
        holding = Holding(self._market)
        holding.fixed, holding.totals = list(self._holding.fixed), list(self._holding.totals)
        return holding

    def _enough_free(self, row: int) -> bool:
        free = np.array(self._market.of_type) - np.array(self._holding.totals)
        return bool(np.minimum(free, self.gangs.open[row]).sum() >= self._table.gang[row])

    def _settle(self) -> dict[int, Devices]:
        """The devices of every placed job; where it does not matter which, what is left goes where most is left."""
        loose = self._holding.settle()
        settled: dict[int, Devices] = {}
        for row in sorted(self._placed, key=lambda row: (-self._table.jobs[row].gang, row)):
            candidate, devices = self._placed[row]
            settled[row] = devices or _gather(candidate.counts, loose, self._market)
        return settled


def _gather(counts: Sequence[int], loose: list[int], market: Market) -> Devices:
    """Takes the counts from the loose devices, on as few cells as that needs."""
    taken: dict[int, int] = {}
    for r, count in enumerate(counts):
        left = count
        while left:
            fitting = [cell for cell in market.cells.by_type[r] if loose[cell] >= left]
            cell = (
                min(fitting, key=lambda c: (loose[c], c))
                if fitting
                else max(market.cells.by_type[r], key=lambda c: (loose[c], -c))
            )
            part = min(left, loose[cell])
            taken[cell] = taken.get(cell, 0) + part
            loose[cell] -= part
            left -= part
    return tuple(sorted(taken.items()))
