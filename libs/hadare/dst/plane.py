"""One process's connection to the cluster, in the adversary's hands: it can be cut, frozen, or killed at any effect."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from hadare.dst.adversary import GIVE_UP_S, Adversary
from hadare.model.errors import HadareError, Rejected, Unavailable
from hadare.model.events import Event, EventKind, LogLine, StoredEvent
from hadare.model.jobs import ObjectRef
from hadare.runtime.bus import Bus, Change, Entry, Identity, Route, Subscription, Table, Unheard
from hadare.runtime.memory import MemoryBackplane, MemoryHub
from hadare.wire.subjects import WEIGHTS, Endpoint, Records, Topic

M = TypeVar("M")
Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")

_POLL_S = 0.5


class SimPlane:
    """A ``Backplane``. What a process does to the world passes through ``effect``, what it hears through ``awake``."""

    def __init__(self, hub: MemoryHub, name: str, adversary: Adversary, background: set[asyncio.Task[Any]]) -> None:
        self.name = name
        self.hub = hub
        self.adversary = adversary
        self.dead = False
        self.on_death: Callable[[], None] = _nothing
        self._background = background
        self._inner: MemoryBackplane = hub.connect(name)
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._effects_left: int | None = None
        self._dies = True

    # --- the adversary's side ---

    def freeze(self) -> None:
        self._thawed.clear()

    def thaw(self) -> None:
        """Also takes back a ``freeze_after`` that has not come about."""
        if not self._dies:
            self._effects_left = None
        self._thawed.set()

    @property
    def frozen(self) -> bool:
        return not self._thawed.is_set()

    @property
    def halted(self) -> bool:
        """Whether ``awake`` has to be waited for: nearly never, and it is asked at every access."""
        return self.dead or not self._thawed.is_set()

    def die_after(self, effects: int) -> None:
        """The process is killed just before its ``effects + 1``-th effect from now."""
        self._effects_left, self._dies = effects, True

    def freeze_after(self, effects: int) -> None:
        """The same, but it is frozen."""
        self._effects_left, self._dies = effects, False

    def crash(self) -> None:
        """Nothing of the process reaches the world from now on."""
        self.dead = True
        self._inner.crash()

    async def awake(self) -> None:
        """Returns while the process runs; a dead one waits for its cancellation."""
        if not self._thawed.is_set():
            await self._thawed.wait()
        if self.dead:
            await asyncio.Event().wait()

    async def effect(self) -> None:
        """Before anything that others can see."""
        if self.halted:
            await self.awake()
        if self._effects_left is None:
            return
        self._effects_left -= 1
        if self._effects_left < 0:
            self._effects_left = None
            if self._dies:
                self.crash()
                self.on_death()
            else:
                self.freeze()
            await self.awake()

    async def write(self, write: Callable[[], Awaitable[T]]) -> T:
        await self.effect()
        fate = self.adversary.write(self.name)
        if fate.acknowledged:
            await asyncio.sleep(self.adversary.latency_s())
            done = await write()
            if self.halted:
                await self.awake()
            return done
        if fate.lands_after_s is not None:
            task = asyncio.get_running_loop().create_task(_land(write, fate.lands_after_s))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
        await asyncio.sleep(GIVE_UP_S)
        await self.awake()
        raise Unavailable("the store did not acknowledge the write")

    async def read(self, read: Callable[[], Awaitable[T]]) -> T:
        if self.halted:
            await self.awake()
        if not self.adversary.read(self.name):
            await asyncio.sleep(GIVE_UP_S)
            raise Unavailable("the store does not answer")
        found = await read()
        if self.halted:
            await self.awake()
        return found

    # --- the process's side ---

    @property
    def bus(self) -> SimBus:
        return SimBus(self, self._inner.bus)

    @property
    def journal(self) -> SimJournal:
        return SimJournal(self, self._inner)

    def table(self, records: Records[T]) -> SimTable[T]:
        return SimTable(self, self._inner.table(records))

    def objects(self, bucket: str) -> SimObjects:
        return SimObjects(self, self.hub, bucket)

    async def closed(self) -> str:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def close(self) -> None:
        await self._inner.close()


class SimBus:
    """``Bus`` of a plane; loss, delay and doubling are the hub's."""

    def __init__(self, plane: SimPlane, inner: Bus) -> None:
        self._plane = plane
        self._inner = inner

    @property
    def prefix(self) -> str:
        return self._inner.prefix

    async def publish(self, topic: Topic[M], message: M, **tokens: str) -> None:
        await self._plane.effect()
        await self._inner.publish(topic, message, **tokens)

    async def subscribe(
        self, topic: Topic[M], handler: Callable[[M], Awaitable[None]], *, group: str = "", **tokens: str
    ) -> Subscription:
        async def hear(message: M) -> None:
            if self._plane.halted:
                await self._plane.awake()
            await handler(message)

        return await self._inner.subscribe(topic, hear, group=group, **tokens)

    async def ask(self, endpoint: Endpoint[Q, A], question: Q, *, timeout_s: float, **tokens: str) -> A:
        await self._plane.effect()
        try:
            answer = await self._inner.ask(endpoint, question, timeout_s=timeout_s, **tokens)
        except HadareError:
            await self._plane.awake()
            raise
        await self._plane.awake()
        return answer

    async def serve(self, identity: Identity, routes: Sequence[Route[Any, Any]]) -> Subscription:
        return await self._inner.serve(identity, [replace(route, handler=self._guard(route)) for route in routes])

    def _guard(self, route: Route[Any, Any]) -> Callable[[Any], Awaitable[Any]]:
        async def handle(question: Any) -> Any:
            await self._plane.awake()
            try:
                answer = await route.handler(question)
            except HadareError:
                await self._plane.effect()
                raise
            await self._plane.effect()
            return answer

        return handle


