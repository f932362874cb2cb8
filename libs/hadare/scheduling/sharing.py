"""HadarE's placement: which devices each job's forks get in a round. A fork is one device and never spans nodes.

The rules of this file. Jobs are served in a given order, the first with the least price-weighted work left.
(1) Jobs whose turn it is because they waited too long get one device each, whatever it costs. (2) In order, each job
takes the devices that raise its payoff at the marginal prices, up to what it can finish with. It sets devices aside for
those behind it: one for each if a twentieth of the cluster (or two devices) is enough for that, else none. (3) What is
still free goes out at the reserve price, first to jobs without a device, then in order: no device idles while a job
could use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hadare.model.plans import JobView
from hadare.scheduling.eligibility import Bools, Cells, Floats, Ints, JobTable, cell_rates, warm_cells
from hadare.scheduling.gain import joint, training_part
from hadare.scheduling.pricing import Occupancy
from hadare.scheduling.utility import Stake, Utility, utility_of

TIE = 1e-9
LEAST_WORK, MOST_WORK = 1e-30, 1e60
SURE, SURE_COLD = 1.0, 3.0
"""How much faster than needed a job must be expected to be, to count as finishing, if its rates are measured or not."""

ASIDE = 0.05
"""Jobs behind have a device each set aside if so much of the devices, or two, are enough for it."""

NEAR = 0.99
"""Types on which a job gets nearly as many steps per price as on its best one are as good to it."""
TASTE, TASTE_OF_MANY = 5.0, 30.0
"""How much more a good bargain counts than an early place in the queue; the second where a queue is long or draining.
Measured: more lengthens the mean completion time where few jobs are there at a time, less the total time."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One device for one fork: its rate, the steps it can do in the round, its price per round and its payoff."""

    cell: int
    rate: float
    expected_steps: float
    price: float
    payoff: float
    filled: bool


@dataclass(slots=True)
class Share:
    """What one job has been granted so far, and what the next device would bring it."""

    job: JobView
    stake: Stake[Floats]
    utility: Utility
    rates: Floats
    bargain: Floats
    asked: Floats
    warm: Ints
    round_s: float
    confidence: float
    grants: list[Grant] = field(default_factory=list)
    total: float = 0.0
    fastest: float = 0.0
    effective: float = 0.0
    worth: float = 0.0
    refused: bool = False

    def can_use(self, joint_rates: Floats, occupancy: Occupancy) -> Bools:
        """Free cells in which one more fork would do at least one step of what is left."""
        forks = len(self.grants)
        if forks >= min(self.job.max_forks or self.job.steps_left, self.job.steps_left):
            return np.zeros_like(self.rates, dtype=np.bool_)
        worth = self.job.steps_left * self.rates >= self.total + self.rates
        helps = joint_rates > self.effective * (1 + TIE)
        return np.asarray((self.rates > 0) & worth & helps & (occupancy.free > 0), dtype=np.bool_)

    def enough(self) -> bool:
        """Whether what it has will finish the job in this round, even if rates nobody measured prove 3 × too high."""
        return self.effective >= self.needed()

    def needed(self) -> float:
        """Steps/s with which the job surely finishes in this round."""
        margin = SURE + (SURE_COLD - SURE) * (1.0 - self.confidence)
        return margin * self.job.steps_left / self.round_s

    def effective_rates(self) -> Floats:
        """Steps/s over the whole round: a cold fork first pays the job's restart cost."""
        cold = training_part(self.job.restart_cost_s, self.round_s)
        return np.asarray(self.rates * np.where(self.warm > 0, 1.0, cold), dtype=np.float64)

    def joint_rates(self) -> Floats:
        """Steps/s of all forks together with one more in each cell, at what their steps are worth (``gain``)."""
        more = self.effective_rates()
        return joint(self.job, self.total + more, np.maximum(self.fastest, more), len(self.grants) + 1, self.round_s)

    def payoffs(self, joint_rates: Floats, occupancy: Occupancy) -> Floats:
        """What one more fork in each cell would add to the job's payoff: to its utility, less the device's price."""
        left_s = self.job.steps_left / np.maximum(joint_rates, 1e-30)
        worth = self.utility.value(self.stake, self.stake.age_s + left_s)
        return np.asarray(worth - self.worth - occupancy.price, dtype=np.float64)

    def add(self, cell: int, price: float, payoff: float, filled: bool) -> None:
        effective = float(self.effective_rates()[cell])
        self.grants.append(
            Grant(
                cell=cell,
                rate=float(self.rates[cell]),
                expected_steps=effective * self.round_s,
                price=price,
                payoff=payoff,
                filled=filled,
            )
        )
        self.warm[cell] = max(0, self.warm[cell] - 1)
        self.total += effective
        self.fastest = max(self.fastest, effective)
        self.effective = joint(self.job, self.total, self.fastest, len(self.grants), self.round_s)
        self.worth += payoff + price


