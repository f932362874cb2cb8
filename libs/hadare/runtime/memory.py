"""The backplane in memory: same contracts, same codec, one process. Messages queue; ``publish`` delivers nothing.

``MemoryHub.network`` decides what becomes of each message (delays of its copies; none: it is lost), so that a test
can be the adversary that a real network is.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog

from hadare.model.errors import Conflict, HadareError, Rejected, Unavailable
from hadare.model.events import Event, EventKind, LogLine, StoredEvent
from hadare.model.jobs import ObjectRef
from hadare.runtime.bus import Change, Entry, Identity, Route
from hadare.wire import codec
from hadare.wire.subjects import Endpoint, Records, Topic

M = TypeVar("M")
Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")

Network = Callable[[str, bytes], Sequence[float]]
"""(subject, data) -> the delay in seconds of each copy that arrives; empty: the message is lost."""

log = structlog.get_logger("hadare.memory")


def perfect_network(_subject: str, _data: bytes) -> Sequence[float]:
    return (0.0,)


@dataclass
class _Inbox:
    """A subscription or a served endpoint: a pattern, a queue, and the tasks that empty it."""

    pattern: tuple[str, ...]
    group: str
    owner: str
    queue: asyncio.Queue[tuple[bytes, asyncio.Future[bytes] | None]] = field(default_factory=asyncio.Queue)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def matches(self, subject: str) -> bool:
        parts = subject.split(".")
        return len(parts) == len(self.pattern) and all(
            want in ("*", got) for want, got in zip(self.pattern, parts, strict=True)
        )


@dataclass(frozen=True)
class _Stored:
    revision: int
    data: bytes


class MemoryHub:
    """The "server": what survives when clients crash."""

    def __init__(self, network: Network = perfect_network) -> None:
        self.network = network
        self.buckets: dict[str, dict[str, _Stored]] = {}
        self.objects: dict[str, dict[str, bytes]] = {}
        self.events: list[StoredEvent] = []
        self.log_lines: list[LogLine] = []
        self.message_ids: set[str] = set()
        self.inboxes: list[_Inbox] = []
        self.watchers: list[tuple[str, str, asyncio.Queue[tuple[str, _Stored | None]]]] = []
        self.failures: list[BaseException] = []
        """Bugs in handlers; a test that expects none asserts that this is empty."""
        self._revisions = itertools.count(1)
        self._turns = itertools.count()

    def connect(self, name: str) -> MemoryBackplane:
        return MemoryBackplane(self, name)

    def write(self, bucket: str, key: str, data: bytes | None) -> int:
        """A new revision of a key (``None``: deleted), announced to the watchers of its bucket."""
        stored = None if data is None else _Stored(next(self._revisions), data)
        records = self.buckets.setdefault(bucket, {})
        if stored is None:
            records.pop(key, None)
        else:
            records[key] = stored
        for watched, family, queue in self.watchers:
            if watched == bucket and in_family(key, family):
                queue.put_nowait((key, stored))
        return stored.revision if stored else next(self._revisions)

    def route(self, subject: str, data: bytes, reply: asyncio.Future[bytes] | None = None) -> int:
        """Queues the message for every plain subscription and for one member of each group; says for how many."""
        targets = [inbox for inbox in self.inboxes if inbox.matches(subject)]
        plain = [inbox for inbox in targets if not inbox.group]
        turn = next(self._turns)
        for group in sorted({inbox.group for inbox in targets if inbox.group}):
            members = [inbox for inbox in targets if inbox.group == group]
            plain.append(members[turn % len(members)])
        loop = asyncio.get_running_loop()
        for inbox in plain:
            for delay in self.network(subject, data):
                loop.call_later(delay, inbox.queue.put_nowait, (data, reply))
        return len(plain)


def in_family(key: str, family: str) -> bool:
    return key == family or key.startswith(family + ".") if family else True


class MemoryTable(Generic[T]):
    """A ``Table`` of a hub's bucket."""

    def __init__(self, hub: MemoryHub, records: Records[T]) -> None:
        self._hub = hub
        self._records = records

    async def get(self, name: str) -> Entry[T] | None:
        await asyncio.sleep(0)
        stored = self._bucket().get(self._records.key(name))
        return self._entry(name, stored) if stored else None

    async def create(self, name: str, record: T) -> int:
        await asyncio.sleep(0)
        if self._records.key(name) in self._bucket():
            raise Conflict(f"{self._records.bucket}: '{name}' exists")
        return self._write(name, record)

    async def update(self, name: str, record: T, revision: int) -> int:
        await asyncio.sleep(0)
        self._check(name, revision)
        return self._write(name, record)

    async def put(self, name: str, record: T) -> int:
        await asyncio.sleep(0)
        return self._write(name, record)

    async def delete(self, name: str, revision: int | None = None) -> None:
        await asyncio.sleep(0)
        if revision is not None:
            self._check(name, revision)
        self._hub.write(self._records.bucket, self._records.key(name), None)

    async def entries(self) -> list[Entry[T]]:
        await asyncio.sleep(0)
        family = self._records.family
        keys = sorted(key for key in self._bucket() if in_family(key, family))
        return [self._entry(self._name(key), self._bucket()[key]) for key in keys]

    async def watch(self) -> AsyncIterator[Change[T]]:
        queue: asyncio.Queue[tuple[str, _Stored | None]] = asyncio.Queue()
        watcher = (self._records.bucket, self._records.family, queue)
        existing = await self.entries()
        self._hub.watchers.append(watcher)
        try:
            for entry in existing:
                yield Change(entry.name, entry)
            yield Change("", None, caught_up=True)
            while True:
                key, stored = await queue.get()
                yield Change(self._name(key), self._entry(self._name(key), stored) if stored else None)
        finally:
            self._hub.watchers.remove(watcher)

    def _bucket(self) -> dict[str, _Stored]:
        return self._hub.buckets.setdefault(self._records.bucket, {})

    def _name(self, key: str) -> str:
        return key.removeprefix(self._records.family).lstrip(".") if self._records.family else key

    def _entry(self, name: str, stored: _Stored) -> Entry[T]:
        return Entry(name, stored.revision, codec.decode(stored.data, self._records.record))

    def _check(self, name: str, revision: int) -> None:
        stored = self._bucket().get(self._records.key(name))
        if (stored.revision if stored else 0) != revision:
            raise Conflict(f"{self._records.bucket}: '{name}' is no longer at revision {revision}")

    def _write(self, name: str, record: T) -> int:
        return self._hub.write(self._records.bucket, self._records.key(name), codec.encode(record))


