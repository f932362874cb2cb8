"""What a device of each type is worth to those who compete for it: the dual prices of a round's relaxation.

``L(μ) = Σ_j max(0, max_g U_jg − Σ_r μ_r·n_gr) + Σ_r max_n (μ_r·n − P_r(n))`` is no less than V* for any prices μ ≥ 0 of
the types, n_gr the devices of a gang and P_r(n) the least price of n devices. Small L means good prices: at them each
job's best response is nearly the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hadare.scheduling.eligibility import Floats
from hadare.scheduling.holding import Market
from hadare.scheduling.placement import Candidate

SWEEPS = 4
STEPS = 60
BALANCED = 0.02
"""The work on each type is in balance with its devices up to so much: better prices are not looked for."""


def type_duals(worths: Floats, gang: Floats, market: Market) -> Floats:
    """Prices at which the jobs want about as many devices of each type as there are.

    ``worths`` of a gang of one type, by job and type. One type after the other: the price at which the jobs that would
    rather have it than anything else, the dearest bids first, use it up.
    """
    duals = np.zeros(worths.shape[1])
    for _ in range(SWEEPS):
        for r, capacity in enumerate(market.of_type):
            reduced = worths - gang[:, None] * duals
            reduced[:, r] = 0.0
            bids = (worths[:, r] - np.maximum(reduced.max(axis=1), 0.0)) / gang
            able = np.flatnonzero(bids > 0)
            order = able[np.argsort(-bids[able], kind="stable")]
            over = np.flatnonzero(np.cumsum(gang[order]) > capacity)
            scarce = float(bids[order[over[0]]]) if over.size else 0.0
            duals[r] = max(scarce, market.cheapest[r][1] - market.cheapest[r][0] if capacity else 0.0)
    return duals


class Relaxation:
    """L(μ) of some jobs' candidates, and its least value."""

    def __init__(self, queue: Sequence[Sequence[Candidate]], market: Market) -> None:
        self._starts = np.cumsum([0, *(len(c) + 1 for c in queue)])[:-1]
        types = len(market.of_type)
        self._worths = np.array([w for c in queue for w in (0.0, *(g.worth for g in c))])
        self._counts = np.array(
            [n for c in queue for n in ((0,) * types, *(g.counts for g in c))], dtype=np.float64
        ).reshape(len(self._worths), types)
        self._prices = [np.array(prices) for prices in market.cheapest]

    def value(self, duals: Floats) -> tuple[float, Floats]:
        """L and a subgradient."""
        reduced = self._worths - self._counts @ duals
        best = np.maximum.reduceat(reduced, self._starts)
        at = np.flatnonzero(reduced >= np.repeat(best, np.diff([*self._starts, len(reduced)])))
        chosen = at[np.searchsorted(at, self._starts)]
        value, slope = float(best.sum()), -self._counts[chosen].sum(axis=0)
        for r, prices in enumerate(self._prices):
            profit = duals[r] * np.arange(len(prices)) - prices
            n = int(profit.argmax())
            value += float(profit[n])
            slope[r] += n
        return value, slope

    def improve(self, duals: Floats, reached: float, steps: int = STEPS) -> tuple[Floats, float]:
        """Better prices by subgradient steps towards ``reached``, the value of a plan; and their L."""
        best, least = duals, np.inf
        at, length = duals, 1.0
        stalled = 0
        for _ in range(steps):
            value, slope = self.value(at)
            if value < least:
                best, least, stalled = at, value, 0
            else:
                stalled += 1
            norm = float(slope @ slope)
            if norm == 0.0 or value <= reached:
                break
            if stalled >= 5:
                length, stalled, at = length / 2, 0, best
                value, slope = self.value(at)
                norm = float(slope @ slope)
            at = np.maximum(0.0, at - length * (value - reached) / norm * slope)
        return best, least

    def hopes(self, duals: Floats) -> Floats:
        """Each job's best payoff at the prices."""
        reduced = self._worths - self._counts @ duals
        return np.maximum.reduceat(reduced, self._starts)


def completion_duals(seconds: Floats, devices: Sequence[int], start: Floats | None = None, steps: int = 24) -> Floats:
    """Prices of the types at which work in the order of least price-weighted work left bounds the mean completion time.

    ``seconds`` are s/x by job and type, infinite where a job cannot run. For prices p with Σ p·c = 1 a job's work is
    ``w_j = min_r p_r·s_j/x_jr`` on one machine of speed 1, and the mean completion time of least work first is no more
    than that of any plan (DESIGN §5). It is concave in p; multiplicative steps along a supergradient maximise it.
    """
    able = np.isfinite(seconds).any(axis=0)
    count = np.where(able, np.asarray(devices, dtype=np.float64), 0.0)
    usable = seconds[np.isfinite(seconds).any(axis=1)]
    if not usable.size or not count.any():
        return np.ones(seconds.shape[1])
    duals = _speeds(usable) if start is None else np.maximum(start, 1e-12)
    best, most = duals, -np.inf
    jobs = np.arange(len(usable))
    for step in range(steps):
        duals = duals / float(duals @ count)
        work = usable * duals
        types = work.argmin(axis=1)
        least = work[jobs, types]
        order = np.argsort(least, kind="stable")
        behind = np.empty(len(usable))
        behind[order] = np.arange(len(usable), 0, -1)
        value = float(least @ behind)
        if value > most:
            best, most = duals, value
        load = np.bincount(types, weights=behind * usable[jobs, types], minlength=len(count))
        slope = load - value * count
        if np.abs(slope).max() <= BALANCED * value * float(count.max()):
            break
        length = 0.6 / (1.0 + 0.25 * step)
        duals = duals * np.exp(np.clip(length * slope / np.maximum(value * count, 1e-300), -0.5, 0.5) * (count > 0))
    return np.where(able, best, best[able].min())


def _speeds(seconds: Floats) -> Floats:
    """Each type's speed relative to a job's best type, in the mean over the jobs: where the search starts."""
    relative = seconds.min(axis=1, keepdims=True) / seconds
    used = np.isfinite(seconds)
    return np.asarray(np.maximum(np.where(used, relative, 0.0).sum(axis=0) / np.maximum(used.sum(axis=0), 1), 1e-6))