class SimTable(Generic[T]):
    """``Table`` of a plane."""

    def __init__(self, plane: SimPlane, inner: Table[T]) -> None:
        self._plane = plane
        self._inner = inner

    async def get(self, name: str) -> Entry[T] | None:
        return await self._plane.read(lambda: self._inner.get(name))

    async def create(self, name: str, record: T) -> int:
        return await self._plane.write(lambda: self._inner.create(name, record))

    async def update(self, name: str, record: T, revision: int) -> int:
        return await self._plane.write(lambda: self._inner.update(name, record, revision))

    async def put(self, name: str, record: T) -> int:
        return await self._plane.write(lambda: self._inner.put(name, record))

    async def delete(self, name: str, revision: int | None = None) -> None:
        await self._plane.write(lambda: self._inner.delete(name, revision))

    async def entries(self) -> list[Entry[T]]:
        return await self._plane.read(self._inner.entries)

    async def watch(self) -> AsyncIterator[Change[T]]:
        async for change in self._inner.watch():
            lag = self._plane.adversary.lag_s()
            if lag:
                await asyncio.sleep(lag)
            while not self._plane.adversary.reaches_bus(self._plane.name):  # noqa: ASYNC110 - a fault has no event
                await asyncio.sleep(_POLL_S)
            if self._plane.halted:
                await self._plane.awake()
            yield change


class SimJournal:
    """``Journal`` of a plane."""

    def __init__(self, plane: SimPlane, inner: MemoryBackplane) -> None:
        self._plane = plane
        self._inner = inner.journal

    async def append(self, event: Event, message_id: str) -> None:
        await self._plane.write(lambda: self._inner.append(event, message_id))

    async def read(self, kind: EventKind, entity: str = "*", after: int = 0, limit: int = 1000) -> list[StoredEvent]:
        return await self._plane.read(lambda: self._inner.read(kind, entity, after, limit))

    async def log(self, line: LogLine) -> None:
        await self._plane.write(lambda: self._inner.log(line))

    async def logs(self, job_id: str, after: int = 0, limit: int = 1000) -> list[tuple[int, LogLine]]:
        return await self._plane.read(lambda: self._inner.logs(job_id, after, limit))

    def events_subject(self, kind: EventKind, entity: str) -> str:
        return self._inner.events_subject(kind, entity)

    def logs_subject(self, job_id: str) -> str:
        return self._inner.logs_subject(job_id)


class SimObjects:
    """``Objects`` of a plane, and the same without files."""

    def __init__(self, plane: SimPlane, hub: MemoryHub, bucket: str = WEIGHTS) -> None:
        self._plane = plane
        self._held = hub.objects.setdefault(bucket, {})

    async def put_bytes(self, data: bytes, label: str) -> ObjectRef:
        digest = hashlib.sha256(data).hexdigest()
        ref = ObjectRef(name=f"{label}.{digest}", sha256=digest, bytes=len(data))

        async def put() -> ObjectRef:
            await asyncio.sleep(0)
            self._held[ref.name] = data
            return ref

        return await self._plane.write(put)

    async def get_bytes(self, ref: ObjectRef) -> bytes:
        """Raises ``Rejected`` (404)."""

        async def get() -> bytes:
            await asyncio.sleep(0)
            if ref.name not in self._held:
                raise Rejected(404, f"there is no object '{ref.name}'")
            return self._held[ref.name]

        return await self._plane.read(get)

    async def put(self, path: Path, label: str) -> ObjectRef:
        return await self.put_bytes(path.read_bytes(), label)  # noqa: ASYNC240 - virtual time bears no thread

    async def get(self, ref: ObjectRef, path: Path) -> None:
        path.write_bytes(await self.get_bytes(ref))  # noqa: ASYNC240 - as in put

    async def expect(self, label: str, folder: Path, most_bytes: int) -> Unheard:
        del label, folder, most_bytes
        return Unheard()

    async def delete(self, name: str) -> None:
        async def delete() -> None:
            await asyncio.sleep(0)
            self._held.pop(name, None)

        await self._plane.write(delete)

    async def names(self) -> list[str]:
        async def names() -> list[str]:
            await asyncio.sleep(0)
            return sorted(self._held)

        return await self._plane.read(names)

    async def find(self, name: str) -> ObjectRef | None:
        async def find() -> ObjectRef | None:
            await asyncio.sleep(0)
            data = self._held.get(name)
            digest = hashlib.sha256(data or b"").hexdigest()
            return None if data is None else ObjectRef(name=name, sha256=digest, bytes=len(data))

        return await self._plane.read(find)

    async def collect_garbage(self, min_age_s: float) -> int:
        del min_age_s
        await asyncio.sleep(0)
        return 0


async def _land(write: Callable[[], Awaitable[Any]], after_s: float) -> None:
    """A write whose writer has given up on it, or died."""
    await asyncio.sleep(after_s)
    with suppress(HadareError):
        await write()


def _nothing() -> None:
    pass
