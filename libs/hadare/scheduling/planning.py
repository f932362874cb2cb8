"""Hadar's plan of a round: a dynamic programme over the queue.

``V(i, free) = max(V(i+1, free), payoff(i, y) + V(i+1, free − y))``. States that differ only by which of several equal
nodes is used are one. The number of states kept after each job is bounded: small rounds are searched nearly whole,
large ones along a beam, ranked by the value so far plus what the rest of the queue could make of the free devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hadare.scheduling.eligibility import Cells
from hadare.scheduling.placement import Devices, Free, Gangs, Placement
from hadare.scheduling.pricing import Curves

STATE_BUDGET = 1024
"""States times jobs that a round may look at: what bounds the time of a decision."""
WIDEST, NARROWEST = 256, 4
WINDOW = 128
"""Jobs that the programme looks at; behind them each job takes its best response to what is left."""


@dataclass(frozen=True, slots=True)
class _State:
    value: float
    free: Free
    before: _State | None = None
    job: int = -1
    placement: Placement | None = None


class QueuePlanner:
    """Plans a queue of jobs on what is free. Deterministic; ties go to the earlier job and the smaller cells."""

    def __init__(self, cells: Cells, curves: Curves, round_s: float) -> None:
        self._cells = cells
        self._curves = curves
        self._round_s = round_s

    def plan(
        self, rows: Sequence[int], gangs_of: Callable[[int], Gangs], hopes: Sequence[float], free: Free
    ) -> dict[int, Placement]:
        """Placements by row. ``rows`` is the queue; ``hopes`` are guesses from above of its payoffs."""
        window = [gangs_of(row) for row in rows[:WINDOW]]
        width = max(NARROWEST, min(WIDEST, STATE_BUDGET // max(1, len(window))))
        nodes = _NodeClasses(self._cells, self._curves, window)
        hope = _Hope(window, hopes)
        states = [_State(value=0.0, free=free)]
        for position, gangs in enumerate(window):
            if not any(sum(state.free) for state in states):
                break
            states = self._step(states, position, gangs, nodes)
            if len(states) > width:
                states = sorted(states, key=lambda s: (-(s.value + hope.of(sum(s.free), position + 1)), s.free))[:width]
        best = min(states, key=lambda state: (-state.value, tuple(-count for count in state.free)))
        chosen = {rows[position]: placement for position, placement in _trace(best).items()}
        left = best.free
        for row in rows[WINDOW:]:
            if not sum(left):
                break
            answer = self.respond(gangs_of(row), left)
            if answer is not None and answer.payoff > 0:
                chosen[row] = answer
                left = without(left, answer.devices)
        return chosen

    def respond(self, gangs: Gangs, free: Free) -> Placement | None:
        """A job's best gang from what is free, whatever it pays off."""
        if gangs.job.gang > sum(free):
            return None
        return next(iter(gangs.candidates(free, self._round_s)), None)

    def _step(self, states: Sequence[_State], position: int, gangs: Gangs, nodes: _NodeClasses) -> list[_State]:
        reached: dict[object, _State] = {}
        for state in states:
            _keep(reached, nodes.key(state.free), state)
            if gangs.job.gang > sum(state.free):
                continue
            for placement in gangs.candidates(state.free, self._round_s):
                if placement.payoff <= 0:
                    break
                left = without(state.free, placement.devices)
                value = state.value + placement.payoff
                _keep(reached, nodes.key(left), _State(value, left, state, position, placement))
        return list(reached.values())


def without(free: Free, devices: Devices) -> Free:
    """What is free once the devices are taken."""
    left = list(free)
    for cell, count in devices:
        left[cell] -= count
    return tuple(left)


def _keep(reached: dict[object, _State], key: object, state: _State) -> None:
    known = reached.get(key)
    if known is None or (state.value, known.free) > (known.value, state.free):
        reached[key] = state


def _trace(state: _State) -> dict[int, Placement]:
    chosen: dict[int, Placement] = {}
    while state.before is not None:
        if state.placement is not None:
            chosen[state.job] = state.placement
        state = state.before
    return chosen


class _NodeClasses:
    """Which nodes are equal: same cells, same curves, and no job of the queue that treats them differently."""

    def __init__(self, cells: Cells, curves: Curves, queue: Sequence[Gangs]) -> None:
        told_apart = any(g.job.excluded or g.job.constraints.labels or g.job.constraints.min_memory_gb for g in queue)
        warm = {member.node for g in queue for gang in g.job.placed for member in gang}
        by_node: dict[str, list[int]] = {}
        for cell, (node, _) in enumerate(cells.keys):
            by_node.setdefault(node, []).append(cell)
        classes: dict[object, list[tuple[int, ...]]] = {}
        for node, members in sorted(by_node.items()):
            kind: object = node
            if not told_apart and node not in warm:
                kind = tuple(
                    (cells.keys[c][1], int(cells.capacity[c]), float(curves.u_min[c]), float(curves.u_max[c]))
                    for c in members
                )
            classes.setdefault(kind, []).append(tuple(members))
        self._classes = list(classes.values())

    def key(self, free: Free) -> object:
        return tuple(tuple(sorted(tuple(free[c] for c in members) for members in nodes)) for nodes in self._classes)


class _Hope:
    """What the rest of the queue could make of so many free devices: its best payoffs until they are used up."""

    def __init__(self, queue: Sequence[Gangs], hopes: Sequence[float]) -> None:
        gains = np.maximum(np.array(hopes[: len(queue)], dtype=np.float64), 0.0)
        self._devices = np.concatenate([[0.0], np.cumsum([g.job.gang for g in queue])])
        self._gains = np.concatenate([[0.0], np.cumsum(gains)])

    def of(self, free: int, position: int) -> float:
        reach = np.interp(self._devices[position] + free, self._devices, self._gains)
        return float(reach - self._gains[position])