@dataclass(frozen=True, slots=True)
class Line:
    """The queue: rows, first served first; by row the work left, at the prices of the types and over its urgency.

    ``taste``: how much more a good bargain counts than an early place.
    """

    order: Sequence[int]
    work: Floats
    type_prices: Floats
    taste: float = TASTE


class Sharing:
    """One round's devices, handed out to forks. Use: ``serve(urgent)``, then read ``shares``."""

    def __init__(self, table: JobTable, cells: Cells, occupancy: Occupancy, round_s: float, line: Line) -> None:
        self._table = table
        self._cells = cells
        self._occupancy = occupancy
        self._round_s = round_s
        self._rates = _worth_forking(table, cell_rates(cells, table))
        self._able: list[bool] = [bool(rates.any()) for rates in self._rates > 0]
        self._order = line.order
        self._type_prices: Floats = line.type_prices[cells.type_of]
        self._bargain = _bargains(table.rates, line.type_prices)
        self._asked = _asked(self._bargain, line)
        self._crowded = len(table.jobs) > 1
        self._held: Ints = np.zeros_like(cells.capacity)
        for job in table.jobs:
            for cell, count in warm_cells(cells, job).items():
                self._held[cell] += count
        self.shares: dict[int, Share] = {}

    def serve(self, urgent: Sequence[int]) -> None:
        """Hand out every device. ``urgent`` are rows of jobs that must wait no longer."""
        for row in urgent:
            self._grant(self._share(row), priced=True) or self._grant(self._share(row), priced=False)
        self._serve_by_price(self._order)
        self._fill(self._order)

    def usable_devices(self) -> Floats:
        """Devices that each job could use on an empty cluster."""
        return np.asarray((self._rates > 0) @ self._cells.capacity.astype(np.float64), dtype=np.float64)

    def usable(self, row: int) -> Bools:
        """Cells in which the job could run a fork on an empty cluster."""
        return np.asarray(self._rates[row] > 0, dtype=np.bool_)

    def _serve_by_price(self, order: Sequence[int]) -> None:
        devices = int(self._cells.capacity.sum())
        without = sum(1 for row in order if not self._served(row) and self._able[row])
        for row in order:
            if self._occupancy.devices_free == 0:
                return
            share = self._share(row)
            without -= 1 if not share.grants and self._able[row] else 0
            aside = without if without <= max(2, int(ASIDE * devices)) else 0
            while not share.enough() and (not share.grants or self._occupancy.devices_free > aside):
                if not self._grant(share, priced=True):
                    break

    def _fill(self, order: Sequence[int]) -> None:
        """The work-conserving pass, in order: one device for who has none, what helps, what can be used at all."""
        self._each(order, lambda share: not share.grants and self._grant(share, priced=False))
        self._each(order, lambda share: self._fill_up(share, until_enough=True))
        self._each(order, lambda share: self._fill_up(share, until_enough=False))

    def _each(self, order: Sequence[int], visit: Callable[[Share], object]) -> None:
        for row in order:
            if self._occupancy.devices_free == 0:
                return
            visit(self._share(row))

    def _fill_up(self, share: Share, *, until_enough: bool) -> None:
        while not (until_enough and share.enough()):
            if not self._grant(share, priced=False):
                return

    def _grant(self, share: Share, *, priced: bool) -> bool:
        """Give the job its best next device; with ``priced`` only one whose payoff is positive."""
        joint_rates = share.joint_rates()
        usable = share.can_use(joint_rates, self._occupancy)
        if not usable.any():
            return False
        payoffs = np.where(usable, share.payoffs(joint_rates, self._occupancy), -np.inf)
        acceptable = usable & (payoffs > 0) if priced else usable
        last = acceptable & (joint_rates >= share.needed())
        if self._crowded and not share.enough() and last.any():
            acceptable = last & (self._type_prices <= self._type_prices[last].min() * (1 + TIE))
        elif priced:
            acceptable &= share.bargain >= share.asked
        if not acceptable.any():
            share.refused = True
            return False
        cell = self._pick(share, payoffs, acceptable)
        if share.warm[cell] > 0:
            self._held[cell] -= 1
        price = float(self._occupancy.price[cell])
        self._occupancy.take(cell)
        share.add(cell, price, float(payoffs[cell]), filled=not payoffs[cell] > 0 or not priced)
        return True

    def _pick(self, share: Share, payoffs: Floats, acceptable: Bools) -> int:
        """The type of the best payoff; of its cells the one where the job is warm, else one that is warm for nobody.

        Equal devices differ only in price, by the order in which the queue took them: no reason to move a process.
        """
        bargain = share.bargain[acceptable].max()
        acceptable = acceptable & (share.bargain >= NEAR * bargain)
        best = payoffs[acceptable].max()
        near = np.flatnonzero(acceptable & (payoffs >= best - TIE * abs(best)))
        warm = near[share.warm[near] > 0]
        first = int(warm[0] if warm.size else near[0])
        same = np.flatnonzero(acceptable & (self._cells.type_of == self._cells.type_of[first]))
        others = np.maximum(self._held - share.warm, 0)
        ranks = [
            (
                share.warm[c] <= 0,
                self._occupancy.free[c] <= others[c],
                payoffs[c] < best - TIE * abs(best),
                -payoffs[c],
                c,
            )
            for c in same.tolist()
        ]
        return int(min(ranks)[-1])

    def _served(self, row: int) -> bool:
        return row in self.shares and bool(self.shares[row].grants)

    def _share(self, row: int) -> Share:
        if row not in self.shares:
            self.shares[row] = self._new_share(row)
        return self.shares[row]

    def _new_share(self, row: int) -> Share:
        job = self._table.jobs[row]
        warm: Ints = np.zeros_like(self._cells.capacity)
        for cell, count in warm_cells(self._cells, job).items():
            warm[cell] = count
        known = [job.throughput[t].confidence for t in self._table.types if t in job.throughput]
        return Share(
            job=job,
            stake=self._table.stake_rows(row),
            utility=utility_of(self._table.kinds[self._table.kind[row]]),
            rates=self._rates[row],
            bargain=self._bargain[row, self._cells.type_of],
            asked=self._asked[row, self._cells.type_of],
            warm=warm,
            round_s=self._round_s,
            confidence=min(known, default=0.0),
        )


