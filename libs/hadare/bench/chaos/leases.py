"""Who trained what on which device, and when, as the agents' events tell it. Pure: events in, spans out.

All processes of a run share one machine, and so one monotonic clock: that of ``at_s`` in the agents' events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hadare.bench.chaos.cluster import Life
from hadare.model.events import StoredEvent


@dataclass(slots=True, kw_only=True)
class Span:
    """One training lease on one device. ``ended`` None: its agent never said so; then ``until`` bounds it."""

    node: str
    device: int
    job_id: str
    round: int
    fork: int
    attempt: int
    began: float
    life: int
    ended: float | None = None
    until: float = float("inf")
    steps: int | None = None
    rate: float = 0.0

    @property
    def name(self) -> str:
        """As ``LeaseKey`` writes it."""
        return f"{self.job_id}.{self.round}.{self.fork}.{self.attempt}"

    @property
    def over(self) -> float:
        return self.until if self.ended is None else self.ended


def spans(node_events: Iterable[StoredEvent], lives: Sequence[Life]) -> list[Span]:
    """Every start of a training lease, by node, device and time. An event that was told twice is one."""
    found: dict[tuple[str, str, int, int], list[Span]] = defaultdict(list)
    told = sorted((e for e in node_events if "at_s" in e.event.data), key=lambda e: float(e.event.data["at_s"]))
    for stored in told:
        data, node, what = stored.event.data, stored.event.id, stored.event.what
        if data.get("kind") != "train":
            continue
        at = float(data["at_s"])
        life = _life_at(node, at, lives)
        for device in data.get("devices", ()):
            key = (node, f"{data['job']}.{data['round']}.{data['fork']}.{data['attempt']}", int(device), life)
            starts = found[key]
            if what == "lease_started" and not (starts and starts[-1].began == at):
                starts.append(_span(node, int(device), data, at, life))
                starts[-1].until = (lives[life].ended or float("inf")) if life >= 0 else float("inf")
            elif what == "lease_ended" and starts:
                starts[-1].ended = at - float(data["upload_s"])
                starts[-1].steps = int(data["steps"])
                starts[-1].rate = float(data["nominal_rate"])
    every = [span for starts in found.values() for span in starts]
    return sorted(every, key=lambda span: (span.node, span.device, span.began))


def _span(node: str, device: int, data: dict[str, Any], at: float, life: int) -> Span:
    return Span(
        node=node,
        device=device,
        job_id=str(data["job"]),
        round=int(data["round"]),
        fork=int(data["fork"]),
        attempt=int(data["attempt"]),
        began=at,
        life=life,
    )


def _life_at(node: str, at: float, lives: Sequence[Life]) -> int:
    """The number of the process of this agent that lived then; -1 if none is known."""
    return next(
        (
            number
            for number, life in enumerate(lives)
            if life.program == node and life.began <= at and (life.ended is None or at <= life.ended)
        ),
        -1,
    )
