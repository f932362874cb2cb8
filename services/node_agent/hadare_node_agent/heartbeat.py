"""Says once a second that the node lives, from a thread of its own, so that no hash or upload can hold it up.

It vouches for the event loop as well: a loop that has not turned for long is dead, and then it falls silent.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from hadare.model.devices import Heartbeat
from hadare.model.errors import Unavailable
from hadare.runtime.bus import Backplane, Bus
from hadare.wire.subjects import HEARTBEAT

log = structlog.get_logger("hadare.node_agent")

_PULSE_S = 0.25
_JOIN_S = 5.0
_RECONNECT_S = 2.0


@dataclass(slots=True)
class Vitals:
    """What the thread may read of the agent. Each field is replaced as a whole, never changed in place."""

    node: str
    incarnation: str
    started_at: float
    turned_at: float
    busy: dict[str, str]

    async def pulse(self) -> None:
        """Runs in the agent's loop, and shows that it turns."""
        while True:
            self.turned_at = time.monotonic()
            await asyncio.sleep(_PULSE_S)

    def heartbeat(self, sequence: int, now: float) -> Heartbeat:
        return Heartbeat(
            node=self.node,
            incarnation=self.incarnation,
            sequence=sequence,
            busy=self.busy,
            uptime_s=max(0.0, now - self.started_at),
        )


class Heart(Protocol):
    """Beats from ``start`` to ``stop``."""

    def start(self, vitals: Vitals) -> None: ...

    async def stop(self) -> None: ...


async def beat(bus: Bus, vitals: Vitals, every_s: float, patience_s: float) -> None:
    """Publishes heartbeats for ever, except while the agent's loop does not turn."""
    sequence, silent = 0, False
    while True:
        now = time.monotonic()
        stalled_s = now - vitals.turned_at
        if stalled_s <= patience_s:
            sequence += 1
            await bus.publish(HEARTBEAT, vitals.heartbeat(sequence, now), node=vitals.node)
        elif not silent:
            log.error("the event loop does not turn: no heartbeats", stalled_s=round(stalled_s, 1))
        silent = stalled_s > patience_s
        await asyncio.sleep(every_s)


class HeartThread:
    """A heart with a thread, an event loop and a connection of its own."""

    def __init__(self, connect: Callable[[], Awaitable[Backplane]], every_s: float, patience_s: float) -> None:
        self._connect = connect
        self._every_s = every_s
        self._patience_s = patience_s
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beating: asyncio.Task[None] | None = None

    def start(self, vitals: Vitals) -> None:
        started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live(vitals, started)), name="heart", daemon=True
        )
        self._thread.start()
        started.wait(_JOIN_S)

    async def stop(self) -> None:
        if self._thread is None or self._loop is None or self._beating is None:
            return
        self._loop.call_soon_threadsafe(self._beating.cancel)
        await asyncio.to_thread(self._thread.join, _JOIN_S)

    async def _live(self, vitals: Vitals, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._beating = asyncio.create_task(self._beat(vitals))
        started.set()
        await asyncio.gather(self._beating, return_exceptions=True)

    async def _beat(self, vitals: Vitals) -> None:
        while True:
            try:
                backplane = await self._connect()
            except Unavailable as error:
                log.warning("no connection for heartbeats", reason=str(error))
                await asyncio.sleep(_RECONNECT_S)
                continue
            try:
                await self._beat_on(backplane, vitals)
            finally:
                await backplane.close()
            await asyncio.sleep(_RECONNECT_S)

    async def _beat_on(self, backplane: Backplane, vitals: Vitals) -> None:
        """Until the connection is lost for good."""
        beating = asyncio.create_task(beat(backplane.bus, vitals, self._every_s, self._patience_s))
        losing = asyncio.create_task(backplane.closed())
        try:
            await asyncio.wait({beating, losing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (beating, losing):
                task.cancel()
            ends = await asyncio.gather(beating, losing, return_exceptions=True)
        log.warning("heartbeats have lost their connection", reason=str(next((e for e in ends if e), "")))
