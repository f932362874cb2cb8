"""The least total time duration: the fluid programme, in which work is divided over devices without end."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from hadare.model.errors import Broken
from hadare.scheduling.bounds.workload import Workload

MOST_STARTS = 64
"""Arrivals from which on the work is bounded; more would only sharpen the bound a little."""


def shortest_duration(work: Workload) -> float:
    """Seconds from the first arrival to the last finish, at least.

    ``min T : Σ_r y[j,r]·x[j,r] = s_j, Σ_j y[j,r] ≤ c_r·T``, and ``Σ_r y[j,r] ≤ W_j·T`` for jobs of bounded width. With
    arrivals: the work of whatever arrives from some time on is done after that time; the worst such time counts.
    """
    if not work.steps.size:
        return 0.0
    first = float(work.arrival_s.min())
    starts = np.unique(work.arrival_s)
    if starts.size > MOST_STARTS:
        starts = starts[np.linspace(0, starts.size - 1, MOST_STARTS).round().astype(int)]
    return max(float(at) - first + _duration(work.of(work.arrival_s >= at)) for at in starts)


def _duration(work: Workload) -> float:
    """The programme in device-seconds, over the (job, type) pairs that can run. The last variable is T."""
    need = work.device_s
    count, types = need.shape
    jobs, kinds = np.nonzero(np.isfinite(need))
    pair, last = np.arange(jobs.size), jobs.size
    seconds = need[jobs, kinds]
    unit = float(seconds.max(initial=0.0)) or 1.0
    # a variable is the part of the job that is done on the type, so every job's parts add up to 1
    rows = [(kinds, pair, seconds / unit), (np.arange(types), np.full(types, last), -work.devices)]
    if work.width is not None:
        rows += [(types + jobs, pair, seconds / unit), (types + np.arange(count), np.full(count, last), -work.width)]
    at, of, values = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    height = types + (0 if work.width is None else count)
    cost = np.zeros(last + 1)
    cost[last] = 1.0
    found = linprog(
        cost,
        A_ub=csr_array((values, (at, of)), shape=(height, last + 1)),
        b_ub=np.zeros(height),
        A_eq=csr_array((np.ones(last), (jobs, pair)), shape=(count, last + 1)),
        b_eq=np.ones(count),
        method="highs",
    )
    if found.status != 0:
        raise Broken(f"the fluid programme was not solved: {found.message}")
    return float(found.fun) * unit
