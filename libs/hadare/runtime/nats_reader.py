"""Reads a stream in order, without loss and without repeats, across restarts of the server.

A pull consumer of our own: it needs no flow control and no acknowledgements, its silence is noticed within
``SILENCE_S``, and it is made anew from the sequence number that came last.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from hadare.model.errors import Broken, Unavailable
from hadare.runtime.backoff import pause, retrying
from hadare.runtime.nats_errors import ApiError
from hadare.runtime.nats_link import API_TIMEOUT_S, PATIENCE_S, Link
from hadare.runtime.nats_stored import Stored, subjects_of

log = structlog.get_logger("hadare.nats")

HEARTBEAT_S = 1.0
SILENCE_S = 2.5
"""The server says something every ``HEARTBEAT_S``; after this long without a word the consumer is gone."""

_PULL_S = 30.0
_INACTIVE_S = 60.0
_NANO = 1_000_000_000


class Reader:
    """``async with Reader(...) as reader: await reader.next()``.

    ``latest`` begins with the newest message of each subject instead of with the first after ``after``.
    ``patience_s`` bounds how long a stream that cannot be read is tried again (None: for ever, each try logged).
    """

    def __init__(
        self,
        link: Link,
        stream: str,
        subjects: Sequence[str],
        *,
        after: int = 0,
        latest: bool = False,
        batch: int = 256,
        patience_s: float | None = PATIENCE_S,
    ) -> None:
        self._link = link
        self._stream = stream
        self._subjects = list(subjects)
        self._latest = latest
        self._batch = batch
        self._patience_s = patience_s
        self.last = after
        self._arrived: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._consumer = ""
        self._expected = 1
        self._asked = 0
        self._inbox = ""
        self._subscription: NatsSubscription | None = None

    async def __aenter__(self) -> Reader:
        self._link.reconnected.add(self._notice)
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._link.reconnected.discard(self._notice)
        await self._abandon()

    def _notice(self) -> None:
        """The client reconnected: what was asked before is lost, even if the server never went away."""
        self._arrived.put_nowait(None)

    async def next(self) -> Stored | None:
        """The next message; None after ``HEARTBEAT_S`` without one.

        Raises ``Unavailable``, and ``Broken`` if the stream is not the one that was read before.
        """
        while True:
            if not self._consumer:
                await self._open()
            await self._refill()
            message = await self._take()
            if message is None:
                continue
            status = (message.headers or {}).get("Status") if message.headers else None
            if status is None:
                stored = self._accept(message)
                if stored is not None:
                    return stored
                await self._abandon()
            elif status == "100":
                return None
            else:
                await self._ended(status, message)

    async def _take(self) -> Msg | None:
        try:
            message = self._arrived.get_nowait()
        except asyncio.QueueEmpty:
            try:
                async with asyncio.timeout(SILENCE_S):
                    message = await self._arrived.get()
            except TimeoutError:
                log.warning("a consumer fell silent", stream=self._stream, after=self.last)
                await self._abandon()
                return None
        if message is None:
            await self._abandon()
        return message

    def _accept(self, message: Msg) -> Stored | None:
        """None if the consumer skipped something, which then has to be read again."""
        meta = message.metadata
        if meta.sequence.consumer != self._expected:
            log.warning("messages were lost on the way", stream=self._stream, after=self.last)
            return None
        self._expected += 1
        self._asked -= 1
        self.last = meta.sequence.stream
        return Stored(
            message.subject, meta.sequence.stream, meta.timestamp.timestamp(), message.headers or {}, message.data
        )

    async def _ended(self, status: str, message: Msg) -> None:
        """A pull ran out (404, 408, some 409), or the consumer is gone (the rest)."""
        headers = message.headers or {}
        description = headers.get("Description", "").lower()
        if status in ("404", "408") or "maxbytes" in description.replace(" ", ""):
            self._asked -= int(headers.get("Nats-Pending-Messages", self._asked))
            return
        log.warning("a consumer ended", stream=self._stream, status=status, why=description)
        await self._abandon()
        await asyncio.sleep(pause(0))

    async def _open(self) -> None:
        await retrying(
            self._try_to_open,
            what=f"read {self._stream}",
            patience_s=float("inf") if self._patience_s is None else self._patience_s,
        )

    async def _try_to_open(self) -> None:
        await self._link.until_connected(API_TIMEOUT_S)
        try:
            await self._check_past()
            await self._create()
        except ApiError as error:
            await self._abandon()
            if error.code in (400, 404):
                raise Broken(f"stream {self._stream} cannot be read: {error}") from error
            raise Unavailable(f"stream {self._stream} cannot be read now: {error}") from error
        except Unavailable:
            await self._abandon()
            raise

    async def _check_past(self) -> None:
        if not self.last:
            return
        state = (await self._link.api(f"STREAM.INFO.{self._stream}"))["state"]
        if int(state["last_seq"]) < self.last:
            raise Broken(
                f"stream {self._stream} ends at {state['last_seq']} and was read up to {self.last}: it lost data"
            )

    async def _create(self) -> None:
        name = uuid.uuid4().hex
        # A fresh inbox for each consumer, so that nothing of an earlier one is ever taken for its own.
        self._inbox = self._link.client.new_inbox()
        self._arrived = asyncio.Queue()
        self._subscription = await self._link.subscribe(self._inbox, self._receive_into(self._arrived))
        config: dict[str, Any] = {
            "name": name,
            "ack_policy": "none",
            "deliver_policy": "all",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(_INACTIVE_S * _NANO),
        }
        verb = f"CONSUMER.CREATE.{self._stream}.{name}"
        if len(self._subjects) == 1:
            config["filter_subject"] = self._subjects[0]
            verb += f".{self._subjects[0]}"
        else:
            config["filter_subjects"] = self._subjects
        if self.last:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": self.last + 1}
        elif self._latest:
            config["deliver_policy"] = "last_per_subject"
        body = {"stream_name": self._stream, "config": config, "action": "create"}
        await self._link.api(verb, body)
        self._consumer = name
        self._expected = 1
        self._asked = 0

    @staticmethod
    def _receive_into(queue: asyncio.Queue[Msg | None]) -> Any:
        async def receive(message: Msg) -> None:
            queue.put_nowait(message)

        return receive

    async def _refill(self) -> None:
        """Keeps between half a batch and a batch on order: that bounds what can pile up here."""
        if self._asked > self._batch // 2:
            return
        count = self._batch - self._asked
        pull = {"batch": count, "expires": int(_PULL_S * _NANO), "idle_heartbeat": int(HEARTBEAT_S * _NANO)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        await self._link.publish(subject, json.dumps(pull).encode(), reply=self._inbox)
        self._asked += count

    async def _abandon(self) -> None:
        """Forgets the consumer. The server drops it by itself where it cannot be told."""
        consumer, self._consumer = self._consumer, ""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await self._link.unsubscribe(subscription)
        if consumer and self._link.client.is_connected:
            verb = f"$JS.API.CONSUMER.DELETE.{self._stream}.{consumer}"
            await self._link.publish(verb, b"")


async def latest_of(link: Link, stream: str, patterns: Sequence[str]) -> list[Stored]:
    """The newest message of each subject that matches: complete, whatever is written meanwhile.

    The server's own count of what is still to come can reach 0 too early under writes, so it is not asked: what has to
    be there is listed first, and reading ends when all of it has come.
    """
    found: dict[str, Stored] = {}
    missing: set[str] = set()
    for pattern in patterns:
        missing |= await subjects_of(link, stream, pattern)
    if not missing:
        return []
    async with Reader(link, stream, patterns, latest=True) as reader:
        while missing:
            stored = await reader.next()
            if stored is None:
                break  # a heartbeat of silence: what is missing was purged meanwhile
            found[stored.subject] = stored
            missing.discard(stored.subject)
    return list(found.values())
