"""What is taken while a plan is made, and what it costs.

Some gangs need given cells (they are packed, or where they ran before); of the others only the number of devices of
each type counts until the end, when they get the cheapest cells that are left. So a plan can be compared and changed
without deciding where every device is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from hadare.scheduling.eligibility import Cells
from hadare.scheduling.pricing import Curves

Devices = tuple[tuple[int, int], ...]
"""Devices as (cell, count), sorted by cell."""

Counts = tuple[int, ...]
"""Devices of each type."""


class Market:
    """The devices of a round and the price of every number of them. Nothing in it changes."""

    def __init__(self, cells: Cells, curves: Curves) -> None:
        self.cells = cells
        self.capacity = [int(c) for c in cells.capacity]
        self.type_of = [int(r) for r in cells.type_of]
        self.of_type = [int(c) for c in cells.of_type]
        self.marginal = curves.table(cells)
        self.sums = [[0.0, *accumulate(row)] for row in self.marginal]
        kinds: dict[tuple[float, ...], int] = {}
        self.curve = [kinds.setdefault(tuple(row), len(kinds)) for row in self.marginal]
        self.node_of = [0] * len(self.capacity)
        for number, node in enumerate(cells.by_node):
            for cell in node:
                self.node_of[cell] = number
        self.tell_apart([None] * len(cells.by_node))
        self._costs: dict[tuple[int, Counts, int], float] = {}
        self.cheapest = [self._from([0] * len(group), group) for group in cells.by_type]

    def tell_apart(self, marks: Sequence[object]) -> None:
        """Nodes of equal cells, curves and ``marks`` (one a node) are equal: which of them is used does not matter."""
        kinds: dict[object, int] = {}
        self.kind = [
            kinds.setdefault((tuple((self.type_of[c], self.curve[c]) for c in node), mark), len(kinds))
            for node, mark in zip(self.cells.by_node, marks, strict=True)
        ]

    def _from(self, fixed: Sequence[int], group: Sequence[int]) -> list[float]:
        """Prices of 0, 1, 2, … devices of a type, the cheapest first, when ``fixed`` are gone."""
        steps = [price for gone, cell in zip(fixed, group, strict=True) for price in self.marginal[cell][gone:]]
        return [0.0, *accumulate(sorted(steps))]

    def cost_of_type(self, r: int, fixed: Counts, total: int) -> float:
        """Least price of ``total`` devices of a type, ``fixed`` of them on given cells (in the order of the type's)."""
        gone = sum(fixed)
        if not gone:
            return self.cheapest[r][total]
        key = (r, fixed, total)
        if key not in self._costs:
            group = self.cells.by_type[r]
            paid = sum(self.sums[cell][count] for cell, count in zip(group, fixed, strict=True))
            self._costs[key] = paid + self._from(fixed, group)[total - gone]
        return self._costs[key]


class Holding:
    """Devices taken so far: on given cells (``fixed``) and in all, by type (``totals``)."""

    __slots__ = ("fixed", "market", "totals")

    def __init__(self, market: Market) -> None:
        self.market = market
        self.fixed = [0] * len(market.capacity)
        self.totals = [0] * len(market.of_type)

    def fits(self, counts: Counts, devices: Devices) -> bool:
        """Whether so many devices of each type are free, those of ``devices`` on these very cells."""
        market = self.market
        for r, count in enumerate(counts):
            if count and self.totals[r] + count > market.of_type[r]:
                return False
        return all(self.fixed[cell] + count <= market.capacity[cell] for cell, count in devices)

    def take(self, counts: Counts, devices: Devices, times: int = 1) -> None:
        """Take the devices, or give them back with ``times = -1``."""
        for r, count in enumerate(counts):
            self.totals[r] += times * count
        for cell, count in devices:
            self.fixed[cell] += times * count

    def price(self, counts: Counts, devices: Devices) -> float:
        """About what these devices would add to the cost: exact up to what packing does to the other gangs' cells."""
        market, extra = self.market, 0.0
        for r, count in enumerate(counts):
            if count:
                prices, taken = market.cheapest[r], self.totals[r]
                extra += prices[taken + count] - prices[taken]
        packed = 0.0
        for cell, count in devices:
            gone = self.fixed[cell]
            packed += market.sums[cell][gone + count] - market.sums[cell][gone]
        return max(extra, packed)

    def cost(self) -> float:
        """The exact price of all that is taken."""
        market = self.market
        return sum(
            market.cost_of_type(r, tuple(self.fixed[cell] for cell in group), self.totals[r])
            for r, group in enumerate(market.cells.by_type)
        )

    def free(self) -> int:
        return sum(self.market.of_type) - sum(self.totals)

    def settle(self) -> list[int]:
        """Devices of every cell that are not fixed and are taken: the cheapest of each type."""
        market = self.market
        loose = [0] * len(market.capacity)
        for r, group in enumerate(market.cells.by_type):
            count = self.totals[r] - sum(self.fixed[cell] for cell in group)
            steps = sorted(
                (market.marginal[cell][taken], taken, cell)
                for cell in group
                for taken in range(self.fixed[cell], market.capacity[cell])
            )
            for _, _, cell in steps[:count]:
                loose[cell] += 1
        return loose
