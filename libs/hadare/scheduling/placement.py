"""Hadar's placement of one job: the gangs that it could get, and what each would be worth.

A gang has exactly W devices, of one type or mixed, packed on one node or spread over several (which costs the job its
``spread_factor``), or where it ran before (which saves it the restart). What a gang is worth depends on how many
devices of each type it has and on whether it is packed or moved, not on which nodes it is on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np

from hadare.scheduling.eligibility import TIE, Bools, Cells, Floats, Ints, JobTable, warm_cells
from hadare.scheduling.holding import Counts, Devices, Holding

MOST_COMPOSITIONS = 300
"""Up to here all ways to make W of the types are candidates; beyond, those of one and two types and a few more."""

LEAST_SPREAD = 1e-6

STAY = 1e-7
"""Of gangs that are worth about the same a job keeps the one that it has."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A gang by its devices of each type, and what it is worth to its job.

    ``places``: it must be on one of these; none means anywhere. ``among``: anywhere among these cells.
    """

    worth: float
    counts: Counts
    places: tuple[Devices, ...] = ()
    among: tuple[int, ...] = ()


def gang_rate(rates: Sequence[float], *, lockstep: bool = False, efficiency: float = 1.0) -> float:
    """Steps/s of a gang from its ranks' rates.

    Balanced (batches sized to each rank's speed): ``ε · Σ x``. Lockstep with equal batches: ``W · min x``.
    """
    return len(rates) * min(rates) if lockstep else efficiency * sum(rates)


def rounded(value: float) -> float:
    """Nine significant digits: what differs by less is a tie."""
    return float(f"{value:.8e}")


def compositions(want: int, most: Sequence[int]) -> Iterator[Counts]:
    """All ways to make ``want`` of types of which there are ``most``, in lexical order."""
    if len(most) == 1:
        if want <= most[0]:
            yield (want,)
        return
    for first in range(min(want, most[0]) + 1):
        for rest in compositions(want - first, most[1:]):
            yield (first, *rest)


@lru_cache(maxsize=512)
def _mixes(want: int, most: Counts, limit: int) -> Ints:
    """The compositions that are looked at, one a row."""
    if _how_many(want, len(most)) <= limit:
        return np.array(list(compositions(want, most)), dtype=np.int64).reshape(-1, len(most))
    found: set[Counts] = set()
    for first in range(len(most)):
        for second in range(len(most)):
            for share in {want, *(want * part // 8 for part in range(1, 8))} if second != first else ():
                found.add(_fill(want, most, (first, second), share))
    orders = permutations(range(len(most))) if len(most) <= 4 else (range(k, len(most)) for k in range(len(most)))
    for order in orders:
        found.add(_fill(want, most, (*order, *(r for r in range(len(most)) if r not in order)), want))
    return np.array(sorted(found - {()}), dtype=np.int64).reshape(-1, len(most))


def _how_many(want: int, types: int) -> int:
    ways = 1
    for k in range(1, types):
        ways = ways * (want + k) // k
    return ways


def _fill(want: int, most: Counts, order: Sequence[int], first: int) -> Counts:
    """``first`` of the first type, then as many as there are of the others in order; () if that is not enough."""
    left, counts = want, [0] * len(most)
    for position, r in enumerate(order):
        counts[r] = min(left, most[r], first) if position == 0 else min(left, most[r])
        left -= counts[r]
    return () if left else tuple(counts)


class Gangs:
    """The candidate gangs of the jobs of a round, and what a gang on given devices is worth."""

    def __init__(self, table: JobTable, cells: Cells) -> None:
        self._table = table
        self._cells = cells
        self._masks = [cells.mask(job) for job in table.jobs]
        known: dict[int, Ints] = {}
        for mask in self._masks:
            if id(mask) not in known:
                count = np.bincount(cells.type_of[mask], weights=cells.capacity[mask], minlength=len(cells.types))
                known[id(mask)] = count.astype(np.int64)
        shape = (len(table.jobs), len(cells.types))
        allowed = np.array([known[id(mask)] for mask in self._masks], dtype=np.int64).reshape(shape)
        self.open: Ints = np.where(table.rates > 0, allowed, 0)
        """Devices of each type that a job (row) could use on an empty cluster."""
        self.restricted: Bools = np.any((self.open > 0) & (self.open < cells.of_type), axis=1)
        self.rates: Floats = np.where(self.open > 0, table.rates, 0.0)
        self.lockstep = np.array([job.batching == "lockstep" for job in table.jobs], dtype=np.bool_)
        self.spread = np.array([max(job.spread_factor, LEAST_SPREAD) for job in table.jobs], dtype=np.float64)

    def worths(self, rows: Ints, gang_rates: Floats, restart_s: Floats) -> Floats:
        """Utilities of jobs (rows) that run at such rates (columns) from now on; 0 where a rate is 0."""
        able = gang_rates > 0
        left_s = self._table.steps[rows][:, None] / np.where(able, gang_rates, 1.0) + restart_s[:, None]
        finish_s = self._table.stake.age_s[rows][:, None] + left_s
        return np.where(able, self._table.utilities(finish_s, rows), 0.0)

    def rate(self, row: int, devices: Devices) -> float:
        """Steps/s of the gang on these devices, spread or packed."""
        x, keys, type_of = self.rates[row], self._cells.keys, self._cells.type_of
        ranks = [float(x[type_of[cell]]) for cell, count in devices for _ in range(count)]
        spread = float(self.spread[row]) if len({keys[cell][0] for cell, _ in devices}) > 1 else 1.0
        return gang_rate(ranks, lockstep=bool(self.lockstep[row])) * spread

    def worth(self, row: int, devices: Devices) -> float:
        """Rate → estimated finish → utility of the gang on these devices."""
        stays = devices == self.warm(row)
        restart_s = 0.0 if stays else self._table.jobs[row].restart_cost_s
        rate = np.array([[self.rate(row, devices)]])
        return float(self.worths(np.array([row]), rate, np.array([restart_s]))[0, 0])

    def marks(self) -> list[object]:
        """What tells nodes apart: which jobs may use them (by their masks), and each where a job has a process."""
        masks = list({id(mask): mask for mask in self._masks}.values())
        warm = {self._cells.keys[cell][0] for row in range(len(self._table.jobs)) for cell, _ in self.warm(row)}
        marks: list[object] = []
        for group in self._cells.by_node:
            node = self._cells.keys[group[0]][0]
            marks.append((node if node in warm else "", tuple(bool(mask[c]) for mask in masks for c in group)))
        return marks

    def warm(self, row: int) -> Devices:
        """Where the job's processes are."""
        return tuple(sorted(warm_cells(self._cells, self._table.jobs[row]).items()))

    def of_one_type(self) -> Floats:
        """What each job's gang (row) of each type (column) is worth, packed if a node has room; 0 if it cannot be."""
        gang = self._table.gang[:, None]
        widest = np.array([max(int(self._cells.capacity[c]) for c in group) for group in self._cells.by_type])
        loss = np.where((gang > 1) & (gang > widest), self.spread[:, None], 1.0)
        rates = np.where(self.open >= gang, self.rates * gang * loss, 0.0)
        return self.worths(np.arange(len(self._table.jobs)), rates, self._table.restart_s)

    def candidates(
        self, rows: Sequence[int], duals: Floats, most: int | None = None, *, every: bool = False
    ) -> dict[int, list[Candidate]]:
        """Gangs of the jobs, by row, best first at these prices of the types. ``most``: so many for a job.

        ``every``: all that are admissible, however many; otherwise some are left out if there are very many.
        """
        found: dict[int, list[Candidate]] = {row: [] for row in rows}
        by_size: dict[int, list[int]] = {}
        for row in rows:
            by_size.setdefault(int(self._table.gang[row]), []).append(row)
        for want, members in sorted(by_size.items()):
            mixes = _mixes(want, tuple(self._cells.of_type.tolist()), MOST_COMPOSITIONS if not every else 10**9)
            if mixes.size:
                self._anywhere(mixes, np.array(members, dtype=np.int64), duals, most, found)
        self._packed(rows, found)
        prices = duals.tolist()
        for row in rows:
            found[row].extend(self._staying(row))
            found[row].sort(key=lambda c: (-_reduced(c, prices), c.counts, c.places))
            if most is not None:
                del found[row][most:]
        return found

    def _anywhere(
        self, mixes: Ints, rows: Ints, duals: Floats, most: int | None, found: dict[int, list[Candidate]]
    ) -> None:
        """Gangs that may be on any nodes: spread, if they are of more than one device."""
        worths = self._worths_of(mixes, rows, np.where(self._table.gang[rows] > 1, self.spread[rows], 1.0))
        for i in np.flatnonzero(self.restricted[rows]).tolist():
            worths[i, (mixes > self.open[rows[i]]).any(axis=1)] = 0.0
        reduced = np.where(worths > 0, worths - mixes @ duals, -np.inf)
        keep = mixes.shape[0] if most is None else min(most, mixes.shape[0])
        order = np.argsort(-reduced, axis=1, kind="stable")[:, :keep]
        counts: list[Counts] = [tuple(mix) for mix in mixes.tolist()]
        for i, row in enumerate(rows.tolist()):
            among = tuple(np.flatnonzero(self._masks[row]).tolist()) if self.restricted[row] else ()
            found[row].extend(
                Candidate(worth=float(worths[i, k]), counts=counts[k], among=among)
                for k in order[i].tolist()
                if worths[i, k] > 0
            )

    def _worths_of(self, mixes: Ints, rows: Ints, factor: Floats) -> Floats:
        x = self.rates[rows]
        slowest = np.where(mixes[None] > 0, x[:, None, :], np.inf).min(axis=2)
        lockstep = np.where(self.lockstep[rows][:, None], slowest * mixes.sum(axis=1), x @ mixes.T)
        rates = np.where(slowest > 0, lockstep, 0.0) * factor[:, None]
        return self.worths(rows, rates, self._table.restart_s[rows])

    def _packed(self, rows: Sequence[int], found: dict[int, list[Candidate]]) -> None:
        """Gangs on one node, for jobs that lose by being spread."""
        alike: dict[tuple[int, int, bytes], list[int]] = {}
        for row in rows:
            if self._table.gang[row] > 1 and self.spread[row] < 1:
                key = (int(self._table.gang[row]), id(self._masks[row]), (self.rates[row] > 0).tobytes())
                alike.setdefault(key, []).append(row)
        for members in alike.values():
            places = self._places(members[0])
            if places:
                mixes = np.array(list(places), dtype=np.int64)
                worths = self._worths_of(mixes, np.array(members), np.ones(len(members)))
                for row, worth in zip(members, worths.tolist(), strict=True):
                    offers = zip(worth, places.items(), strict=True)
                    found[row].extend(Candidate(value, counts, at) for value, (counts, at) in offers)

    def _places(self, row: int) -> dict[Counts, tuple[Devices, ...]]:
        """Where on one node there is room for the job's gang on an empty cluster, by its devices of each type."""
        want, capacity, mask = int(self._table.gang[row]), self._cells.capacity, self._masks[row]
        able = mask & (self.rates[row] > 0)[self._cells.type_of]
        places: dict[Counts, list[Devices]] = {}
        for group in self._cells.by_node:
            usable = [c for c in group if able[c]]
            for mix in compositions(want, [int(capacity[c]) for c in usable]) if usable else ():
                devices = tuple((c, n) for c, n in zip(usable, mix, strict=True) if n)
                places.setdefault(self._counts(devices), []).append(devices)
        return {counts: tuple(at) for counts, at in places.items()}

    def _counts(self, devices: Devices) -> Counts:
        counts = [0] * len(self._cells.types)
        for cell, count in devices:
            counts[self._cells.type_of[cell]] += count
        return tuple(counts)

    def _staying(self, row: int) -> Iterator[Candidate]:
        """The gang that the job has, if it is a whole one and still there."""
        warm = self.warm(row)
        whole = sum(count for _, count in warm) == self._table.gang[row]
        if whole and all(
            self._masks[row][cell]
            and self.rates[row, self._cells.type_of[cell]] > 0
            and count <= self._cells.capacity[cell]
            for cell, count in warm
        ):
            yield Candidate(worth=self.worth(row, warm) * (1 + STAY), counts=self._counts(warm), places=(warm,))


def _reduced(candidate: Candidate, duals: Sequence[float]) -> float:
    """Worth less the dual prices of the devices, with ties made equal."""
    value = candidate.worth - sum([duals[r] * count for r, count in enumerate(candidate.counts) if count])
    return rounded(value) if abs(value) > TIE * candidate.worth else 0.0


def where(candidate: Candidate, holding: Holding, *, all_places: bool = False) -> list[Devices]:
    """Where the gang could go now: ``[()]`` for anywhere, ``[]`` if it does not fit. One of each kind of place."""
    if candidate.among:
        devices = _cheapest(candidate, holding)
        return [devices] if devices and holding.fits(candidate.counts, devices) else []
    if not candidate.places:
        return [()] if holding.fits(candidate.counts, ()) else []
    if not holding.fits(candidate.counts, ()):
        return []
    return _open_places(candidate.places, holding) if all_places else _tightest(candidate.places, holding)


def _open_places(places: Sequence[Devices], holding: Holding) -> list[Devices]:
    """One of each kind of place that has room."""
    fixed, market = holding.fixed, holding.market
    kinds: dict[tuple[tuple[int, ...], ...], Devices] = {}
    for devices in places:
        if all(fixed[cell] + n <= market.capacity[cell] for cell, n in devices):
            nodes = {market.node_of[cell] for cell, _ in devices}
            state = ((market.kind[node], *(fixed[c] for c in market.cells.by_node[node])) for node in sorted(nodes))
            kinds.setdefault((*state, tuple(n for _, n in devices)), devices)
    return [kinds[key] for key in sorted(kinds)]


def _tightest(places: Sequence[Devices], holding: Holding) -> list[Devices]:
    """The place that leaves the smallest gap, so that large gaps stay large."""
    fixed, capacity = holding.fixed, holding.market.capacity
    best: Devices | None = None
    least = 0
    for devices in places:
        gap = 0
        for cell, count in devices:
            room = capacity[cell] - fixed[cell] - count
            if room < 0:
                break
            gap += room
        else:
            if best is None or gap < least:
                best, least = devices, gap
                if gap == 0:
                    break
    return [] if best is None else [best]


def _cheapest(candidate: Candidate, holding: Holding) -> Devices:
    """The cheapest devices among the cells that the job may use."""
    market = holding.market
    taken: dict[int, int] = {}
    for r, count in enumerate(candidate.counts):
        cells = [cell for cell in candidate.among if market.type_of[cell] == r] if count else []
        steps = sorted(
            (market.marginal[cell][gone], gone, cell)
            for cell in cells
            for gone in range(holding.fixed[cell], market.capacity[cell])
        )[:count]
        if len(steps) < count:
            return ()
        for _, _, cell in steps:
            taken[cell] = taken.get(cell, 0) + 1
    return tuple(sorted(taken.items()))