class MemoryObjects:
    """``Objects`` of a hub."""

    def __init__(self, hub: MemoryHub, bucket: str) -> None:
        self._held = hub.objects.setdefault(bucket, {})

    async def put(self, path: Path, label: str) -> ObjectRef:
        data = path.read_bytes()  # noqa: ASYNC240 - tests only, small files, and a thread would break virtual time
        digest = hashlib.sha256(data).hexdigest()
        name = f"{label}.{digest}"
        self._held[name] = data
        await asyncio.sleep(0)
        return ObjectRef(name=name, sha256=digest, bytes=len(data))

    async def get(self, ref: ObjectRef, path: Path) -> None:
        await asyncio.sleep(0)
        if ref.name not in self._held:
            raise Rejected(404, f"there is no object '{ref.name}'")
        data = self._held[ref.name]
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise Unavailable(f"object '{ref.name}' does not have the hash that was announced")
        path.write_bytes(data)  # noqa: ASYNC240 - as in put

    async def delete(self, name: str) -> None:
        await asyncio.sleep(0)
        self._held.pop(name, None)

    async def names(self) -> list[str]:
        await asyncio.sleep(0)
        return sorted(self._held)


class MemoryJournal:
    """``Journal`` of a hub."""

    def __init__(self, hub: MemoryHub, prefix: str) -> None:
        self._hub = hub
        self._prefix = prefix

    async def append(self, event: Event, message_id: str) -> None:
        await asyncio.sleep(0)
        if message_id in self._hub.message_ids:
            return
        self._hub.message_ids.add(message_id)
        now = asyncio.get_running_loop().time()
        stored = StoredEvent(sequence=len(self._hub.events) + 1, at=now, event=event)
        self._hub.events.append(stored)
        subject = self.events_subject(event.kind, event.id).replace(">", event.what)
        self._hub.route(subject, codec.encode(event))

    async def read(self, kind: EventKind, entity: str = "*", after: int = 0, limit: int = 1000) -> list[StoredEvent]:
        await asyncio.sleep(0)
        wanted = [
            stored
            for stored in self._hub.events[after:]
            if stored.event.kind == kind and entity in ("*", stored.event.id)
        ]
        return wanted[:limit]

    async def log(self, line: LogLine) -> None:
        await asyncio.sleep(0)
        self._hub.log_lines.append(line)

    async def logs(self, job_id: str, after: int = 0, limit: int = 1000) -> list[tuple[int, LogLine]]:
        await asyncio.sleep(0)
        numbered = enumerate(self._hub.log_lines, start=1)
        return [(number, line) for number, line in numbered if line.job_id == job_id and number > after][:limit]

    def events_subject(self, kind: EventKind, entity: str) -> str:
        return f"{self._prefix}.event.v1.{kind}.{entity}.>"

    def logs_subject(self, job_id: str) -> str:
        return f"{self._prefix}.log.v1.{job_id}.>"


