"""Prices: the exponential curve of every cell (node, type) for the jobs that are active, and what a taken device costs.

``k(γ) = Umin · (Umax/Umin)^(γ/c)`` in utility per device-round (DESIGN §5; the paper's dual price). A placement pays
the marginal price of each device that it takes, for every round that it will hold it.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, exp

import numpy as np

from hadare.model.plans import JobView, NodeView, PriceBook, PriceCurve
from hadare.scheduling.eligibility import Cells, Floats, Ints, JobTable, job_table

RESTING_PRICE = 1e-6
"""Flat price of a cell that nobody wants: low enough that whoever comes next gets in."""

LOWEST_PRICE = 1e-15


def price_book(
    round: int,  # noqa: A002 - the field's word
    nodes: Iterable[NodeView],
    jobs: Iterable[JobView],
    round_s: float,
    horizon: int | None = None,
    now_s: float = 0.0,
) -> PriceBook:
    """The curves of a round for the jobs that can be placed, frozen while it is planned.

    ``horizon`` is T, in rounds, by which every job is taken to have finished; without it, the time that all jobs
    would take one after another, each on its slowest type.
    """
    cells = Cells(nodes)
    table = job_table(jobs, cells.types, now_s, int(cells.capacity.sum()))
    lowest, highest = _bounds(table, int(cells.capacity.sum()), round_s, horizon)
    return PriceBook(
        round=round,
        curves=tuple(
            PriceCurve(
                node=node,
                type=device_type,
                capacity=int(cells.capacity[i]),
                u_min=float(lowest[cells.type_of[i]]),
                u_max=float(highest[cells.type_of[i]]),
            )
            for i, (node, device_type) in enumerate(cells.keys)
        ),
    )


def _bounds(table: JobTable, devices: int, round_s: float, horizon: int | None) -> tuple[Floats, Floats]:
    """(Umin, Umax) by type.

    Umax[r]: the most utility per device-round that a job could make of type r (its gang on r, from now on).
    Umin: half of min_j U_j(d^max) / max(device-rounds of j, 2·T·Σc), so that an empty cell lets any job in; scaled
    down for the lesser types by sqrt(Umax[r] / max Umax), so that prices tell the types apart when all are empty.
    """
    resting = np.full(len(table.types), RESTING_PRICE)
    able = table.rates > 0
    rows = able.any(axis=1)
    if devices == 0 or not rows.any():
        return resting, resting
    rates = np.where(able, table.rates, np.inf)
    alone_s = table.steps[:, None] / rates
    device_rounds = np.maximum(alone_s / round_s, table.gang[:, None])
    age = table.stake.age_s
    # A type that the job cannot use counts as never finishing in time: its utility per device-round is no candidate.
    finish = age[:, None] + np.maximum(alone_s / table.gang[:, None], 1e-9)
    worth = np.where(able, table.utilities(finish) / device_rounds, 0.0).max(axis=0)
    slowest_s = np.where(able, alone_s, 0.0).max(axis=1)
    most_rounds = np.maximum(slowest_s / round_s, table.gang)
    rounds = horizon if horizon is not None else ceil(float(most_rounds[rows].sum()) / devices) + 1
    last_finish = age + np.maximum(rounds * round_s, slowest_s) + 1e-9
    per_round = table.utilities(last_finish) / np.maximum(most_rounds, 2.0 * rounds * devices)
    floor = max(0.5 * float(per_round[rows].min()), LOWEST_PRICE)
    lowest = np.maximum(floor * np.sqrt(worth / max(float(worth.max()), LOWEST_PRICE)), LOWEST_PRICE)
    return np.where(worth > 0, lowest, resting), np.where(worth > 0, np.maximum(worth, lowest), resting)


class Curves:
    """The book's curves for the cells of a snapshot. A cell that the book lacks gets its type's usual curve."""

    def __init__(self, cells: Cells, book: PriceBook) -> None:
        known = {(curve.node, curve.type): curve for curve in book.curves}
        found = [known.get(key) or _usual(book, key[1]) for key in cells.keys]
        self.u_min: Floats = np.array([c.u_min if c else RESTING_PRICE for c in found], dtype=np.float64)
        u_max = np.array([c.u_max if c else RESTING_PRICE for c in found], dtype=np.float64)
        self.u_max: Floats = np.maximum(u_max, self.u_min)
        # A curve quoted for more devices than are left would end below Umax: scarcity is judged by what is there.
        self.log_step: Floats = np.log(self.u_max / self.u_min) / np.maximum(cells.capacity, 1)

    def marginal(self, taken: Ints) -> Floats:
        """Price of the next device of every cell when ``taken`` of its devices are gone."""
        return np.asarray(self.u_min * np.exp(self.log_step * taken), dtype=np.float64)

    def table(self, cells: Cells) -> list[list[float]]:
        """Marginal prices of every cell's devices, in the order in which they are taken."""
        known: dict[tuple[float, float, int], list[float]] = {}
        return [
            known.setdefault((low, step, count), [low * exp(step * taken) for taken in range(count)])
            for low, step, count in zip(
                self.u_min.tolist(), self.log_step.tolist(), cells.capacity.tolist(), strict=True
            )
        ]

    def reserve(self, cells: Cells) -> Floats:
        """One price for each type, k(0) in the mean of its cells: what a device-round is worth when all is empty."""
        count = np.maximum(np.bincount(cells.type_of, minlength=len(cells.types)), 1)
        sums = np.bincount(cells.type_of, weights=self.u_min, minlength=len(cells.types))
        return np.asarray(sums / count, dtype=np.float64)


def _usual(book: PriceBook, device_type: str) -> PriceCurve | None:
    return next((curve for curve in book.curves if curve.type == device_type), None)


class Occupancy:
    """How much of every cell is taken while a plan is made; ``price`` is that of its next device."""

    def __init__(self, cells: Cells, curves: Curves) -> None:
        self.cells = cells
        self.taken = [0] * len(cells.keys)
        self.free: list[int] = cells.capacity.tolist()
        self._u_min: list[float] = curves.u_min.tolist()
        self._log_step: list[float] = curves.log_step.tolist()
        self.price: list[float] = list(self._u_min)
        self.devices_free = sum(self.free)

    def take(self, cell: int) -> float:
        """Take one device of a cell and return its marginal price."""
        if self.free[cell] <= 0:
            raise ValueError(f"cell {self.cells.keys[cell]} has no free device")
        paid = self.price[cell]
        self.free[cell] -= 1
        self.taken[cell] += 1
        self.devices_free -= 1
        self.price[cell] = self._u_min[cell] * exp(self._log_step[cell] * self.taken[cell])
        return paid
