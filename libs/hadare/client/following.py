"""Following a job without a gap: events on the bus are a wake-up only, what counts is read from the gateway.

Subscribe first, then ask; ask again with the last sequence number after each wake-up, and now and then without one.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from hadare.model.events import Event, StoredEvent
from hadare.runtime.bus import Bus
from hadare.wire import api
from hadare.wire.subjects import Endpoint

POLL_S = 1.0
LAST_EVENTS_S = 3.0
"""How long a watch waits for the last events of a job that has ended: its state is stored before its story is."""

_LAST = frozenset({"completed", "failed", "cancelled", "deleted"})


class Ask(Protocol):
    """How questions are asked."""

    async def __call__(self, endpoint: Endpoint[Any, Any], question: Any) -> Any: ...


class Follower:
    """Follows one job at a time for a client."""

    def __init__(self, bus: Bus, ask: Ask) -> None:
        self._bus = bus
        self._ask = ask

    async def watch(self, job: str, from_seq: int) -> AsyncIterator[api.JobStatus | StoredEvent]:
        """The status, then all events in order, each once, until the job has ended."""
        first: api.JobStatus = await self._ask(api.GET, api.JobRef(job_id=job))
        yield first
        after, left_s, told = from_seq, LAST_EVENTS_S, False
        async with self._woken(first.job_id) as woken:
            while True:
                woken.clear()
                news: api.Watching = await self._ask(api.WATCH, api.Watch(job_id=first.job_id, from_seq=after))
                for stored in news.events:
                    yield stored
                    told = told or stored.event.what in _LAST
                after = news.last_seq
                if news.events:
                    continue
                if news.snapshot.state.ended:
                    if told or left_s <= 0:
                        return
                    left_s -= POLL_S
                await _wait(woken)

    async def wait(self, job: str, on_status: Callable[[api.JobStatus], None] | None) -> api.JobStatus:
        """The job's last status."""
        status: api.JobStatus = await self._ask(api.GET, api.JobRef(job_id=job))
        async with self._woken(status.job_id) as woken:
            while True:
                woken.clear()
                status = await self._ask(api.GET, api.JobRef(job_id=status.job_id))
                if on_status is not None:
                    on_status(status)
                if status.state.ended:
                    return status
                await _wait(woken)

    async def logs(self, question: api.ReadLogs, *, follow: bool) -> AsyncIterator[api.LogEntry]:
        """Log lines in order, each once."""
        while True:
            ended = follow and await self._ended(question.job_id)
            answer: api.Logs = await self._ask(api.LOGS, question)
            for line in answer.lines:
                yield line
            question = dataclasses.replace(question, from_seq=answer.last_seq)
            if answer.more:
                continue
            # Asked before the lines were read: what an ended job has printed is all there.
            if not follow or ended:
                return
            await asyncio.sleep(POLL_S)

    async def _ended(self, job: str) -> bool:
        status: api.JobStatus = await self._ask(api.GET, api.JobRef(job_id=job))
        return status.state.ended

    @asynccontextmanager
    async def _woken(self, job_id: str) -> AsyncIterator[asyncio.Event]:
        woken = asyncio.Event()

        async def wake(_event: Event) -> None:
            woken.set()

        subscription = await self._bus.subscribe(api.JOB_EVENTS, wake, kind="job", id=job_id)
        try:
            yield woken
        finally:
            await subscription.stop()


async def _wait(woken: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(POLL_S):
            await woken.wait()
    except TimeoutError:
        return
