"""What the shells of the control services share: questions that wait for a machine's answer, and a historian."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import structlog

from hadare.model.errors import Rejected, Unavailable
from hadare.model.events import Event
from hadare.runtime.backoff import retrying
from hadare.runtime.bus import Change, Journal, Table

T = TypeVar("T")

log = structlog.get_logger("hadare.shell")

PATIENCE_S = 600.0
"""How long a write to the state of record is retried before the process ends, to be started again."""


class Questions:
    """Questions from the bus, each with a token, answered when the machine says so."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._tokens = itertools.count(1)
        self._closed = False

    async def put(self, ask: Callable[[int], None]) -> Any:
        """Gives the question a token, hands it on through ``ask``, and waits for the answer.

        Raises ``Rejected`` as ``refuse`` says, and ``Unavailable`` once ``close`` was called.
        """
        if self._closed:
            raise Unavailable("the service is ending")
        token = next(self._tokens)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[token] = answer
        try:
            ask(token)
            return await answer
        finally:
            del self._waiting[token]

    def answer(self, token: int, answer: object) -> None:
        waiting = self._waiting.get(token)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def refuse(self, token: int, fault: Rejected) -> None:
        waiting = self._waiting.get(token)
        if waiting is not None and not waiting.done():
            waiting.set_exception(fault)

    def close(self) -> None:
        """Nobody will answer any more: whoever waits, and whoever comes, is told to ask again."""
        self._closed = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Unavailable("the service is ending"))


class Historian:
    """Writes events to the journal in the order in which they happened, without holding up whoever reports them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._queue: asyncio.Queue[tuple[Event, str]] = asyncio.Queue()

    def note(self, event: Event, message_id: str) -> None:
        self._queue.put_nowait((event, message_id))

    async def run(self) -> None:
        while True:
            event, message_id = await self._queue.get()

            async def append(event: Event = event, message_id: str = message_id) -> None:
                await self._journal.append(event, message_id)

            await retrying(append, what=f"append {event.kind} {event.what}", patience_s=PATIENCE_S)


async def follow(table: Table[T], see: Callable[[Change[T]], None], caught_up: Callable[[], None]) -> None:
    """Hands every record that exists, and then every change, to ``see``."""
    async for change in table.watch():
        if change.caught_up:
            caught_up()
        else:
            see(change)


async def all_of(*writes: Awaitable[object]) -> None:
    """All at once, each to its end; then raises what the first of those that failed has raised."""
    ends = await asyncio.gather(*writes, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


async def stored(write: Callable[[], Awaitable[T]], what: str) -> T:
    """A write to the state of record: retried while the store is away, then the process has to end."""
    return await retrying(write, what=what, patience_s=PATIENCE_S)
