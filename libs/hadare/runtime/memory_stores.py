"""Tables, objects and the journal of the backplane in memory."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from hadare.model.errors import Conflict, Rejected, Unavailable
from hadare.model.events import Event, EventKind, LogLine, StoredEvent
from hadare.model.jobs import ObjectRef
from hadare.runtime.bus import Change, Entry, Unheard
from hadare.wire import codec
from hadare.wire.subjects import Records, fill

if TYPE_CHECKING:
    from hadare.runtime.memory import MemoryHub, StoredRecord

T = TypeVar("T")


def in_family(key: str, family: str) -> bool:
    return key == family or key.startswith(family + ".") if family else True


class MemoryTable(Generic[T]):
    """A ``Table`` of a hub's bucket."""

    def __init__(self, hub: MemoryHub, records: Records[T]) -> None:
        self._hub = hub
        self._records = records

    async def get(self, name: str) -> Entry[T] | None:
        await self._hub.turn()
        stored = self._bucket().get(self._records.key(name))
        return self._entry(name, stored) if stored else None

    async def create(self, name: str, record: T) -> int:
        await self._hub.turn()
        if self._records.key(name) in self._bucket():
            raise Conflict(f"{self._records.bucket}: '{name}' exists")
        return self._write(name, record)

    async def update(self, name: str, record: T, revision: int) -> int:
        await self._hub.turn()
        self._check(name, revision)
        return self._write(name, record)

    async def put(self, name: str, record: T) -> int:
        await self._hub.turn()
        return self._write(name, record)

    async def delete(self, name: str, revision: int | None = None) -> None:
        await self._hub.turn()
        if revision is not None:
            self._check(name, revision)
        self._hub.write(self._records.bucket, self._records.key(name), None)

    async def entries(self) -> list[Entry[T]]:
        await self._hub.turn()
        family = self._records.family
        keys = sorted(key for key in self._bucket() if in_family(key, family))
        return [self._entry(self._name(key), self._bucket()[key]) for key in keys]

    async def watch(self) -> AsyncIterator[Change[T]]:
        queue: asyncio.Queue[tuple[str, StoredRecord | None]] = asyncio.Queue()
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

    def _bucket(self) -> dict[str, StoredRecord]:
        return self._hub.buckets.setdefault(self._records.bucket, {})

    def _name(self, key: str) -> str:
        return key.removeprefix(self._records.family).lstrip(".") if self._records.family else key

    def _entry(self, name: str, stored: StoredRecord) -> Entry[T]:
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
        if len(data) != ref.bytes:
            raise Rejected(404, f"object '{ref.name}' has {len(data)} bytes, not {ref.bytes}")
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise Unavailable(f"object '{ref.name}' does not have the hash that was announced")
        path.write_bytes(data)  # noqa: ASYNC240 - as in put

    async def expect(self, label: str, folder: Path, most_bytes: int) -> Unheard:
        del label, folder, most_bytes
        return Unheard()

    async def delete(self, name: str) -> None:
        await asyncio.sleep(0)
        self._held.pop(name, None)

    async def names(self) -> list[str]:
        await asyncio.sleep(0)
        return sorted(self._held)

    async def find(self, name: str) -> ObjectRef | None:
        await asyncio.sleep(0)
        data = self._held.get(name)
        return None if data is None else ObjectRef(name=name, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))

    async def collect_garbage(self, min_age_s: float) -> int:
        """Nothing is ever stored in part."""
        del min_age_s
        await asyncio.sleep(0)
        return 0


class MemoryJournal:
    """``Journal`` of a hub."""

    def __init__(self, hub: MemoryHub, owner: str, prefix: str) -> None:
        self._hub = hub
        self._owner = owner
        self._prefix = prefix

    async def append(self, event: Event, message_id: str) -> None:
        await self._hub.turn()
        subject = f"{self._prefix}.{fill('event.v1.{kind}.{id}.{what}', _tokens(event))}"
        if message_id in self._hub.message_ids:
            return
        self._hub.message_ids.add(message_id)
        now = asyncio.get_running_loop().time()
        stored = StoredEvent(sequence=len(self._hub.events) + 1, at=now, event=event)
        self._hub.events.append(stored)
        self._hub.route(self._owner, subject, codec.encode(event))

    async def read(self, kind: EventKind, entity: str = "*", after: int = 0, limit: int = 1000) -> list[StoredEvent]:
        await self._hub.turn()
        wanted = [
            stored
            for stored in self._hub.events[after:]
            if stored.event.kind == kind and entity in ("*", stored.event.id)
        ]
        return wanted[:limit]

    async def log(self, line: LogLine) -> None:
        await self._hub.turn()
        self._hub.log_lines.append(line)

    async def logs(self, job_id: str, after: int = 0, limit: int = 1000) -> list[tuple[int, LogLine]]:
        await self._hub.turn()
        numbered = enumerate(self._hub.log_lines, start=1)
        return [(number, line) for number, line in numbered if line.job_id == job_id and number > after][:limit]

    def events_subject(self, kind: EventKind, entity: str) -> str:
        return f"{self._prefix}.event.v1.{kind}.{entity}.>"

    def logs_subject(self, job_id: str) -> str:
        return f"{self._prefix}.log.v1.{job_id}.>"


def _tokens(event: Event) -> dict[str, str]:
    return {"kind": event.kind, "id": event.id, "what": event.what}
