"""The snapshot as arrays: the cells that may be used in this round, the jobs that want them, and who may use which.

Only ready nodes count. Everything is sorted by id, so the order of the input never matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from hadare.model.devices import NodeState
from hadare.model.plans import JobView, NodeView
from hadare.scheduling.devices import canonical_type, spec_of
from hadare.scheduling.utility import DEFAULT, F, Stake, urgency_of, utility_names, utility_of

TIE = 1e-9
"""Relative difference below which two values are a tie, to be broken by id."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Cells:
    """The (node, type) cells of the ready nodes, sorted; ``capacity`` and ``type_of`` are aligned with ``keys``."""

    def __init__(self, nodes: Iterable[NodeView]) -> None:
        ready = sorted((n for n in nodes if n.state is NodeState.READY), key=lambda n: n.node)
        self.nodes = {n.node: n for n in ready}
        self.keys = [(n.node, t) for n in ready for t in sorted(n.devices) if n.devices[t] > 0]
        self.index = {key: i for i, key in enumerate(self.keys)}
        self.types = tuple(sorted({t for _, t in self.keys}))
        column = {t: r for r, t in enumerate(self.types)}
        self.type_of: Ints = np.array([column[t] for _, t in self.keys], dtype=np.int64)
        self.capacity: Ints = np.array([self.nodes[n].devices[t] for n, t in self.keys], dtype=np.int64)
        self.by_type: list[list[int]] = [[] for _ in self.types]
        nodes_cells: dict[str, list[int]] = {view.node: [] for view in ready}
        for cell, (node, device_type) in enumerate(self.keys):
            self.by_type[column[device_type]].append(cell)
            nodes_cells[node].append(cell)
        self.by_node = [group for group in nodes_cells.values() if group]
        self.of_type: Ints = np.bincount(self.type_of, weights=self.capacity, minlength=len(self.types)).astype(
            np.int64
        )
        self._masks: dict[object, Bools] = {}
        self._anything: Bools = np.ones(len(self.keys), dtype=np.bool_)

    def mask(self, job: JobView) -> Bools:
        """Which cells the job's constraints and exclusions leave it (its throughput is another matter)."""
        c = job.constraints
        if not (job.excluded or job.excluded_types or c.types or c.labels or c.min_memory_gb):
            return self._anything
        barred = (tuple(sorted(job.excluded)), tuple(sorted(job.excluded_types)))
        key = (c.types, c.min_memory_gb, tuple(sorted(c.labels.items())), barred)
        if key not in self._masks:
            self._masks[key] = np.array([not self.why_not(job, n, t) for n, t in self.keys], dtype=np.bool_)
        return self._masks[key]

    def why_not(self, job: JobView, node: str, device_type: str) -> str:
        """Why the job may not use this cell, in plain words; empty if it may."""
        wanted, view = job.constraints, self.nodes[node]
        if node in job.excluded:
            return job.excluded[node] or "excluded"
        if device_type in job.excluded_types:
            return f"{device_type} cannot run it: {job.excluded_types[device_type] or 'excluded'}"
        if wanted.types and not _among(device_type, wanted.types):
            return f"{device_type} is not among the job's types {', '.join(wanted.types)}"
        missing = [f"{k}={v}" for k, v in sorted(wanted.labels.items()) if view.labels.get(k) != v]
        if missing:
            return f"lacks the label {missing[0]}"
        memory = view.memory_gb.get(device_type, spec_of(device_type).memory_gb)
        if memory < wanted.min_memory_gb:
            return f"has {memory:g} GB a device, {wanted.min_memory_gb:g} are asked"
        return ""


def _among(device_type: str, types: Sequence[str]) -> bool:
    return device_type in types or canonical_type(device_type) in {canonical_type(t) for t in types}


@dataclass(frozen=True, slots=True)
class JobTable:
    """The jobs that can be placed, sorted by id, as arrays: one row a job, one column a type.

    ``rates`` are steps/s of one rank, 0 where the job cannot run. ``best`` is the fastest of a row. ``kind`` says which
    of the utilities named in ``kinds`` is the job's.
    """

    jobs: tuple[JobView, ...]
    types: tuple[str, ...]
    rates: Floats
    best: Floats
    steps: Floats
    gang: Floats
    restart_s: Floats
    stake: Stake[Floats]
    kind: Ints
    kinds: tuple[str, ...]

    def utilities(self, finish_s: Floats, rows: Ints | None = None) -> Floats:
        """Utility of every job (or of ``rows``) for a finish by (row) or (row, column), in seconds after arrival."""
        values = np.zeros_like(finish_s)
        rows = np.arange(len(self.jobs)) if rows is None else rows
        for number, name in enumerate(self.kinds):
            at = np.flatnonzero(self.kind[rows] == number)
            if at.size:
                values[at] = utility_of(name).value(_rows(self.stake, rows[at], finish_s.ndim), finish_s[at])
        return values

    def urgencies(self) -> Floats:
        """Every job's urgency: what its work left is divided by in the order of the queue."""
        values = np.zeros(len(self.jobs))
        for number, name in enumerate(self.kinds):
            at = np.flatnonzero(self.kind == number)
            values[at] = urgency_of(utility_of(name), _rows(self.stake, at, 1))
        return values

    def stake_rows(self, row: int) -> Stake[Floats]:
        """One job's stake as arrays of one element, to be spread over cells."""
        return _rows(self.stake, np.array([row]), 1)

    def stake_of(self, row: int) -> Stake[float]:
        """One job's stake, as plain numbers."""
        return _each(self.stake, lambda values: float(values[row]))


