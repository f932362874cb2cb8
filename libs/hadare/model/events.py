"""The append-only history: life-cycle events of jobs, rounds, nodes and prices (stream ``events``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hadare.model.fields import Count, Text

EventKind = Literal["job", "round", "node", "price"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """``what`` happened to ``id`` of ``kind``; ``data`` is documented in docs/reference/events.md."""

    kind: EventKind
    id: Text
    what: Text
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event with its place in the stream. ``at`` is the bus server's clock (Unix seconds): one clock for all."""

    sequence: Count
    at: float
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """What a fork printed, in chunks, by job, round, fork and attempt (stream ``logs``)."""

    job_id: Text
    round: Count
    fork: Count
    attempt: Count = 0
    node: Text
    text: Text
