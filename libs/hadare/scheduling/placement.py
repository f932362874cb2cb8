"""Hadar's placement of one job: the gangs that it could get from what is free, and what each would pay off.

A gang has exactly W devices. Candidates: each type alone; mixes from each type downwards in speed; both packed on one
node or spread over several (which costs the job its ``spread_factor``); and where it ran before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp

from hadare.model.plans import JobView
from hadare.scheduling.eligibility import Cells, Floats, warm_cells
from hadare.scheduling.pricing import Curves
from hadare.scheduling.utility import Stake, utility_of

Free = tuple[int, ...]
"""Free devices of each cell, aligned with ``Cells.keys``."""

Devices = tuple[tuple[int, int], ...]
"""A gang's devices as (cell, count), sorted."""


LARGEST_SPLIT = 16
"""Gangs beyond this size are split between types by halves only."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A gang as (cell, count), its rate in steps/s, its marginal price per round, and its payoff."""

    devices: Devices
    rate: float
    price: float
    payoff: float


def gang_rate(rates: Sequence[float], *, lockstep: bool = False, efficiency: float = 1.0) -> float:
    """Steps/s of a gang from its ranks' rates.

    Balanced (batches sized to each rank's speed): ``ε · Σ x``. Lockstep with equal batches: ``W · min x``.
    """
    return len(rates) * min(rates) if lockstep else efficiency * sum(rates)


def rounded(value: float) -> float:
    """Nine significant digits: what differs by less is a tie."""
    return float(f"{value:.8e}")


def _gap(devices: Devices, free: Free) -> int:
    return sum(free[cell] - count for cell, count in devices)


class PriceSums:
    """Sums of marginal prices: what ``count`` devices of a cell cost when ``taken`` are gone."""

    def __init__(self, cells: Cells, curves: Curves) -> None:
        self.capacity: Free = tuple(int(c) for c in cells.capacity)
        self._marginal = [
            [float(lowest) * exp(float(step) * taken) for taken in range(capacity)]
            for lowest, step, capacity in zip(curves.u_min, curves.log_step, self.capacity, strict=True)
        ]
        self._sums = [[0.0, *accumulate(row)] for row in self._marginal]

    def of(self, cell: int, free: int, count: int) -> float:
        """Price per round of ``count`` devices of a cell that has ``free`` left."""
        taken = self.capacity[cell] - free
        return self._sums[cell][taken + count] - self._sums[cell][taken]

    def next(self, cell: int, free: int) -> float:
        """Marginal price of the next device of a cell that has ``free`` left."""
        return self._marginal[cell][self.capacity[cell] - free]


class Gangs:
    """The candidate gangs of one job. ``thorough``: all splits between types, for rounds of few jobs."""

    def __init__(
        self,
        job: JobView,
        stake: Stake[float],
        rates: Floats,
        cells: Cells,
        prices: PriceSums,
        *,
        thorough: bool = False,
    ) -> None:
        self._thorough = thorough and job.gang <= LARGEST_SPLIT
        self.job = job
        self._stake = stake
        self._utility = utility_of(job.utility)
        self._rates = [float(rate) for rate in rates]
        self._prices = prices
        self._keys = cells.keys
        self._warm = tuple(sorted(warm_cells(cells, job).items()))
        types = [usable for group in cells.by_type if (usable := self._usable(group))]
        self._types = sorted(types, key=lambda group: (-self._rates[group[0]], group[0]))
        self._mixed_nodes = [group for group in map(self._usable, cells.by_node) if len(group) > 1]

    def _usable(self, group: Sequence[int]) -> list[int]:
        return [cell for cell in group if self._rates[cell] > 0]

    def candidates(self, free: Free, round_s: float) -> list[Placement]:
        """Admissible gangs from what is free, best payoff first; then what leaves the smaller gaps; then by cells."""
        found = {devices for devices in self._admissible(free) if devices}
        placements = [self.priced(devices, free, round_s) for devices in found]
        return sorted(placements, key=lambda p: (-rounded(p.payoff), _gap(p.devices, free), p.devices))

    def priced(self, devices: Devices, free: Free, round_s: float) -> Placement:
        """Rate → estimated finish → utility → payoff at the marginal prices, for the rounds that it will hold them."""
        rate = gang_rate([self._rates[cell] for cell, count in devices for _ in range(count)])
        if len({self._keys[cell][0] for cell, _ in devices}) > 1:
            rate *= max(self.job.spread_factor, 1e-6)
        price = sum(self._prices.of(cell, free[cell], count) for cell, count in devices)
        left_s = self.job.steps_left / rate + (0.0 if devices == self._warm else self.job.restart_cost_s)
        worth = self._utility.value(self._stake, self._stake.age_s + left_s)
        return Placement(devices, rate, price, worth - max(1.0, left_s / round_s) * price)

    def _admissible(self, free: Free) -> list[Devices]:
        want = self.job.gang
        groups = [[cell for cell in group if free[cell] > 0] for group in self._types]
        found = [self._packed(group, free) for group in groups]
        if want > 1:
            found.extend(self._mixes(groups, free))
            found.extend(self._spread(self._by_speed(group), free) for group in self._mixed_nodes)
        if sum(count for _, count in self._warm) == want:
            fits = all(count <= free[cell] and self._rates[cell] > 0 for cell, count in self._warm)
            found.append(self._warm if fits else ())
        return found

    def _mixes(self, groups: Sequence[Sequence[int]], free: Free) -> Iterator[Devices]:
        """From each type downwards: as many as there are of the first, or fewer, so that others find fast ones too."""
        want = self.job.gang
        shares = range(1, want + 1) if self._thorough else ((want + 1) // 2, want)
        for start in range(len(groups)):
            for most in shares:
                yield self._spread(groups[start:], free, most)
                if self._thorough and start + 2 < len(groups):
                    yield self._spread([groups[start], *groups[start + 2 :]], free, most)

    def _packed(self, group: Sequence[int], free: Free) -> Devices:
        """All W on one cell: the cheapest, and of equal ones the fullest, so that large gaps stay large."""
        want = self.job.gang
        fitting = [cell for cell in group if free[cell] >= want]
        if not fitting:
            return ()
        best = min(fitting, key=lambda cell: (self._prices.of(cell, free[cell], want), free[cell], cell))
        return ((best, want),)

    def _spread(self, groups: Sequence[Sequence[int]], free: Free, most_of_first: int | None = None) -> Devices:
        """W devices from the groups in their order, each time the cheapest next device of the group."""
        want = self.job.gang
        left: dict[int, int] = {cell: free[cell] for group in groups for cell in group}
        taken: dict[int, int] = {}
        total = 0
        for position, group in enumerate(groups):
            limit = most_of_first if position == 0 and most_of_first is not None else want
            while total < limit and any(left[cell] for cell in group):
                open_cells = [cell for cell in group if left[cell] > 0]
                cell = min(open_cells, key=lambda cell: (self._prices.next(cell, left[cell]), cell))
                left[cell] -= 1
                taken[cell] = taken.get(cell, 0) + 1
                total += 1
        return tuple(sorted(taken.items())) if total == want else ()

    def _by_speed(self, group: Sequence[int]) -> list[list[int]]:
        return [[cell] for cell in sorted(group, key=lambda cell: (-self._rates[cell], cell))]
