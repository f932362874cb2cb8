"""The backplane in memory: same contracts, same codec, one process. Messages queue; ``publish`` delivers nothing.

``MemoryHub.network`` decides what becomes of each message (delays of its copies; none: it is lost), so that a test
can be the adversary that a real network is.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from hadare.model.errors import HadareError, Rejected, Unavailable
from hadare.model.events import LogLine, StoredEvent
from hadare.runtime.bus import Identity, Route
from hadare.runtime.memory_stores import MemoryJournal, MemoryObjects, MemoryTable, in_family
from hadare.wire import codec
from hadare.wire.subjects import Endpoint, Records, Topic

M = TypeVar("M")
Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message on its way to one receiver; ``reply``: it is the answer to what was asked on ``subject``."""

    sender: str
    receiver: str
    subject: str
    data: bytes
    reply: bool = False


Network = Callable[[Parcel], Sequence[float]]
"""The delay in seconds of each copy that arrives; empty: the message is lost."""

log = structlog.get_logger("hadare.memory")


def perfect_network(_parcel: Parcel) -> Sequence[float]:
    return (0.0,)


@dataclass(frozen=True, slots=True)
class _Reply:
    """Where the answer to a question goes."""

    asker: str
    subject: str
    future: asyncio.Future[bytes]

    def take(self, data: bytes) -> None:
        if not self.future.done():
            self.future.set_result(data)


@dataclass
class _Inbox:
    """A subscription or a served endpoint: a pattern, a queue, and the tasks that empty it."""

    pattern: tuple[str, ...]
    group: str
    owner: str
    work: Callable[[], Awaitable[None]]
    most_workers: int
    queue: asyncio.Queue[tuple[bytes, _Reply | None]] = field(default_factory=asyncio.Queue)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    idle: int = 0
    closed: bool = False

    def put(self, message: tuple[bytes, _Reply | None]) -> None:
        """Queues a message, with one more worker for it if all are busy and there may be more."""
        if self.closed:
            return
        self.queue.put_nowait(message)
        if self.queue.qsize() > self.idle and len(self.tasks) < self.most_workers:
            self.tasks.append(asyncio.ensure_future(self.work()))

    def matches(self, subject: str) -> bool:
        parts = subject.split(".")
        return len(parts) == len(self.pattern) and all(
            want in ("*", got) for want, got in zip(self.pattern, parts, strict=True)
        )


@dataclass(frozen=True)
class StoredRecord:
    revision: int
    data: bytes


class MemoryHub:
    """The "server": what survives when clients crash."""

    def __init__(self, network: Network = perfect_network) -> None:
        self.network = network
        self.buckets: dict[str, dict[str, StoredRecord]] = {}
        self.objects: dict[str, dict[str, bytes]] = {}
        self.events: list[StoredEvent] = []
        self.log_lines: list[LogLine] = []
        self.message_ids: set[str] = set()
        self.inboxes: list[_Inbox] = []
        self.watchers: list[tuple[str, str, asyncio.Queue[tuple[str, StoredRecord | None]]]] = []
        self.failures: list[BaseException] = []
        """Bugs in handlers; a test that expects none asserts that this is empty."""
        self._routes: dict[str, list[list[_Inbox]]] = {}
        self._revisions = itertools.count(1)
        self._turns = itertools.count()

    def connect(self, name: str) -> MemoryBackplane:
        return MemoryBackplane(self, name)

    async def turn(self) -> None:
        """Before every access to tables and journal: lets others go first, as any real store would."""
        await asyncio.sleep(0)

    def write(self, bucket: str, key: str, data: bytes | None) -> int:
        """A new revision of a key (``None``: deleted), announced to the watchers of its bucket."""
        stored = None if data is None else StoredRecord(next(self._revisions), data)
        records = self.buckets.setdefault(bucket, {})
        if stored is None:
            records.pop(key, None)
        else:
            records[key] = stored
        for watched, family, queue in self.watchers:
            if watched == bucket and in_family(key, family):
                queue.put_nowait((key, stored))
        return stored.revision if stored else next(self._revisions)

    def route(self, sender: str, subject: str, data: bytes, reply: _Reply | None = None) -> int:
        """Queues the message for every plain subscription and for one member of each group; says for how many."""
        turn = next(self._turns)
        plain = [members[turn % len(members)] for members in self._listening(subject)]
        loop = asyncio.get_running_loop()
        for inbox in plain:
            for delay in self.network(Parcel(sender, inbox.owner, subject, data)):
                loop.call_later(delay, inbox.put, (data, reply))
        return len(plain)

    def open(self, inbox: _Inbox) -> None:
        self.inboxes.append(inbox)
        self._routes.clear()

    def shut(self, inbox: _Inbox) -> None:
        self.inboxes.remove(inbox)
        self._routes.clear()

    def _listening(self, subject: str) -> list[list[_Inbox]]:
        """Who gets a message of this subject, one of each list: plain subscriptions alone, and then the groups."""
        known = self._routes.get(subject)
        if known is None:
            found = [inbox for inbox in self.inboxes if inbox.matches(subject)]
            groups = sorted({inbox.group for inbox in found if inbox.group})
            known = [[inbox] for inbox in found if not inbox.group]
            known += [[inbox for inbox in found if inbox.group == group] for group in groups]
            self._routes[subject] = known
        return known

    def answer(self, sender: str, reply: _Reply | None, data: bytes) -> None:
        """Sends an answer on its way; a question that came without a return address gets none."""
        if reply is None:
            return
        loop = asyncio.get_running_loop()
        for delay in self.network(Parcel(sender, reply.asker, reply.subject, data, reply=True)):
            loop.call_later(delay, reply.take, data)


