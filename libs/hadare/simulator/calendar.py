"""What happens by itself: jobs arrive, nodes register, fail, come back and are drained. In order, each thing once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from hadare.machines.round_events import NodeHeard, NodeRegistered, NodeWished
from hadare.model.devices import Heartbeat, NodeWish
from hadare.model.errors import Rejected
from hadare.simulator.jobs import SimJob
from hadare.simulator.settings import INCARNATION, NodeEvent, SimNode

Happening = SimJob | NodeRegistered | NodeWished


class Calendar:
    """``until(t)`` gives what has happened since it was asked last."""

    def __init__(self, jobs: Sequence[SimJob], nodes: Sequence[SimNode], events: Sequence[NodeEvent]) -> None:
        names = {node.name for node in nodes}
        unknown = sorted({event.node for event in events} - names)
        if unknown:
            raise Rejected(400, f"events name nodes that the cluster lacks: {', '.join(unknown)}")
        self._jobs = list(jobs)
        self._nodes = [node.name for node in nodes]
        self._to_register = tuple(nodes)
        self._events = sorted(events, key=lambda event: (event.at_s, event.node, event.what))
        self._next_job = 0
        self._next_event = 0
        self._down: set[str] = set()
        self._failed: list[str] = []

    @property
    def jobs_to_come(self) -> int:
        return len(self._jobs) - self._next_job

    def until(self, at: float) -> Iterator[Happening]:
        """Nodes register before the first job arrives; what happens at one moment happens in this order."""
        for node in self._to_register:
            yield NodeRegistered(at=0.0, node=node.name, inventory=node.inventory())
        self._to_register = ()
        while self._next_event < len(self._events) and self._events[self._next_event].at_s <= at:
            event = self._events[self._next_event]
            self._next_event += 1
            yield from self._befall(event)
        while self._next_job < len(self._jobs) and self._jobs[self._next_job].arrival_s <= at:
            self._next_job += 1
            yield self._jobs[self._next_job - 1]

    def _befall(self, event: NodeEvent) -> Iterator[Happening]:
        match event.what:
            case "fail":
                self._down.add(event.node)
                self._failed.append(event.node)
            case "recover":
                self._down.discard(event.node)
            case "drain" | "undrain":
                wish = NodeWish(node=event.node, drain=event.what == "drain")
                yield NodeWished(at=event.at_s, node=event.node, wish=wish)

    def just_failed(self) -> list[str]:
        failed, self._failed = self._failed, []
        return failed

    def heartbeats(self, at: float) -> list[NodeHeard]:
        """Of every node that is up."""
        return [
            NodeHeard(at=at, heartbeat=Heartbeat(node=name, incarnation=INCARNATION, sequence=0))
            for name in self._nodes
            if name not in self._down
        ]

    def next_after(self, at: float) -> float:
        """When something happens next that has not happened yet."""
        event = self._events[self._next_event].at_s if self._next_event < len(self._events) else inf
        arrival = self._jobs[self._next_job].arrival_s if self._next_job < len(self._jobs) else inf
        return max(at, min(event, arrival))

    def failures(self, began_s: float, until_s: float) -> dict[str, float]:
        """Nodes that fail in a round, and when."""
        found: dict[str, float] = {}
        for event in self._events[self._next_event :]:
            if event.at_s >= until_s:
                break
            if event.what == "fail" and event.at_s >= began_s:
                found.setdefault(event.node, event.at_s)
        return found
