"""Hadar's plan of a small round: the dynamic programme over the queue.

``V(i, taken) = max(V(i+1, taken), U(i, g) + V(i+1, taken + g))``, less the price of all that is taken at the end, so
that no plan depends on the order of the queue. States that differ only by which of several equal nodes is used are one,
and a state that cannot beat the best plan known, by the bound of the dual prices, is dropped. If no state had to be
dropped for want of time, the plan is the best there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hadare.scheduling.duals import Relaxation
from hadare.scheduling.eligibility import Floats
from hadare.scheduling.holding import Counts, Devices, Holding, Market
from hadare.scheduling.placement import Candidate, where

Choice = tuple[Candidate, Devices]
"""A gang, and the cells that it must have (none: any)."""


@dataclass(frozen=True, slots=True)
class _State:
    worth: float
    fixed: Counts
    totals: Counts
    before: _State | None = None
    job: int = -1
    choice: Choice | None = None


class Programme:
    """The dynamic programme. ``queue`` are candidates by job; ``base`` is what is taken before it starts.

    ``budget``: gangs tried in states, about, which bounds the time of a decision.
    """

    def __init__(self, queue: Sequence[Sequence[Candidate]], base: Holding, duals: Floats, budget: int) -> None:
        self._budget = budget
        self._market = base.market
        self._base = base
        self._queue = queue
        self._duals = duals
        self._holding = Holding(base.market)
        self._classes = _node_classes(base.market)
        hopes = Relaxation(queue, base.market).hopes(duals) if queue else np.zeros(0)
        self._hope: list[float] = [*np.cumsum(hopes[::-1])[::-1].tolist(), 0.0]
        self._rest = [_rest(float(duals[r]), prices) for r, prices in enumerate(base.market.cheapest)]

    def solve(self, known: float) -> tuple[dict[int, Choice] | None, bool]:
        """The best plan by job if it is better than ``known``; whether there is certainly none that is better."""
        exact, tried = True, 0
        layer = [_State(0.0, tuple(self._base.fixed), tuple(self._base.totals))]
        best, value = None, known
        for position, candidates in enumerate(self._queue):
            reached: dict[object, _State] = {}
            for state in layer:
                for after in self._options(state, position, candidates):
                    tried += 1
                    if self._bound(after, position + 1) > value + _margin(value):
                        self._keep(reached, after)
            layer = list(reached.values())
            width = max(16, (self._budget - tried) // (8 * (len(self._queue) - position)))
            if len(layer) > width:
                exact = False
                layer.sort(key=lambda s: (-self._bound(s, position + 1), s.totals, s.fixed))
                del layer[width:]
            for state in layer:
                if (reaches := state.worth - self._cost(state)) > value + _margin(value):
                    best, value = state, reaches
        return (None if best is None else _trace(best)), exact

    def _options(self, state: _State, position: int, candidates: Sequence[Candidate]) -> list[_State]:
        holding = self._holding
        holding.fixed, holding.totals = list(state.fixed), list(state.totals)
        found = [state]
        for candidate in candidates:
            for devices in where(candidate, holding, all_places=True):
                totals = tuple(a + b for a, b in zip(state.totals, candidate.counts, strict=True))
                fixed = state.fixed
                if devices:
                    taken = list(fixed)
                    for cell, count in devices:
                        taken[cell] += count
                    fixed = tuple(taken)
                worth = state.worth + candidate.worth
                found.append(_State(worth, fixed, totals, state, position, (candidate, devices)))
        return found

    def _bound(self, state: _State, position: int) -> float:
        """What no plan exceeds that goes on from here."""
        return state.worth + self._hope[position] + sum(self._rest[r][n] for r, n in enumerate(state.totals))

    def _cost(self, state: _State) -> float:
        self._holding.fixed, self._holding.totals = list(state.fixed), list(state.totals)
        return self._holding.cost()

    def _keep(self, reached: dict[object, _State], state: _State) -> None:
        key = (state.totals, self._kind(state.fixed))
        known = reached.get(key)
        if known is None or state.worth > known.worth + _margin(known.worth):
            reached[key] = state

    def _kind(self, fixed: Counts) -> object:
        if not any(fixed):
            return ()
        return tuple(tuple(sorted(tuple(fixed[c] for c in node) for node in nodes)) for nodes in self._classes)


def _margin(value: float) -> float:
    return 1e-9 * abs(value) + 1e-300


def _rest(dual: float, prices: Sequence[float]) -> list[float]:
    """By how many devices are taken: most that those which are left could earn at the dual, less what is paid."""
    profit = [dual * n - paid for n, paid in enumerate(prices)]
    best, rest = -np.inf, [0.0] * len(prices)
    for n in reversed(range(len(prices))):
        best = max(best, profit[n])
        rest[n] = best - dual * n
    return rest


def _node_classes(market: Market) -> list[list[list[int]]]:
    """Nodes that are equal but for their names."""
    classes: dict[int, list[list[int]]] = {}
    for kind, node in zip(market.kind, market.cells.by_node, strict=True):
        classes.setdefault(kind, []).append(node)
    return list(classes.values())


def _trace(state: _State) -> dict[int, Choice]:
    chosen: dict[int, Choice] = {}
    while state.before is not None:
        if state.choice is not None:
            chosen[state.job] = state.choice
        state = state.before
    return chosen
