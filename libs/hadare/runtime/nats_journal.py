"""The streams ``events`` and ``logs``: what happened and what forks printed, append-only, with a stated retention.

Events are kept for 30 days, logs for 7; each stream drops its oldest beyond its share of the disk.
"""

from __future__ import annotations

import uuid
from typing import TypeVar

import structlog

from hadare.model.errors import Rejected
from hadare.model.events import Event, EventKind, LogLine, StoredEvent
from hadare.runtime import telemetry
from hadare.runtime.nats_link import Link
from hadare.runtime.nats_reader import Reader
from hadare.runtime.nats_stored import Stored, last_of
from hadare.runtime.nats_streams import Names
from hadare.wire import codec
from hadare.wire.subjects import fill

M = TypeVar("M")

log = structlog.get_logger("hadare.nats")

_EVENT = "event.v1.{kind}.{id}.{what}"
_LOG = "log.v1.{job}.{round}.{fork}.{attempt}"
_LOG_PATIENCE_S = 10.0


class NatsJournal:
    """The ``Journal`` of a cluster."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._names = Names(link.prefix)

    async def append(self, event: Event, message_id: str) -> None:
        subject = self._subject(_EVENT, kind=event.kind, id=event.id, what=event.what)
        await self._link.store(
            subject, codec.encode(event), message_id=f"event:{message_id}", headers=telemetry.inject({})
        )

    async def read(self, kind: EventKind, entity: str = "*", after: int = 0, limit: int = 1000) -> list[StoredEvent]:
        pattern = f"{self._link.prefix}.{fill(_EVENT, {'kind': kind, 'id': entity})}"
        found = []
        for stored in await self._read(self._names.events, pattern, after, limit):
            event = _decoded(stored, Event)
            if event is not None:
                found.append(StoredEvent(sequence=stored.sequence, at=stored.at, event=event))
        return found

    async def log(self, line: LogLine) -> None:
        subject = self._subject(
            _LOG, job=line.job_id, round=str(line.round), fork=str(line.fork), attempt=str(line.attempt)
        )
        await self._link.store(
            subject, codec.encode(line), message_id=f"log:{uuid.uuid4().hex}", patience_s=_LOG_PATIENCE_S
        )

    async def logs(self, job_id: str, after: int = 0, limit: int = 1000) -> list[tuple[int, LogLine]]:
        pattern = f"{self._link.prefix}.{fill(_LOG, {'job': job_id})}"
        lines = ((s.sequence, _decoded(s, LogLine)) for s in await self._read(self._names.logs, pattern, after, limit))
        return [(sequence, line) for sequence, line in lines if line is not None]

    def events_subject(self, kind: EventKind, entity: str) -> str:
        return f"{self._link.prefix}.event.v1.{kind}.{entity}.>"

    def logs_subject(self, job_id: str) -> str:
        return f"{self._link.prefix}.log.v1.{job_id}.>"

    def _subject(self, template: str, **tokens: str) -> str:
        subject = fill(template, tokens)
        if "*" in subject:
            raise Rejected(400, f"'{subject}': a message needs a whole subject")
        return f"{self._link.prefix}.{subject}"

    async def _read(self, stream: str, pattern: str, after: int, limit: int) -> list[Stored]:
        newest = await last_of(self._link, stream, pattern)
        if newest is None or newest.sequence <= after or limit <= 0:
            return []
        found: list[Stored] = []
        async with Reader(self._link, stream, [pattern], after=after, batch=min(limit, 256)) as reader:
            while len(found) < limit:
                stored = await reader.next()
                if stored is None:
                    break  # a heartbeat of silence: the rest aged out meanwhile
                found.append(stored)
                if stored.sequence >= newest.sequence:
                    break
        return found


def _decoded(stored: Stored, kind: type[M]) -> M | None:
    try:
        return codec.decode(stored.data, kind)
    except Rejected as fault:
        log.error(
            "stored message does not decode", subject=stored.subject, sequence=stored.sequence, fault=fault.message
        )
        return None
