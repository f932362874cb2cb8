"""The trace of a round: one root span from its prices to its end, a child a step, a link to every job it placed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from hadare.model.rounds import NodeLeases
from hadare.runtime.telemetry import Root, continued, span


class RoundTrace:
    """Holds the root spans of the rounds that are under way; the steps, in tasks of their own, are their children.

    There may be two: the next round is priced and planned before the last one has ended.
    """

    def __init__(self) -> None:
        self._roots: dict[int, Root] = {}

    def begin(self, round_number: int) -> None:
        if round_number not in self._roots:
            self._roots[round_number] = Root("round", {"hadare.round": round_number})

    def end(self, round_number: int) -> None:
        """Of this round, and of those before it: an order to end may have been lost with an earlier life."""
        for number in [number for number in self._roots if number <= round_number]:
            self._roots.pop(number).end()

    def end_all(self) -> None:
        self.end(max(self._roots, default=0))

    def current(self) -> AbstractContextManager[None]:
        """What is done in the block belongs to the oldest round that is under way."""
        return continued(self._parent(min(self._roots, default=0)))

    def step(self, name: str, round_number: int, **data: int) -> AbstractContextManager[object]:
        attributes = {f"hadare.{key}": value for key, value in data.items()}
        parent = self._parent(round_number)
        return span(name, parent=parent, attributes={"hadare.round": round_number, **attributes})

    def place(self, round_number: int, leases: Iterable[NodeLeases]) -> None:
        """A span in every placed job's own trace, linked to the round's, and one in the round's linked to theirs."""
        jobs = {lease.key.job_id: lease.traceparent for node in leases for lease in node.leases}
        for job_id, parent in sorted(jobs.items()):
            attributes: dict[str, str | int] = {"hadare.job": job_id, "hadare.round": round_number}
            with span("place job", parent=parent, links=self.links(round_number), attributes=attributes):
                pass
        with span("dispatch", parent=self._parent(round_number), links=[parent for parent in jobs.values() if parent]):
            pass

    def links(self, round_number: int) -> Sequence[str]:
        root = self._parent(round_number)
        return [root] if root else []

    def _parent(self, round_number: int) -> str:
        root = self._roots.get(round_number)
        return root.traceparent if root is not None else ""
