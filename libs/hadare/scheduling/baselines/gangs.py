"""Gangs of a baseline: W devices of one type, all or nothing, on whatever nodes have them. Rates are lockstep.

Baselines ask no price. The payoff of what they place is the utility of the finish that it leads to, for reading only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from zlib import crc32

import numpy as np

from hadare.model.plans import ForkPlan, Gang, GangMember
from hadare.scheduling.division import quotas, slack
from hadare.scheduling.eligibility import Bools, Cells, Ints, JobTable
from hadare.scheduling.utility import utility_of

LEAST_SPREAD = 1e-6

Devices = tuple[tuple[int, int], ...]
"""A gang's devices as (cell, count), sorted."""


def blind_order(seed: int, job_id: str, types: Sequence[str]) -> list[str]:
    """The types in an order that knows nothing of their speed: shuffled for each job, the same in every run."""
    return sorted(types, key=lambda name: (crc32(f"{seed}/{job_id}/{name}".encode()), name))


class TypedGangs:
    """One round's devices as a baseline hands them out. Rows and columns are those of the table."""

    def __init__(self, cells: Cells, table: JobTable) -> None:
        self.cells = cells
        self.table = table
        self.free: Ints = cells.capacity.copy()
        self.placed: dict[int, Devices] = {}
        self._masks: list[Bools] = [cells.mask(job) for job in table.jobs]
        self._columns: list[Ints] = [np.array(group, dtype=np.int64) for group in cells.by_type]
        self._kinds: dict[int, list[Ints]] = {}
        self._left = [int(cells.capacity[group].sum()) for group in self._columns]
        kinds = {id(mask): mask for mask in self._masks}
        rooms = {kind: self._rooms(mask, cells.capacity) for kind, mask in kinds.items()}
        most = np.array([rooms[id(mask)] for mask in self._masks]).reshape(len(table.jobs), len(cells.types))
        self.most_devices: Ints = np.where(table.rates > 0, most, 0).astype(np.int64)
        """Devices of each type that each job may use when the cluster is empty."""
        self.usable: Bools = np.asarray(self.most_devices >= table.gang[:, None], dtype=np.bool_)
        self.usable &= self.most_devices > 0

    def fits(self, row: int, column: int) -> bool:
        """Whether the job's gang could be made of what is free of the type."""
        gang = self.table.jobs[row].gang
        return gang <= self._left[column] and bool(self.usable[row, column]) and self.room(row, column) >= gang

    @property
    def nothing_left(self) -> bool:
        return not any(self._left)

    def room(self, row: int, column: int) -> int:
        """Free devices of a type that the job may use."""
        return int(self.free[self.allowed(row, column)].sum())

    def allowed(self, row: int, column: int) -> Ints:
        """Cells of a type that the job may use, in the order of the nodes."""
        mask = self._masks[row]
        if id(mask) not in self._kinds:
            self._kinds[id(mask)] = [group[mask[group]] for group in self._columns]
        return self._kinds[id(mask)][column]

    def free_again(self, row: int, gang: Gang) -> Devices:
        """The gang as devices of this round, if it is the job's size, of one type, allowed and free; else empty."""
        counts: dict[int, int] = {}
        for member in gang:
            cell = self.cells.index.get((member.node, member.type))
            if cell is None or not self._masks[row][cell]:
                return ()
            counts[cell] = counts.get(cell, 0) + member.count
        columns = {int(self.cells.type_of[cell]) for cell in counts}
        if len(columns) != 1 or sum(counts.values()) != self.table.jobs[row].gang:
            return ()
        if not self.usable[row, columns.pop()] or any(count > self.free[cell] for cell, count in counts.items()):
            return ()
        return tuple(sorted(counts.items()))

    def packed(self, row: int, column: int, spared: Ints | None = None) -> Devices:
        """On the one node where the smallest gap is left; else on the nodes with most free, so as few as can be.

        ``spared`` devices of each cell are left alone. Empty if the rest is not enough.
        """
        want = self.table.jobs[row].gang
        free = self.free if spared is None else np.maximum(self.free - spared, 0)
        cells = [(int(free[cell]), int(cell)) for cell in self.allowed(row, column) if free[cell] > 0]
        single = [(count, cell) for count, cell in cells if count >= want]
        if single:
            return ((min(single)[1], want),)
        taken: dict[int, int] = {}
        left = want
        for count, cell in sorted(cells, key=lambda gap: (-gap[0], gap[1])):
            taken[cell] = min(count, left)
            left -= taken[cell]
            if not left:
                return tuple(sorted(taken.items()))
        return ()

    def take(self, row: int, devices: Devices) -> None:
        self.hold(devices)
        self.placed[row] = devices

    def hold(self, devices: Devices) -> None:
        """Keep devices from everybody in this round."""
        for cell, count in devices:
            self.free[cell] -= count
            self._left[self.cells.type_of[cell]] -= count

    def forks(self, round_s: float) -> tuple[ForkPlan, ...]:
        """One fork for each gang that was taken."""
        return tuple(self._fork(row, devices, round_s) for row, devices in sorted(self.placed.items()))

    def _fork(self, row: int, devices: Devices, round_s: float) -> ForkPlan:
        job, stake = self.table.jobs[row], self.table.stake_of(row)
        column = int(self.cells.type_of[devices[0][0]])
        rate = job.gang * float(self.table.rates[row, column])  # all ranks are equally fast
        rate *= max(job.spread_factor, LEAST_SPREAD) if len(devices) > 1 else 1.0
        sureness = job.throughput[self.cells.types[column]].confidence
        (quota,) = quotas(job.steps_left, [rate * round_s], [slack(sureness)])
        return ForkPlan(
            job_id=job.job_id,
            fork=0,
            gang=self.gang(devices),
            quota=quota,
            rate=rate,
            price=0.0,
            payoff=float(utility_of(job.utility).value(stake, stake.age_s + job.steps_left / rate)),
        )

    def gang(self, devices: Devices) -> Gang:
        keys = self.cells.keys
        return tuple(GangMember(node=keys[cell][0], type=keys[cell][1], count=count) for cell, count in devices)

    def _rooms(self, mask: Bools, devices: Ints) -> list[int]:
        return [int(devices[group][mask[group]].sum()) for group in self._columns]


def held_before(gangs: Iterable[Gang]) -> Gang:
    """The gang of the round before, if the job had exactly one fork."""
    found = tuple(gangs)
    return found[0] if len(found) == 1 else ()
