"""The exact optimum of a round, V* of DESIGN §5, as an integer programme: the yardstick of the policies, not one.

``V* = max Σ_j Σ_{g∈G_j} U_jg·z_jg − Σ_{h,r} Σ_{m<c} k_hr(m)·u_hrm`` over all admissible gangs. Gangs of a job that
differ only by the nodes they are spread over are worth the same and are one column; their devices are then a flow to
the cells, which is integral by itself. With ``forks`` G_j are all sets of devices. Needs scipy (HiGHS).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isfinite

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from hadare.model.plans import JobView, RoundPlan, Snapshot
from hadare.scheduling.eligibility import Cells, JobTable, job_table
from hadare.scheduling.gain import fork_rates, joint_rate
from hadare.scheduling.holding import Counts, Devices, Holding, Market
from hadare.scheduling.placement import Candidate, Gangs, where
from hadare.scheduling.pricing import Curves

Pool = tuple[int, ...]
"""Cells of one type that a job may use."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """``value`` of the best plan that was found and a ``bound`` that none exceeds; they meet unless time ran out."""

    value: float
    bound: float


class Yardstick:
    """Measures plans of one snapshot. ``forks``: of HadarE, whose jobs take sets of devices, else of Hadar."""

    def __init__(self, snapshot: Snapshot, *, forks: bool = False) -> None:
        self._snapshot = snapshot
        self._cells = Cells(snapshot.nodes)
        devices = int(self._cells.capacity.sum())
        self._table: JobTable = job_table(snapshot.jobs, self._cells.types, snapshot.now_s, devices)
        self._market = Market(self._cells, Curves(self._cells, snapshot.prices))
        self._gangs = Gangs(self._table, self._cells)
        self._forks = forks

    def value(self, plan: RoundPlan) -> float:
        """V of a plan: the utilities of its jobs less the prices of all devices that it takes."""
        held: dict[str, list[int]] = {}
        taken = [0] * len(self._cells.keys)
        for fork in plan.forks:
            for member in fork.gang:
                cell = self._cells.index[member.node, member.type]
                taken[cell] += member.count
                held.setdefault(fork.job_id, []).extend([cell] * member.count)
        worth = sum(
            self._worth(row, held[job.job_id]) for row, job in enumerate(self._table.jobs) if job.job_id in held
        )
        return worth - sum(sums[count] for sums, count in zip(self._market.sums, taken, strict=True))

    def optimum(self, *, time_limit_s: float = 60.0, gap: float = 1e-6) -> Optimum:
        """V*, and the bound that HiGHS proves."""
        rows = range(len(self._table.jobs)) if self._cells.keys else range(0)
        columns = [column for row in rows for column in self._columns(row)]
        if not columns:
            return Optimum(0.0, 0.0)
        programme = _Programme([row for row, _ in columns], [c for _, c in columns], self._market)
        return programme.solve(time_limit_s, gap)

    def greedy(self) -> float:
        """V of the plain greedy by payoff, a reference: the gang of the best payoff of all, again and again."""
        nothing = np.zeros(len(self._cells.types))
        waiting = self._gangs.candidates(range(len(self._table.jobs)), nothing, every=True)
        holding, value = Holding(self._market), 0.0
        while True:
            offers = (
                (c.worth - holding.price(c.counts, devices), -row, c, devices)
                for row, candidates in sorted(waiting.items())
                for c in candidates
                for devices in where(c, holding)
            )
            best = max(offers, key=lambda offer: offer[:2], default=None)
            if best is None or best[0] <= 0:
                return value - holding.cost()
            del waiting[-best[1]]
            value += best[2].worth
            holding.take(best[2].counts, best[3])

    def _worth(self, row: int, cells: Sequence[int]) -> float:
        if not self._forks:
            devices: Devices = tuple(sorted((cell, cells.count(cell)) for cell in set(cells)))
            return self._gangs.worth(row, devices)
        job = self._table.jobs[row]
        rates = fork_rates(job, [self._cells.keys[cell] for cell in cells], self._snapshot.round_s)
        return self._worth_of(row, joint_rate(job, rates, self._snapshot.round_s))

    def _worth_of(self, row: int, rate: float) -> float:
        return float(self._gangs.worths(np.array([row]), np.array([[rate]]), np.zeros(1))[0, 0])

    def _columns(self, row: int) -> Iterator[tuple[int, Candidate]]:
        if self._forks:
            yield from ((row, column) for column in self._fork_sets(row))
            return
        nothing = np.zeros(len(self._cells.types))
        for candidate in self._gangs.candidates([row], nothing, every=True)[row]:
            if not candidate.places:
                yield row, candidate
            for place in candidate.places:
                yield row, replace(candidate, places=(place,))

    def _fork_sets(self, row: int) -> Iterator[Candidate]:
        """All numbers of devices of each type. A fork of a type of which the job has a process counts as warm."""
        job, open_ = self._table.jobs[row], self._gangs.open[row]
        fastest = float(self._gangs.rates[row].max(initial=0.0))
        fit = np.where(self._gangs.rates[row] >= job.min_fork_share * fastest, open_, 0)
        most = min(job.max_forks or job.steps_left, job.steps_left)
        mask = tuple(np.flatnonzero(self._cells.mask(job)).tolist())
        for counts in product(*(range(int(n) + 1) for n in fit)):
            if 0 < sum(counts) <= most:
                rate = joint_rate(job, self._set_rates(job, counts), self._snapshot.round_s)
                yield Candidate(worth=self._worth_of(row, rate), counts=counts, among=mask)

    def _set_rates(self, job: JobView, counts: Counts) -> list[float]:
        warm = {
            t: [m.node for g in job.placed for m in g if m.type == t for _ in range(m.count)] for t in self._cells.types
        }
        keys = []
        for t, count in zip(self._cells.types, counts, strict=True):
            there = [(node, t) for node in warm[t]][:count]
            keys += [*there, *[("", t)] * (count - len(there))]
        return fork_rates(job, keys, self._snapshot.round_s)


class _Programme:
    """The integer programme: z a column, then y a (pool, cell), then u a (cell, step of its curve)."""

    def __init__(self, rows: Sequence[int], columns: Sequence[Candidate], market: Market) -> None:
        self._columns, self._market = columns, market
        self._jobs = {row: i for i, row in enumerate(sorted(set(rows)))}
        self._rows = rows
        pools = sorted({pool for c in columns for pool, _ in self._pooled(c)})
        self._pool = {pool: i for i, pool in enumerate(pools)}
        self._flows = [(i, cell) for i, pool in enumerate(pools) for cell in pool]
        self._steps = [(cell, price) for cell, row in enumerate(market.marginal) for price in row]

    def solve(self, time_limit_s: float, gap: float) -> Optimum:
        worth = np.array([c.worth for c in self._columns])
        scale = float(worth.max()) or 1.0
        prices = np.array([price for _, price in self._steps])
        gain = np.concatenate([worth, np.zeros(len(self._flows)), -prices]) / scale
        top = np.concatenate([np.ones(len(worth)), np.full(len(self._flows), np.inf), np.ones(len(prices))])
        found = milp(
            -gain,
            integrality=np.concatenate([np.ones(len(worth)), np.zeros(len(gain) - len(worth))]),
            bounds=Bounds(np.zeros(len(gain)), top),
            constraints=self._constraints(len(gain)),
            options={"time_limit": time_limit_s, "mip_rel_gap": gap},
        )
        value = -float(found.fun) * scale if found.fun is not None else 0.0
        bound = -float(found.mip_dual_bound) * scale if found.mip_dual_bound is not None else float("inf")
        return Optimum(value, max(value, bound) if isfinite(bound) else bound)

    def _constraints(self, variables: int) -> LinearConstraint:
        z, y = 0, len(self._columns)
        u = y + len(self._flows)
        jobs, pools = len(self._jobs), len(self._pool)
        entries: list[tuple[int, int, float]] = []
        for i, column in enumerate(self._columns):
            entries.append((self._jobs[self._rows[i]], z + i, 1.0))
            entries.extend((jobs + self._pool[pool], z + i, float(n)) for pool, n in self._pooled(column))
            entries.extend((jobs + pools + cell, z + i, float(n)) for cell, n in self._fixed(column))
        for i, (pool_number, cell) in enumerate(self._flows):
            entries.append((jobs + pool_number, y + i, -1.0))
            entries.append((jobs + pools + cell, y + i, 1.0))
        entries.extend((jobs + pools + cell, u + i, -1.0) for i, (cell, _) in enumerate(self._steps))
        at, column_of, values = zip(*entries, strict=True)
        height = jobs + pools + len(self._market.capacity)
        matrix = coo_array((values, (at, column_of)), shape=(height, variables)).tocsr()
        low = np.concatenate([np.zeros(jobs), np.zeros(height - jobs)])
        return LinearConstraint(matrix, low, np.concatenate([np.ones(jobs), np.zeros(height - jobs)]))

    def _pooled(self, column: Candidate) -> Iterator[tuple[Pool, int]]:
        if column.places:
            return
        for r, count in enumerate(column.counts):
            if count:
                group = self._market.cells.by_type[r]
                yield tuple(c for c in group if not column.among or c in column.among), count

    @staticmethod
    def _fixed(column: Candidate) -> Devices:
        return column.places[0] if column.places else ()
