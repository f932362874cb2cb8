"""Gavel's linear programmes over one-type gangs: what part of the time each job should spend on each device type.

Source: Gavel (OSDI'20), max-min fairness ("least attained service") and maximum sum of throughputs. The optimum is
unique, the shares are not. One row a job and one column a type; a rate of 0 means that the job cannot run there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from hadare.model.errors import Broken
from hadare.scheduling.eligibility import Floats


@dataclass(frozen=True, slots=True)
class Shares:
    """``value`` is the optimum; ``shares[i, j]`` the part of the time that job i spends on type j, between 0 and 1."""

    value: float
    shares: Floats


def max_min_shares(rates: Floats, gang: Floats, weight: Floats, devices: Floats) -> Shares:
    """``max min_i (W_i/w_i) · Σ_j T_ij X_ij / Σ_j T_ij Xprop_j`` over ``X ≥ 0, Σ_j X_ij ≤ 1, Σ_i W_i X_ij ≤ n_j``.

    ``Xprop_j = n_j / Σ n``: an equal share of everything. A larger weight brings a larger share. Jobs that can run on
    no type with devices get nothing and do not count. Pass rates of 1 for the programme that is blind to types.
    """
    empty = np.zeros_like(rates)
    proportional = rates @ (devices / devices.sum()) if devices.sum() > 0 else np.zeros(len(rates))
    rows = np.flatnonzero(proportional > 0)
    if not rows.size:
        return Shares(0.0, empty)
    gains = (gang[rows] / weight[rows] / proportional[rows])[:, None] * rates[rows]
    count, types = gains.shape
    share = np.arange(count * types)
    job, target = np.arange(count), count * types
    # rows: Σ_j gain·X − t ≥ 0 (negated), Σ_j X ≤ 1, Σ_i W·X ≤ n
    matrix = _sparse(
        (2 * count + types, target + 1),
        (share // types, share, -gains.ravel()),
        (job, np.full(count, target), np.ones(count)),
        (count + share // types, share, np.ones(share.size)),
        (2 * count + share % types, share, np.repeat(gang[rows], types)),
    )
    limits = np.concatenate([np.zeros(count), np.ones(count), devices])
    cost = np.zeros(target + 1)
    cost[target] = -1.0
    found = _minimise(cost, matrix, limits)
    empty[rows] = found[:target].reshape(count, types)
    return Shares(float(found[target]), empty)


def max_sum_shares(rates: Floats, gang: Floats, devices: Floats) -> Shares:
    """``max Σ_ij T_ij X_ij`` over the same set, T being the rates of whole gangs."""
    count, types = rates.shape
    if not rates.size:
        return Shares(0.0, np.zeros_like(rates))
    share = np.arange(count * types)
    matrix = _sparse(
        (count + types, share.size),
        (share // types, share, np.ones(share.size)),
        (count + share % types, share, np.repeat(gang, types)),
    )
    found = _minimise(-rates.ravel(), matrix, np.concatenate([np.ones(count), devices]))
    return Shares(float(rates.ravel() @ found), found.reshape(count, types))


def _sparse(shape: tuple[int, int], *blocks: tuple[Any, Any, Floats]) -> Any:
    rows, columns, values = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return csr_array((values, (rows, columns)), shape=shape)


def _minimise(cost: Floats, matrix: Any, limits: Floats) -> Floats:
    """HiGHS' interior point method with crossover: a third of the simplex method's time at 2,048 jobs."""
    for method, presolve in (("highs-ipm", False), ("highs-ds", True)):
        found = linprog(cost, A_ub=matrix, b_ub=limits, method=method, options={"presolve": presolve})
        if found.status == 0:
            return np.maximum(np.asarray(found.x, dtype=np.float64), 0.0)
    raise Broken(f"the linear programme of a round was not solved: {found.message}")