def in_order(keys: Floats, scale: Floats) -> list[int]:
    """Rows by their keys, the least first. Keys that differ by less than ``TIE`` of their scale are a tie: by row."""
    order = np.argsort(keys, kind="stable")
    with np.errstate(invalid="ignore"):
        apart = np.diff(keys[order]) > TIE * np.abs(scale[order][1:])
    group = np.concatenate([[0], np.cumsum(apart)])[: len(order)]
    return [int(row) for row in order[np.lexsort((order, group))]]


def cell_rates(cells: Cells, table: JobTable) -> Floats:
    """Steps/s of one rank of every job (row) in every cell (column); 0 where it may not or cannot run."""
    if not table.jobs or not cells.keys:
        return np.zeros((len(table.jobs), len(cells.keys)))
    masks = np.stack([cells.mask(job) for job in table.jobs])
    return np.where(masks, table.rates[:, cells.type_of], 0.0)


def warm_cells(cells: Cells, job: JobView) -> dict[int, int]:
    """How many devices of each cell the job's processes hold from the round before."""
    warm: dict[int, int] = {}
    for member in (member for gang in job.placed for member in gang):
        cell = cells.index.get((member.node, member.type))
        if cell is not None:
            warm[cell] = warm.get(cell, 0) + member.count
    return warm


def placeable(job: JobView) -> bool:
    """Whether the job wants devices in this round at all."""
    return not job.unready and job.steps_left > 0


def job_table(
    jobs: Iterable[JobView], types: Sequence[str], now_s: float, devices: int = 0, utility: str | None = None
) -> JobTable:
    """The placeable jobs as arrays. ``devices`` of the cluster, if known, say what a fair share of it is.

    ``utility`` stands in for what each job names.
    """
    rows = tuple(sorted((job for job in jobs if placeable(job)), key=lambda job: job.job_id))
    measured = [_rates(job, types) for job in rows]
    rates = np.array(measured, dtype=np.float64).reshape(len(rows), len(types))
    best = rates.max(axis=1, initial=0.0)
    gang = _column(job.gang for job in rows)
    steps = _column(job.steps_left for job in rows)
    # The ideal is measured on the best type that the job knows, there or not: utilities do not jump when nodes come.
    here = frozenset(types)
    ideal = _column(
        max(own if job.throughput.keys() <= here else _rates(job, tuple(job.throughput)), default=0.0)
        for job, own in zip(rows, measured, strict=True)
    )
    alone = gang * np.where(ideal > 0, ideal, 1.0)
    ideal_s = _column(job.total_steps for job in rows) / alone
    stake = Stake(
        weight=_column(job.priority for job in rows),
        gang=gang,
        ideal_s=ideal_s,
        age_s=np.maximum(0.0, now_s - _column(job.arrival_s for job in rows)),
        left_s=steps / alone,
        fair_s=ideal_s * max(1.0, float(gang.sum()) / max(devices, 1)) if devices else ideal_s,
        deadline_s=_column(inf if job.deadline_s is None else job.deadline_s for job in rows),
        end_s=_end(rates, steps, steps / alone, devices),
    )
    # Admission refuses names that nobody knows; one that only this process lacks must not stop the round.
    known = frozenset(utility_names())
    names = [name if (name := utility or job.utility) in known else DEFAULT for job in rows]
    kinds = tuple(sorted(set(names)))
    return JobTable(
        jobs=rows,
        types=tuple(types),
        rates=rates,
        best=best,
        steps=steps,
        gang=gang,
        restart_s=_column(job.restart_cost_s for job in rows),
        stake=stake,
        kind=np.array([kinds.index(name) for name in names], dtype=np.int64),
        kinds=kinds,
    )


def _end(rates: Floats, steps: Floats, left_s: Floats, devices: int) -> Floats:
    """About when the last job ends: by the work of all, each at its mean rate over the types, or by the longest."""
    sums = rates.sum(axis=1)
    work = np.divide(steps * rates.shape[1], sums, out=np.zeros_like(sums), where=sums > 0).sum()
    return np.full_like(left_s, max(float(work) / max(devices, 1), float(left_s.max(initial=0.0))))


def _rates(job: JobView, types: Sequence[str]) -> list[float]:
    allowed, known = job.constraints.types, job.throughput
    return [
        _rate(known[t].steps_per_s) if t in known and (not allowed or t in allowed or _among(t, allowed)) else 0.0
        for t in types
    ]


def _rate(steps_per_s: float) -> float:
    return steps_per_s if isfinite(steps_per_s) and steps_per_s > 0 else 0.0


def _column(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=np.float64)


def _rows(stake: Stake[Floats], rows: Ints, ndim: int) -> Stake[Floats]:
    shape = (-1,) + (1,) * (ndim - 1)
    return _each(stake, lambda values: values[rows].reshape(shape))


def _each(stake: Stake[Floats], part: Callable[[Floats], F]) -> Stake[F]:
    return Stake(
        weight=part(stake.weight),
        gang=part(stake.gang),
        ideal_s=part(stake.ideal_s),
        age_s=part(stake.age_s),
        left_s=part(stake.left_s),
        fair_s=part(stake.fair_s),
        deadline_s=part(stake.deadline_s),
        end_s=part(stake.end_s),
    )
