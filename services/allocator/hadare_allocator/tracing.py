"""The trace of a round: one root span from its prices to its end, a child a step, a link to every job it placed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack

from hadare.model.rounds import NodeLeases
from hadare.runtime.telemetry import span, traceparent


class RoundTrace:
    """Holds the root span of the running round open; the steps, in tasks of their own, are its children."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._root = ""
        self._round = 0

    def begin(self, round_number: int) -> None:
        """Starts the round's trace, in the task that will end it."""
        self.end()
        self._round = round_number
        self._open.enter_context(span("round", attributes={"hadare.round": round_number}))
        self._root = traceparent()

    def end(self) -> None:
        self._open.close()
        self._root = ""

    def step(self, name: str, **data: int) -> AbstractContextManager[object]:
        attributes = {f"hadare.{key}": value for key, value in data.items()}
        return span(name, parent=self._root, attributes={"hadare.round": self._round, **attributes})

    def place(self, leases: Iterable[NodeLeases]) -> None:
        """A span in every placed job's own trace, linked to the round's, and one in the round's linked to theirs."""
        jobs = {lease.key.job_id: lease.traceparent for node in leases for lease in node.leases}
        for job_id, parent in sorted(jobs.items()):
            attributes: dict[str, str | int] = {"hadare.job": job_id, "hadare.round": self._round}
            with span("place job", parent=parent, links=self.links(), attributes=attributes):
                pass
        with span("dispatch", parent=self._root, links=[parent for parent in jobs.values() if parent]):
            pass

    def links(self) -> Sequence[str]:
        return [self._root] if self._root else []
