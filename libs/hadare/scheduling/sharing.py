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
from dataclasses import dataclass

import numpy as np

from hadare.scheduling.eligibility import Bools, Cells, Floats, JobTable, cell_rates, warm_cells
from hadare.scheduling.offers import NEAR, Offers, best_of
from hadare.scheduling.pricing import Occupancy
from hadare.scheduling.share import TIE, Share
from hadare.scheduling.utility import utility_of

LEAST_WORK, MOST_WORK = 1e-30, 1e60

ASIDE = 0.05
"""Jobs behind have a device each set aside if so much of the devices, or two, are enough for it."""

TASTE = 30.0
"""Where there are more jobs than devices: how much more a good bargain counts than an early place in the queue.
Nearly everyone can have what suits him."""


@dataclass(frozen=True, slots=True)
class Line:
    """The queue: rows, first served first; by row the work left, at the prices of the types and over its urgency.

    ``last``: as so many jobs behind the last one the end of all counts.
    """

    order: Sequence[int]
    work: Floats
    type_prices: Floats
    last: float = 0.0


class Sharing:
    """One round's devices, handed out to forks. Use: ``serve(urgent)``, then read ``shares``."""

    def __init__(
        self,
        table: JobTable,
        cells: Cells,
        occupancy: Occupancy,
        round_s: float,
        line: Line,
        *,
        may_end_early: bool = False,
    ) -> None:
        self._table = table
        self._cells = cells
        self._occupancy = occupancy
        self._round_s, self._may_end_early = round_s, may_end_early
        self._rates = _worth_forking(table, cell_rates(cells, table))
        self._able: list[bool] = [bool(rates.any()) for rates in self._rates > 0]
        self._order = line.order
        self._types: list[int] = cells.type_of.tolist()
        self._type_prices: list[float] = line.type_prices.tolist()
        self._bargain = _bargains(table.rates, line.type_prices)
        self._asked = _asked(self._bargain, line, crowded=len(table.jobs) > int(cells.capacity.sum()))
        self._crowded = len(table.jobs) > 1
        self._warm = [warm_cells(cells, job) for job in table.jobs]
        self._held = [0] * len(cells.keys)
        for cell, count in (held for warm in self._warm for held in warm.items()):
            self._held[cell] += count
        self._seen: tuple[tuple[int, int], Offers] | None = None
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
        offers = self._offers(share)
        usable = list(offers)
        if not usable:
            return False
        acceptable = [offer for offer in usable if offer.payoff > 0] if priced else usable
        needed = share.needed
        last = [offer for offer in acceptable if offer.joint_rate >= needed] if self._crowded else []
        if last and not share.enough():
            cheapest = min(self._type_prices[offer.kind.type] for offer in last)
            acceptable = [offer for offer in last if self._type_prices[offer.kind.type] <= cheapest * (1 + TIE)]
        elif priced:
            acceptable = [o for o in acceptable if share.bargain[o.kind.type] >= share.asked[o.kind.type]]
        if not acceptable:
            share.refused = True
            return False
        best = best_of(acceptable, share.bargain)
        offers.take(best, filled=not best.payoff > 0 or not priced)
        self._seen = (id(share), self._occupancy.devices_free), offers
        return True

    def _offers(self, share: Share) -> Offers:
        """What is free for the job; kept until another job takes something."""
        state = id(share), self._occupancy.devices_free
        if self._seen is None or self._seen[0] != state:
            self._seen = state, Offers(share, self._types, self._occupancy, self._held)
        return self._seen[1]

    def _served(self, row: int) -> bool:
        return row in self.shares and bool(self.shares[row].grants)

    def _share(self, row: int) -> Share:
        if row not in self.shares:
            self.shares[row] = self._new_share(row)
        return self.shares[row]

    def _new_share(self, row: int) -> Share:
        job = self._table.jobs[row]
        known = [job.throughput[t].confidence for t in self._table.types if t in job.throughput]
        return Share(
            job=job,
            stake=self._table.stake_of(row),
            utility=utility_of(self._table.kinds[self._table.kind[row]]),
            rates=self._rates[row].tolist(),
            bargain=self._bargain[row].tolist(),
            asked=self._asked[row].tolist(),
            warm=dict(self._warm[row]),
            round_s=self._round_s,
            confidence=min(known, default=0.0),
            may_end_early=self._may_end_early,
        )


def _bargains(rates: Floats, type_prices: Floats) -> Floats:
    """Steps per price of every job on every type, relative to its best type."""
    per_price = rates / type_prices
    best = per_price.max(axis=1, keepdims=True, initial=0.0)
    bargains = np.zeros_like(rates)
    np.divide(per_price, best, out=bargains, where=best > 0)
    return bargains


def _asked(bargains: Floats, line: Line, *, crowded: bool) -> Floats:
    """How good a bargain a type must be to a job for it to take it from those behind it: ``NEAR`` at most.

    A second of a device that a job gives to one behind it delays all from itself on by its bargain, and hastens all
    from the other on by the other's: so it is worth ``bargain · n`` to a job with which, or after which, n jobs end.
    With more jobs than devices, ``bargain^TASTE / work``.
    """
    if not bargains.size:
        return np.zeros_like(bargains)
    rows = np.array(line.order, dtype=np.int64)
    taste = TASTE if crowded else 1.0
    weight = (
        1.0 / np.clip(line.work[rows], LEAST_WORK, MOST_WORK) if crowded else np.arange(len(rows), 0, -1) + line.last
    )
    index = bargains[rows] ** taste * weight[:, None]
    behind = np.maximum.accumulate(index[::-1], axis=0)[::-1]
    behind = np.vstack([behind[1:], np.zeros((1, index.shape[1]))])
    asked = np.empty_like(bargains)
    asked[rows] = (behind / weight[:, None]) ** (1.0 / taste)
    return np.asarray(np.minimum(asked, NEAR), dtype=np.float64)


def _worth_forking(table: JobTable, rates: Floats) -> Floats:
    """Drop cells where a fork would be slower than ``min_fork_share`` of the job's fastest possible fork."""
    if rates.size == 0:
        return rates
    least = np.array([job.min_fork_share for job in table.jobs])[:, None] * rates.max(axis=1, keepdims=True)
    return np.where(rates >= least, rates, 0.0)
