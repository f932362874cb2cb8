"""What an agent tells the world on the side: step reports, history, what its forks print. Bounded, never waited for.

Training must not stop because a stream is away: what does not fit is dropped, and the next line says so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import structlog

from hadare.model.errors import HadareError, Rejected
from hadare.model.events import Event, LogLine
from hadare.model.leases import LeaseKey, StepReport
from hadare.runtime.backoff import retrying
from hadare.runtime.bus import Bus, Journal
from hadare.wire.subjects import STEP_REPORT

log = structlog.get_logger("hadare.node_agent")

_MOST_REPORTS = 256
_MOST_EVENTS = 4096
_MOST_LOG_CHARACTERS = 256 * 1024
_LOG_CHUNK = 4000
_FLUSH_S = 0.25
_PATIENCE_S = 30.0


class Reports:
    """Step reports: only the newest are worth sending."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._waiting: deque[StepReport] = deque(maxlen=_MOST_REPORTS)
        self._news = asyncio.Event()

    def add(self, report: StepReport) -> None:
        self._waiting.append(report)
        self._news.set()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                report = self._waiting.popleft()
                try:
                    await self._bus.publish(STEP_REPORT, report, node=report.node)
                except HadareError as error:
                    log.debug("a report was not sent", error=str(error))


class History:
    """Events of this node, in order, each stored once."""

    def __init__(self, journal: Journal, node: str, incarnation: str) -> None:
        self._journal = journal
        self._node = node
        self._incarnation = incarnation
        self._count = 0
        self._waiting: asyncio.Queue[tuple[Event, str]] = asyncio.Queue(_MOST_EVENTS)

    def add(self, what: str, data: dict[str, Any]) -> None:
        self._count += 1
        event = Event(kind="node", id=self._node, what=what, data=data)
        try:
            self._waiting.put_nowait((event, f"node.{self._node}.{self._incarnation}.{self._count}"))
        except asyncio.QueueFull:
            log.error("an event is lost: too many wait", what=what)

    async def run(self) -> None:
        while True:
            event, message_id = await self._waiting.get()
            try:
                await self._append(event, message_id)
            except HadareError as error:
                log.error("an event is lost", what=event.what, error=str(error))
            finally:
                self._waiting.task_done()

    async def flush(self, limit_s: float) -> None:
        """Waits until all is stored, but not for long."""
        try:
            async with asyncio.timeout(limit_s):
                await self._waiting.join()
        except TimeoutError:
            log.warning("events are left behind", count=self._waiting.qsize())

    async def _append(self, event: Event, message_id: str) -> None:
        async def append() -> None:
            await self._journal.append(event, message_id)

        await retrying(append, what=f"append {event.what}", patience_s=_PATIENCE_S)


@dataclass(slots=True)
class _Output:
    """What one lease has printed and has not been sent."""

    lines: list[str] = field(default_factory=list)
    characters: int = 0
    dropped: int = 0

    def add(self, line: str) -> None:
        if self.characters + len(line) > _MOST_LOG_CHARACTERS:
            self.dropped += 1
            return
        self.lines.append(line)
        self.characters += len(line) + 1

    def chunks(self) -> list[str]:
        """Whole lines, joined up to the length that a message may have."""
        if self.dropped:
            self.lines.append(f"… {self.dropped} lines left out: the log could not be written fast enough")
        chunks, current = [], ""
        for line in self.lines:
            for piece in _pieces(line):
                if current and len(current) + len(piece) + 1 > _LOG_CHUNK:
                    chunks.append(current)
                    current = ""
                current = f"{current}\n{piece}" if current else piece
        return [*chunks, current] if current else chunks


def _pieces(line: str) -> list[str]:
    return [line[at : at + _LOG_CHUNK] for at in range(0, len(line), _LOG_CHUNK)] or [""]


class Logs:
    """What forks print, sent a few times a second in chunks, by job, round, fork and attempt."""

    def __init__(self, journal: Journal, node: str) -> None:
        self._journal = journal
        self._node = node
        self._outputs: dict[LeaseKey, _Output] = {}
        self._news = asyncio.Event()

    def add(self, key: LeaseKey, line: str) -> None:
        self._outputs.setdefault(key, _Output()).add(line)
        self._news.set()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(_FLUSH_S)
            self._news.clear()
            await self.send()

    async def send(self) -> None:
        while self._outputs:
            key, output = next(iter(self._outputs.items()))
            del self._outputs[key]
            for chunk in output.chunks():
                await self._send(key, chunk)

    async def _send(self, key: LeaseKey, text: str) -> None:
        line = LogLine(
            job_id=key.job_id, round=key.round, fork=key.fork, attempt=key.attempt, node=self._node, text=text
        )
        try:
            await retrying(lambda: self._journal.log(line), what="log", patience_s=_PATIENCE_S)
        except Rejected as fault:
            log.error("output is lost", job=key.job_id, fault=fault.message)
        except HadareError as error:
            log.error("output is lost", job=key.job_id, error=str(error))
