"""The least mean completion time: all devices pooled into one machine that works at the types' prices.

For any prices ``p ≥ 0``, job j needs at least ``w_j = min_r p_r·s_j/x[j,r]`` of a capacity of ``Σ_r p_r·c_r``, whatever
devices it gets. One machine of that capacity does best by serving the least remaining work first. Without arrivals the
value is a minimum of concave functions of p (one for every order of the jobs), so cutting planes find the best prices.
With arrivals it is not concave (a job that becomes longer may begin to stand in another's way), so the planes only
propose prices, and a search around the best of them follows. The bound holds for every price that is tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from scipy.optimize import linprog

from hadare.scheduling.bounds.workload import Workload
from hadare.scheduling.eligibility import Floats, Ints

MOST_CUTS = 200
SURE = 1e-5
"""Relative gap between the planes and the best prices at which the search ends."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """``mean_jct_s`` at ``prices`` (``Σ p·c = 1``). ``ceiling_s``: without later arrivals no prices give more."""

    mean_jct_s: float
    prices: Floats
    ceiling_s: float


def pooled_mean_jct(work: Workload, prices: Floats) -> float:
    """Mean completion time, in seconds, of the one machine at these prices: a lower bound for any schedule."""
    return _value(work, prices / float(prices @ work.devices))[0]


def best_pooled_mean_jct(work: Workload) -> Pooled:
    """The best bound over all prices."""
    if not work.steps.size:
        return Pooled(0.0, np.zeros_like(work.devices), 0.0)
    best, ceiling = _cutting_planes(work)
    if work.arrival_s.min() < work.arrival_s.max():
        best = _search_around(work, best)
    return Pooled(_value(work, best)[0], best, ceiling)


def _cutting_planes(work: Workload) -> tuple[Floats, float]:
    """Prices, and the height of the planes. Each new point lies half-way between the best one and the planes' peak."""
    types = len(work.devices)
    point = np.where(work.devices > 0, 1.0 / work.devices.sum(), 0.0)
    best, best_value, ceiling = point, 0.0, np.inf
    planes: list[tuple[Floats, float]] = []
    for _ in range(MOST_CUTS):
        value, slope = _value(work, point)
        if value > best_value:
            best, best_value = point, value
        planes.append((slope, value - float(slope @ point)))
        peak, ceiling = _peak(planes, work.devices, types)
        if ceiling - best_value <= SURE * ceiling:
            break
        point = (best + peak) / 2 if len(planes) % 4 else peak
    return best, ceiling


def _peak(planes: list[tuple[Floats, float]], devices: Floats, types: int) -> tuple[Floats, float]:
    """Where the lowest plane is highest, over ``p ≥ 0, Σ p·c = 1``."""
    unit = max(max(float(np.abs(slope).max()) for slope, _ in planes), 1e-300)
    found = linprog(
        np.append(np.zeros(types), -1.0),
        A_ub=np.array([np.append(-slope / unit, 1.0) for slope, _ in planes]),
        b_ub=np.array([level / unit for _, level in planes]),
        A_eq=np.append(devices, 0.0)[None, :],
        b_eq=[1.0],
        bounds=[(0, None if count > 0 else 0) for count in devices] + [(None, None)],
        method="highs-ds",
    )
    if found.status != 0:
        return np.where(devices > 0, 1.0 / devices.sum(), 0.0), np.inf
    return np.asarray(found.x[:types], dtype=np.float64), -float(found.fun) * unit


def _search_around(work: Workload, start: Floats) -> Floats:
    """Compass search: each price up and down by a factor that shrinks when nothing helps."""
    best, best_value = start, _value(work, start)[0]
    reach = 0.5
    while reach > 1e-4:
        tried = [
            _scaled(best, r, factor, work.devices) for r in range(len(best)) for factor in (1 + reach, 1 / (1 + reach))
        ]
        values = [_value(work, prices)[0] for prices in tried]
        top = int(np.argmax(values))
        if values[top] > best_value * (1 + 1e-9):
            best, best_value = tried[top], values[top]
        else:
            reach /= 2
    return best


def _scaled(prices: Floats, column: int, factor: float, devices: Floats) -> Floats:
    changed = np.maximum(prices, 1e-6 * prices.max())
    changed[column] *= factor
    return np.asarray(changed / float(changed @ devices), dtype=np.float64)


def _value(work: Workload, prices: Floats) -> tuple[float, Floats]:
    """Mean completion time at prices of ``Σ p·c = 1``, and its slope in them."""
    with np.errstate(invalid="ignore"):  # 0 · ∞: a free type on which the job cannot run
        costs = np.where(np.isfinite(work.device_s), prices * work.device_s, np.inf)
    cheapest = costs.argmin(axis=1)
    rows = np.arange(len(cheapest))
    need = costs[rows, cheapest]
    total, delayed = least_remaining_work(need, work.arrival_s)
    slope = np.bincount(cheapest, weights=delayed * work.device_s[rows, cheapest], minlength=len(prices))
    return total / len(need), slope / len(need)


def least_remaining_work(need_s: Floats, arrival_s: Floats) -> tuple[float, Ints]:
    """Sum of completion times (from arrival) on one machine that serves the least remaining work first, pre-emptively.

    Also, for each job, how many completions its completion carries along if it is a little later: its own, and that of
    whoever goes on when it ends, and so forth.
    """
    order = np.lexsort((need_s, arrival_s)).tolist()
    if not order:
        return 0.0, np.zeros(0, dtype=np.int64)
    need, arrival = need_s.tolist(), arrival_s.tolist()
    waiting: list[tuple[float, int]] = []
    finished: list[tuple[int, int]] = []
    """(job, the job that goes on when it ends, or -1), in the order of completion."""
    now, total, position = 0.0, 0.0, 0
    while waiting or position < len(order):
        if not waiting:
            now = max(now, arrival[order[position]])
        while position < len(order) and arrival[order[position]] <= now:
            heappush(waiting, (need[order[position]], order[position]))
            position += 1
        left, job = heappop(waiting)
        coming = arrival[order[position]] if position < len(order) else np.inf
        if now + left <= coming:
            now += left
            total += now - arrival[job]
            finished.append((job, waiting[0][1] if waiting else -1))
        else:
            heappush(waiting, (left - (coming - now), job))
            now = coming
    carried = np.ones(len(need), dtype=np.int64)
    for job, after in reversed(finished):
        carried[job] = 1 + (carried[after] if after >= 0 else 0)
    return total, carried