class _MemorySubscription:
    def __init__(self, hub: MemoryHub, inboxes: Sequence[_Inbox]) -> None:
        self._hub = hub
        self._inboxes = inboxes

    async def stop(self) -> None:
        for inbox in self._inboxes:
            if inbox in self._hub.inboxes:
                self._hub.inboxes.remove(inbox)
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
        self._hub.route(f"{self._prefix}.{topic.subject(**tokens)}", codec.encode(message))
        await asyncio.sleep(0)

    async def subscribe(
        self, topic: Topic[M], handler: Callable[[M], Awaitable[None]], *, group: str = "", **tokens: str
    ) -> _MemorySubscription:
        async def receive(data: bytes, _reply: asyncio.Future[bytes] | None) -> None:
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
        if not self._hub.route(subject, codec.encode(question), reply):
            raise Unavailable(f"nobody serves {endpoint.subject(**tokens)}")
        try:
            async with asyncio.timeout(timeout_s):
                answer = codec.unpack(await reply)
        except TimeoutError as error:
            raise Unavailable(f"no answer from {endpoint.subject(**tokens)} in {timeout_s:g} s") from error
        if "error" in answer:
            fault = answer["error"]
            raise Rejected(fault["code"], fault["message"], fault["details"])
        return codec.convert(answer["answer"], endpoint.answer)

    async def serve(self, identity: Identity, routes: Sequence[Route[Any, Any]]) -> _MemorySubscription:
        inboxes = []
        for route in routes:
            receive = _responder(identity, route)
            inboxes.append(self._open(route.endpoint.subject(**route.tokens), route.group, receive, route.concurrency))
        await asyncio.sleep(0)
        return _MemorySubscription(self._hub, inboxes)

    def _open(
        self,
        subject: str,
        group: str,
        receive: Callable[[bytes, asyncio.Future[bytes] | None], Awaitable[None]],
        workers: int,
    ) -> _Inbox:
        inbox = _Inbox(tuple(f"{self._prefix}.{subject}".split(".")), group, self._owner)

        async def work() -> None:
            while True:
                data, reply = await inbox.queue.get()
                try:
                    await receive(data, reply)
                except Exception as bug:
                    self._hub.failures.append(bug)
                    log.exception("handler failed", owner=self._owner, subject=subject)
                finally:
                    inbox.queue.task_done()

        inbox.tasks = [asyncio.create_task(work(), name=f"{self._owner}:{subject}") for _ in range(workers)]
        self._hub.inboxes.append(inbox)
        return inbox


def _responder(
    identity: Identity, route: Route[Any, Any]
) -> Callable[[bytes, asyncio.Future[bytes] | None], Awaitable[None]]:
    async def receive(data: bytes, reply: asyncio.Future[bytes] | None) -> None:
        try:
            answer = {"answer": codec.to_plain(await route.handler(codec.decode(data, route.endpoint.question)))}
        except Rejected as fault:
            answer = {"error": {"code": fault.code, "message": fault.message, "details": fault.details}}
        except HadareError as error:
            log.warning("handler failed", service=identity.name, endpoint=route.endpoint.template, error=str(error))
            answer = {"error": {"code": 503, "message": str(error), "details": {}}}
        if reply is not None and not reply.done():
            reply.set_result(codec.encode(answer))

    return receive


class MemoryBackplane:
    """One client of a hub."""

    def __init__(self, hub: MemoryHub, name: str, prefix: str = "hadare") -> None:
        self._hub = hub
        self._name = name
        self._bus = MemoryBus(hub, name, prefix)
        self._journal = MemoryJournal(hub, prefix)
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
            self._hub.inboxes.remove(inbox)
            for task in inbox.tasks:
                task.cancel()