class _MemorySubscription:
    def __init__(self, hub: MemoryHub, inboxes: Sequence[_Inbox]) -> None:
        self._hub = hub
        self._inboxes = inboxes

    async def stop(self) -> None:
        for inbox in self._inboxes:
            if inbox in self._hub.inboxes:
                self._hub.shut(inbox)
            if not inbox.closed:
                inbox.closed = True
                await inbox.queue.join()
            for task in inbox.tasks:
                task.cancel()
            await asyncio.gather(*inbox.tasks, return_exceptions=True)


class MemoryBus:
    """``Bus`` of a hub."""

    def __init__(self, hub: MemoryHub, owner: str, prefix: str = "hadare") -> None:
        self._hub = hub
        self._owner = owner
        self._prefix = prefix

    @property
    def prefix(self) -> str:
        return self._prefix

    async def publish(self, topic: Topic[M], message: M, **tokens: str) -> None:
        self._hub.route(self._owner, f"{self._prefix}.{topic.subject(**tokens)}", codec.encode(message))
        await asyncio.sleep(0)

    async def subscribe(
        self, topic: Topic[M], handler: Callable[[M], Awaitable[None]], *, group: str = "", **tokens: str
    ) -> _MemorySubscription:
        async def receive(data: bytes, _reply: _Reply | None) -> None:
            try:
                message = codec.decode(data, topic.message)
            except Rejected as fault:
                log.warning("message dropped", subject=topic.template, fault=fault.message)
                return
            await handler(message)

        inbox = self._open(topic.subject(**tokens), group, receive, workers=1)
        return _MemorySubscription(self._hub, [inbox])

    async def ask(self, endpoint: Endpoint[Q, A], question: Q, *, timeout_s: float, **tokens: str) -> A:
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        subject = f"{self._prefix}.{endpoint.subject(**tokens)}"
        address = _Reply(self._owner, subject, reply)
        if not self._hub.route(self._owner, subject, codec.encode(question), address):
            raise Unavailable(f"nobody serves {endpoint.subject(**tokens)}")
        try:
            async with asyncio.timeout(timeout_s):
                answer = codec.unpack(await reply)
        except TimeoutError as error:
            raise Unavailable(f"no answer from {endpoint.subject(**tokens)} in {timeout_s:g} s") from error
        if "error" in answer:
            fault = answer["error"]
            if fault["code"] == 503:
                raise Unavailable(fault["message"])
            raise Rejected(fault["code"], fault["message"], fault["details"])
        return codec.convert(answer["answer"], endpoint.answer)

    async def serve(self, identity: Identity, routes: Sequence[Route[Any, Any]]) -> _MemorySubscription:
        inboxes = []
        for route in routes:
            receive = self._responder(identity, route)
            inboxes.append(self._open(route.endpoint.subject(**route.tokens), route.group, receive, route.concurrency))
        await asyncio.sleep(0)
        return _MemorySubscription(self._hub, inboxes)

    def _open(
        self,
        subject: str,
        group: str,
        receive: Callable[[bytes, _Reply | None], Awaitable[None]],
        workers: int,
    ) -> _Inbox:
        async def work() -> None:
            while True:
                inbox.idle += 1
                data, reply = await inbox.queue.get()
                inbox.idle -= 1
                try:
                    await receive(data, reply)
                except Exception as bug:
                    self._hub.failures.append(bug)
                    log.exception("handler failed", owner=self._owner, subject=subject)
                finally:
                    inbox.queue.task_done()

        inbox = _Inbox(tuple(f"{self._prefix}.{subject}".split(".")), group, self._owner, work, workers)
        self._hub.open(inbox)
        return inbox

    def _responder(
        self, identity: Identity, route: Route[Any, Any]
    ) -> Callable[[bytes, _Reply | None], Awaitable[None]]:
        async def receive(data: bytes, reply: _Reply | None) -> None:
            try:
                answer = {"answer": codec.to_plain(await route.handler(codec.decode(data, route.endpoint.question)))}
            except Rejected as fault:
                answer = {"error": {"code": fault.code, "message": fault.message, "details": fault.details}}
            except HadareError as error:
                log.warning("handler failed", service=identity.name, endpoint=route.endpoint.template, error=str(error))
                answer = {"error": {"code": 503, "message": str(error), "details": {}}}
            except Exception:
                bug = {"error": {"code": 500, "message": "internal error", "details": {}}}
                self._hub.answer(self._owner, reply, codec.encode(bug))
                raise
            self._hub.answer(self._owner, reply, codec.encode(answer))

        return receive


class MemoryBackplane:
    """One client of a hub."""

    def __init__(self, hub: MemoryHub, name: str, prefix: str = "hadare") -> None:
        self._hub = hub
        self._name = name
        self._bus = MemoryBus(hub, name, prefix)
        self._journal = MemoryJournal(hub, name, prefix)
        self._lost: asyncio.Event = asyncio.Event()

    @property
    def bus(self) -> MemoryBus:
        return self._bus

    @property
    def journal(self) -> MemoryJournal:
        return self._journal

    def table(self, records: Records[T]) -> MemoryTable[T]:
        return MemoryTable(self._hub, records)

    def objects(self, bucket: str) -> MemoryObjects:
        return MemoryObjects(self._hub, bucket)

    async def closed(self) -> str:
        await self._lost.wait()
        return "closed"

    async def close(self) -> None:
        mine = [inbox for inbox in self._hub.inboxes if inbox.owner == self._name]
        await _MemorySubscription(self._hub, mine).stop()
        self._lost.set()

    def crash(self) -> None:
        """What ``kill -9`` of the client does: nothing is drained, nothing is answered."""
        for inbox in [inbox for inbox in self._hub.inboxes if inbox.owner == self._name]:
            self._hub.shut(inbox)
            inbox.closed = True
            for task in inbox.tasks:
                task.cancel()
