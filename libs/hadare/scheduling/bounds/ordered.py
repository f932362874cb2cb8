"""The least mean completion time of a few jobs that are all there at once and fork ideally: exact, not only a bound.

If it is known in which order the jobs end, the best schedule is a linear programme: the time between two ends is an
interval, in which each job that has not ended yet has some device-seconds of each type. The least over all orders is
what no schedule can beat, and an ideal one attains. The pooled bound is below it, since it lets a job that is alone
make as much of every device as of its best one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from hadare.model.errors import Rejected
from hadare.scheduling.bounds.workload import Workload

MOST_JOBS = 6
"""720 orders, each a programme of some milliseconds."""

Entry = tuple[int, int, float]
"""Row, column, value."""


def ordered_mean_jct(work: Workload) -> float:
    """Seconds. Raises ``Rejected`` (400) for more than ``MOST_JOBS`` jobs, later arrivals, or a bounded width."""
    jobs = len(work.steps)
    if jobs > MOST_JOBS or work.width is not None or (jobs and work.arrival_s.max() > 0):
        raise Rejected(400, f"only for up to {MOST_JOBS} jobs that are all there at once and use any number of devices")
    if not jobs:
        return 0.0
    return min(mean_jct_in(order, work) for order in permutations(range(jobs)))


def mean_jct_in(order: Sequence[int], work: Workload) -> float:
    """The least mean completion time, in seconds, of jobs that end in this order."""
    jobs, types = len(order), len(work.devices)
    cells = list(_cells(order, work))
    # columns: the lengths of the intervals, then the device-seconds of (interval, place in the order, type)
    limits: list[Entry] = [(k * types + r, k, -float(work.devices[r])) for k in range(jobs) for r in range(types)]
    limits += [(k * types + r, jobs + n, 1.0) for n, (k, _, r) in enumerate(cells)]
    done = [
        (place, jobs + n, float(work.rates[order[place], r] / work.steps[order[place]]))
        for n, (_, place, r) in enumerate(cells)
    ]
    columns = jobs + len(cells)
    found = linprog(
        np.concatenate([np.arange(jobs, 0, -1.0), np.zeros(len(cells))]),
        A_ub=_matrix(limits, jobs * types, columns),
        b_ub=np.zeros(jobs * types),
        A_eq=_matrix(done, jobs, columns),
        b_eq=np.ones(jobs),
        method="highs-ds",
    )
    if found.status != 0:
        raise RuntimeError(f"no optimum for the order {tuple(order)}: {found.message}")
    return float(found.fun) / jobs


def _cells(order: Sequence[int], work: Workload) -> Iterator[tuple[int, int, int]]:
    """(interval, place, type) in which a job could work: until it has ended, on types that it can use."""
    for k in range(len(order)):
        for place in range(k, len(order)):
            for r in np.flatnonzero(work.rates[order[place]] > 0).tolist():
                yield k, place, r


def _matrix(entries: Sequence[Entry], rows: int, columns: int) -> coo_matrix:
    at = [(row, column) for row, column, _ in entries]
    return coo_matrix(([value for *_, value in entries], tuple(zip(*at, strict=True))), shape=(rows, columns))
