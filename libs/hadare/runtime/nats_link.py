"""The one place that talks through nats-py: requests, JetStream's API, acknowledged writes, and what went wrong.

nats-py gives up for good in many ways and says so in none; a ``Link`` turns each of them into ``closed``.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from hadare.model.errors import Conflict, Rejected, Unavailable
from hadare.runtime.backoff import retrying
from hadare.runtime.nats_errors import ApiError, as_ours, checked

T = TypeVar("T")

log = structlog.get_logger("hadare.nats")

API_TIMEOUT_S = 5.0
STORE_TIMEOUT_S = 3.0
PATIENCE_S = 30.0
"""How long a write is tried again (a failover of a replicated stream takes about 6 s) before ``Unavailable``."""

STORES_IN_FLIGHT = 64
"""More would not be stored faster, and would run into their time limits while they queue at the server."""

PENDING_MESSAGES = 16_384
PENDING_BYTES = 64 * 2**20

_WATCH_EVERY_S = 5.0
_WATCH_STRIKES = 3
_WRONG_SEQUENCE = (10071, 10164)
_OUT_OF_SPACE = 10077
_FORBIDDEN = re.compile(r'permissions violation for (\w+) to "([^"]+)"', re.IGNORECASE)


class Link:
    """A connection with its JetStream account. Every wait has a time limit; every failure is one of ``HadareError``."""

    def __init__(self, client: Client, prefix: str) -> None:
        self.client = client
        self.prefix = prefix
        self.reconnected: set[Callable[[], None]] = set()
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._watchdog: asyncio.Task[None] | None = None
        self._complaints: dict[str, float] = {}
        self._closing = False
        self.connection = 0
        """Which connection it is: each one that was lost was followed by another."""

        self._stores = asyncio.Semaphore(STORES_IN_FLIGHT)
        self._asked: set[asyncio.Timeout] = set()

    # What nats-py calls. None of these may raise: an exception here ends the client's read loop in silence.

    async def on_error(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        forbidden = _FORBIDDEN.search(text)
        now = asyncio.get_running_loop().time()
        if now - self._complaints.get(text, -60.0) < 10.0:
            return
        if len(self._complaints) > 1000:
            self._complaints.clear()
        self._complaints[text] = now
        if forbidden:
            log.error("not permitted", action=forbidden[1], subject=forbidden[2])
        else:
            log.warning("bus error", error=text, kind=type(error).__name__)

    async def on_disconnected(self) -> None:
        now = asyncio.get_running_loop().time()
        asked, self._asked = self._asked, set()  # each only once: it may not have ended by the next disconnection
        for patience in asked:
            patience.reschedule(now)
        if not self._closing:
            log.warning("bus disconnected", error=str(self.client.last_error or ""))

    async def on_reconnected(self) -> None:
        self.connection += 1
        log.info("bus reconnected")
        for notify in list(self.reconnected):
            notify()

    async def on_closed(self) -> None:
        ended = "closed" if self._closing else "the client closed the connection"
        self.declare_lost(str(self.client.last_error or ended))

    # Liveness

    def watch_over(self) -> None:
        """Starts the watchdog that notices a client which believes to be connected and hears nothing.

        A ping that was under way when a connection ended says nothing about the next one.
        """
        self._watchdog = in_empty_context(self._watch(), "nats-watchdog")

    async def _watch(self) -> None:
        strikes = 0
        while strikes < _WATCH_STRIKES:
            await asyncio.sleep(_WATCH_EVERY_S)
            if self.client.is_reconnecting or self.client.is_draining:
                strikes = 0
                continue
            connection = self.connection
            try:
                await heeded(self.client.rtt(timeout=_WATCH_EVERY_S))  # type: ignore[arg-type]  # any number works
                strikes = 0
            except (nats.errors.Error, OSError) as error:
                strikes = strikes + 1 if connection == self.connection else 0
                log.warning("no answer to a ping", strikes=strikes, error=str(error))
        self.declare_lost("the bus answers no ping although the client believes to be connected")

    def declare_lost(self, reason: str) -> None:
        if not self._lost.done():
            self._lost.set_result(reason)

    async def lost(self) -> str:
        return await asyncio.shield(self._lost)

    async def close(self) -> None:
        """Drains for at most the client's drain time-out, then closes."""
        self._closing = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        try:
            if self.client.is_connected and not self.client.is_draining:
                await self.client.drain()
        except (nats.errors.Error, OSError) as error:
            log.warning("not drained", error=str(error))
        finally:
            await self._close_client()
            self.declare_lost("closed")

    async def _close_client(self) -> None:
        if self.client.is_closed:
            return
        try:
            await self.client.close()
        except (nats.errors.Error, OSError) as error:  # the server has gone first: there is nothing left to close
            log.debug("closed on a lost connection", error=str(error))

    async def until_connected(self, timeout_s: float) -> None:
        """Returns at once while connected. Raises ``Unavailable`` if there is no connection within the time."""
        if self.client.is_connected:
            return
        back = asyncio.Event()
        self.reconnected.add(back.set)
        try:
            async with asyncio.timeout(timeout_s):
                await back.wait()
        except TimeoutError as error:
            raise Unavailable("the bus is disconnected") from error
        finally:
            self.reconnected.discard(back.set)

    # Core messages

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        try:
            await heeded(self.client.publish(subject, data, reply=reply, headers=headers or None))
        except nats.errors.Error as error:
            raise as_ours(error, subject) from error

    async def request(
        self, subject: str, data: bytes, *, timeout_s: float, headers: dict[str, str] | None = None
    ) -> Msg:
        """Raises ``Unavailable`` if nobody listens or the connection is lost, at once, and when the time is up.

        The answer to a question that was under way with a lost connection would hardly ever come: the server knew it.
        """
        try:
            async with asyncio.timeout(None) as patience:
                self._asked.add(patience)
                try:
                    return await heeded(self.client.request(subject, data, timeout=timeout_s, headers=headers or None))
                finally:
                    self._asked.discard(patience)
        except nats.errors.Error as error:
            raise as_ours(error, subject, timeout_s) from error
        except TimeoutError as error:
            raise Unavailable(f"the connection was lost while {subject} was asked") from error

    async def subscribe(
        self, subject: str, receive: Callable[[Msg], Awaitable[None]], *, group: str = ""
    ) -> NatsSubscription:
        """``receive`` runs for one message at a time, in an empty context: it does not inherit the caller's trace."""
        opening = self.client.subscribe(
            subject,
            queue=group,
            cb=receive,
            pending_msgs_limit=PENDING_MESSAGES,
            pending_bytes_limit=PENDING_BYTES,
        )
        try:
            return await in_empty_context(opening, f"subscribe:{subject}")
        except nats.errors.Error as error:
            raise as_ours(error, subject) from error

    def new_id(self) -> str:
        return str(self.client.new_inbox()).rsplit(".", 1)[-1]

    async def drain(self, subscription: NatsSubscription, timeout_s: float) -> None:
        """No new messages; what has arrived is handed over first, for at most ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await heeded(subscription.drain())  # type: ignore[no-untyped-call]
        except TimeoutError:
            log.warning("not drained in time", subject=subscription.subject, timeout_s=timeout_s)
            await self.unsubscribe(subscription)
        except nats.errors.Error:
            log.debug("already closed", subject=subscription.subject)

    async def unsubscribe(self, subscription: NatsSubscription) -> None:
        try:
            await heeded(subscription.unsubscribe())
        except nats.errors.Error:
            log.debug("already unsubscribed", subject=subscription.subject)

    async def flush(self, timeout_s: float = 5.0) -> None:
        try:
            await heeded(self.client.flush(timeout=timeout_s))  # type: ignore[arg-type]  # any number works
        except nats.errors.Error as error:
            raise as_ours(error, "flush", timeout_s) from error

    # JetStream

    async def api(
        self, verb: str, body: Mapping[str, Any] | None = None, timeout_s: float = API_TIMEOUT_S
    ) -> dict[str, Any]:
        """One request to ``$JS.API``. Raises ``ApiError``, or ``Unavailable`` where trying again makes sense."""
        data = json.dumps(body).encode() if body is not None else b""
        message = await self.request(f"$JS.API.{verb}", data, timeout_s=timeout_s)
        return checked(message.data, verb)

    async def api_retrying(
        self, verb: str, body: Mapping[str, Any] | None = None, patience_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        return await retrying(lambda: self.api(verb, body), what=verb, patience_s=patience_s)

    async def store(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str,
        headers: Mapping[str, str] | None = None,
        last: int | None = None,
        patience_s: float = PATIENCE_S,
    ) -> int:
        """An acknowledged write to whichever stream takes ``subject``; returns its sequence number.

        ``message_id`` makes the retries harmless: a time-out means "unknown", not "failed". ``last`` is the sequence
        that the subject must stand at (0: never written). Raises ``Conflict``, ``Unavailable``, ``Rejected``.
        """
        lines = {"Nats-Msg-Id": message_id, **(headers or {})}
        if last is not None:
            lines["Nats-Expected-Last-Subject-Sequence"] = str(last)

        async def attempt() -> int:
            async with self._stores:
                message = await self.request(subject, data, timeout_s=STORE_TIMEOUT_S, headers=lines)
            return int(checked(message.data, subject)["seq"])

        try:
            return await retrying(attempt, what=f"store {subject}", patience_s=patience_s)
        except ApiError as error:
            if error.err_code in _WRONG_SEQUENCE:
                raise Conflict(f"{subject}: {error.description}") from error
            if error.err_code == _OUT_OF_SPACE:
                raise Unavailable(f"the store behind {subject} is full: {error.description}") from error
            raise Rejected(error.code, f"{subject}: {error}") from error


async def heeded(work: Awaitable[T]) -> T:
    """Awaits what nats-py does; a cancellation that it drops on the way takes effect after it.

    nats-py catches ``CancelledError`` while it flushes, and ``wait_for`` of Python 3.11 drops one that comes in the
    same moment as what it waits for. A task that goes on then is waited for by its ``TaskGroup`` for ever: a deposed
    service that neither works nor ends.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        return await work
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


def in_empty_context(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """A task that inherits no context variables: what it runs for ever must not hang on one caller's trace."""
    return asyncio.get_running_loop().create_task(work, name=name, context=contextvars.Context())
