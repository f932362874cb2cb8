"""YARN's placement of a gang: on one node if it fits into one, else on whole idle nodes and one more for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Taken = tuple[tuple[int, int], ...]
"""Devices of a gang as (node, count)."""


class NodeGaps:
    """What is free on each of some nodes of one device type, in their order."""

    def __init__(self, sizes: Sequence[int], free: Sequence[int] | None = None) -> None:
        self._sizes = list(sizes)
        self._free = list(sizes if free is None else free)

    def find(self, gang: int) -> Taken:
        """Where a gang goes; empty if it does not fit.

        A gang that some node could hold alone waits for such a node. A larger one takes idle nodes whole, in order,
        and the rest on the first other node with room.
        """
        if gang <= max(self._sizes, default=0):
            return next((((node, gang),) for node, free in enumerate(self._free) if free >= gang), ())
        taken: list[tuple[int, int]] = []
        left = gang
        for node, (size, free) in enumerate(zip(self._sizes, self._free, strict=True)):
            if 0 < size <= left and free == size:
                taken.append((node, size))
                left -= size
        if left:
            used = {node for node, _ in taken}
            rest = next((n for n, free in enumerate(self._free) if n not in used and free >= left), None)
            if rest is None:
                return ()
            taken.append((rest, left))
        return tuple(taken)

    def take(self, taken: Taken) -> None:
        for node, count in taken:
            self._free[node] -= count

    def release(self, taken: Iterable[tuple[int, int]]) -> None:
        for node, count in taken:
            self._free[node] += count
