"""The least mean completion time of gangs: the time-indexed programme, with prices of devices that change over time.

A job of width W cannot do its work faster than ``alone_s``, so it completes at least half of that after the mean time
of its work. The programme spreads the work over intervals: the parts of a job add up to one, and no type's devices
and no job's width are exceeded. Solved on a coarse grid it gives prices of each type over time and a worth of each
job. For *any* prices and worths the sum of what every job makes best of them, less what the devices cost, is a lower
bound; it is evaluated on a fine grid, with every piece of work counted at the beginning of its interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from hadare.model.errors import Broken
from hadare.scheduling.bounds.fluid import shortest_duration
from hadare.scheduling.bounds.workload import Workload
from hadare.scheduling.eligibility import Floats

INTERVALS = 40
POINTS = 20_000


@dataclass(frozen=True, slots=True)
class _Duals:
    """``prices[r, t]`` of a device around ``times``; ``worth[j]``, in seconds: what the programme gives for job j."""

    times: Floats
    prices: Floats
    worth: Floats


def indexed_mean_jct(work: Workload, intervals: int = INTERVALS, points: int = POINTS) -> float:
    """Mean completion time in seconds from arrival, at least; for gangs that may mix types, at balanced rates.

    More ``intervals`` find better prices, more ``points`` lose less in evaluating them; any number is valid.
    """
    if not work.steps.size:
        return 0.0
    first = float(work.arrival_s.min())
    work = Workload(work.rates, work.steps, work.devices, work.arrival_s - first, work.width)
    horizon = 1.25 * shortest_duration(work)
    duals = _solve(work, _grid(work, horizon, intervals))
    best = float(work.alone_s.mean())
    return max(best, _evaluate(work, duals, horizon, points))


def _grid(work: Workload, horizon: float, intervals: int) -> Floats:
    """Interval edges: growing if all begin together, even if they arrive over time; then room for whatever is left."""
    if work.arrival_s.max() > 0:
        edges = np.linspace(0.0, horizon, intervals + 1)
    else:
        edges = np.concatenate([[0.0], np.geomspace(horizon / 800, horizon, intervals)])
    return np.append(edges, 3 * horizon)


def _width(work: Workload) -> Floats:
    return np.full(len(work.steps), work.devices.sum()) if work.width is None else work.width


def _solve(work: Workload, edges: Floats) -> _Duals:
    """The programme on a coarse grid, work counted at the middle of its interval. Times are scaled to the horizon."""
    unit = float(edges[-2])
    length, middle = np.diff(edges) / unit, (edges[1:] + edges[:-1]) / (2 * unit)
    jobs, kinds = np.nonzero(np.isfinite(work.device_s))
    pair, slot = (grid.ravel() for grid in np.meshgrid(np.arange(jobs.size), np.arange(length.size), indexing="ij"))
    begun = edges[1:][slot] > work.arrival_s[jobs[pair]]
    pair, slot = pair[begun], slot[begun]
    job, kind, part = jobs[pair], kinds[pair], np.arange(pair.size)
    need = work.device_s[job, kind] / unit
    count, types, slots = len(work.steps), len(work.devices), length.size
    limits = np.concatenate([np.outer(work.devices, length).ravel(), np.outer(_width(work), length).ravel()])
    found = linprog(
        np.maximum(middle[slot] - work.arrival_s[job] / unit, 0.0),
        A_ub=csr_array(
            (
                np.concatenate([need, need]),
                (np.concatenate([kind * slots + slot, (types + job) * slots + slot]), np.concatenate([part, part])),
            ),
            shape=(limits.size, part.size),
        ),
        b_ub=limits,
        A_eq=csr_array((np.ones(part.size), (job, part)), shape=(count, part.size)),
        b_eq=np.ones(count),
        method="highs-ipm",
    )
    if found.status != 0:
        raise Broken(f"the time-indexed programme was not solved: {found.message}")
    prices = np.maximum(-np.asarray(found.ineqlin.marginals[: types * slots]).reshape(types, slots), 0.0)
    return _Duals(middle * unit, prices, np.asarray(found.eqlin.marginals) * unit)


def _evaluate(work: Workload, duals: _Duals, horizon: float, points: int) -> float:
    """The bound that the prices and worths prove."""
    step = horizon / points
    latest = float((duals.worth + work.arrival_s).max())
    begin = np.arange(int(np.ceil(max(horizon, latest) / step)) + 1) * step
    prices = np.array([np.interp(begin + step / 2, duals.times, row, right=0.0) for row in duals.prices])
    total = -float(work.devices @ prices.sum(axis=1)) * step
    need, width, alone = work.device_s, _width(work), work.alone_s
    for row in range(len(work.steps)):
        arrival, worth = float(work.arrival_s[row]), float(duals.worth[row])
        since = slice(int(arrival / step), int((arrival + max(worth, 0.0)) / step) + 2)
        late = np.maximum(begin[since] - arrival, 0.0) - worth
        gain = np.zeros_like(late)
        for kind in np.flatnonzero(np.isfinite(need[row])):
            np.minimum(gain, prices[kind, since] + late / need[row, kind], out=gain)
        total += worth + float(width[row]) * float(gain.sum()) * step + float(alone[row]) / 2
    return total / len(work.steps)