def _bargains(rates: Floats, type_prices: Floats) -> Floats:
    """Steps per price of every job on every type, relative to its best type."""
    per_price = rates / type_prices
    best = per_price.max(axis=1, keepdims=True, initial=0.0)
    bargains = np.zeros_like(rates)
    np.divide(per_price, best, out=bargains, where=best > 0)
    return bargains


def _asked(bargains: Floats, line: Line) -> Floats:
    """How good a bargain a type must be to a job for it to take it from those behind it: ``NEAR`` at most.

    A device is worth ``bargain^taste / work`` to a job: what is gained by a job's end is as much less as it is far.
    """
    if not bargains.size:
        return np.zeros_like(bargains)
    rows, work = np.array(line.order, dtype=np.int64), np.clip(line.work, LEAST_WORK, MOST_WORK)
    index = bargains[rows] ** line.taste / work[rows][:, None]
    behind = np.maximum.accumulate(index[::-1], axis=0)[::-1]
    behind = np.vstack([behind[1:], np.zeros((1, index.shape[1]))])
    asked = np.empty_like(bargains)
    asked[rows] = (behind * work[rows][:, None]) ** (1.0 / line.taste)
    return np.asarray(np.minimum(asked, NEAR), dtype=np.float64)


def _worth_forking(table: JobTable, rates: Floats) -> Floats:
    """Drop cells where a fork would be slower than ``min_fork_share`` of the job's fastest possible fork."""
    if rates.size == 0:
        return rates
    least = np.array([job.min_fork_share for job in table.jobs])[:, None] * rates.max(axis=1, keepdims=True)
    return np.where(rates >= least, rates, 0.0)
