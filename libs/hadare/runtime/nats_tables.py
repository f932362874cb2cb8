"""Tables over JetStream key-value buckets: compare-and-set that survives lost acknowledgements, complete listings,
and watches that resume within seconds.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Generic, TypeVar

import structlog

from hadare.model.errors import Broken, Conflict, Rejected
from hadare.runtime import telemetry
from hadare.runtime.bus import Change, Entry
from hadare.runtime.nats_link import Link
from hadare.runtime.nats_reader import Reader, latest_of
from hadare.runtime.nats_stored import Stored, last_of, subjects_of
from hadare.runtime.nats_streams import Names
from hadare.wire import codec
from hadare.wire.subjects import Records

T = TypeVar("T")

log = structlog.get_logger("hadare.nats")

_DELETED = ("DEL", "PURGE")
_TRIES = 5


class NatsTable(Generic[T]):
    """A ``Table`` of records of one type.

    In lists and watches a record that does not decode is logged and left out: one bad record must not stop a service.
    """

    def __init__(self, link: Link, records: Records[T]) -> None:
        self._link = link
        self._records = records
        names = Names(link.prefix)
        self._stream = names.kv_stream(records.bucket)
        self._root = f"$KV.{names.kv(records.bucket)}."
        base = self._root + records.family
        self._patterns = [base, f"{base}.>"] if records.family else [f"{self._root}>"]

    async def get(self, name: str) -> Entry[T] | None:
        stored = await self._read(self._subject(name))
        if stored is None or _is_deleted(stored):
            return None
        try:
            return self._entry(name, stored)
        except Rejected as fault:
            raise Broken(f"{self._records.bucket}: '{name}' does not decode: {fault.message}") from fault

    async def create(self, name: str, record: T) -> int:
        subject = self._subject(name)
        data = codec.encode(record)
        last = 0
        for _ in range(_TRIES):
            try:
                return await self._write(subject, data, last)
            except Conflict:
                held = await self._read(subject)
                if held is not None and not _is_deleted(held):
                    raise Conflict(f"{self._records.bucket}: '{name}' exists") from None
                last = held.sequence if held else 0  # a deleted key leaves a marker, and its revision counts
        raise Conflict(f"{self._records.bucket}: '{name}' is being written by others")

    async def update(self, name: str, record: T, revision: int) -> int:
        try:
            return await self._write(self._subject(name), codec.encode(record), revision)
        except Conflict:
            raise Conflict(f"{self._records.bucket}: '{name}' is no longer at revision {revision}") from None

    async def put(self, name: str, record: T) -> int:
        return await self._write(self._subject(name), codec.encode(record), None)

    async def delete(self, name: str, revision: int | None = None) -> None:
        try:
            await self._write(self._subject(name), b"", revision, {"KV-Operation": "DEL"})
        except Conflict:
            raise Conflict(f"{self._records.bucket}: '{name}' is no longer at revision {revision}") from None

    async def entries(self) -> list[Entry[T]]:
        latest = await latest_of(self._link, self._stream, self._patterns)
        changes = [change for stored in latest if (change := self._change(stored, caught_up=False)) is not None]
        return sorted((change.entry for change in changes if change.entry), key=lambda entry: entry.name)

    async def watch(self) -> AsyncIterator[Change[T]]:
        missing: set[str] = set()
        for pattern in self._patterns:
            missing |= await subjects_of(self._link, self._stream, pattern)
        async with Reader(self._link, self._stream, self._patterns, latest=True, patience_s=None) as reader:
            caught_up = not missing
            if caught_up:
                yield Change("", None, caught_up=True)
            while True:
                stored = await reader.next()
                if stored is not None:
                    missing.discard(stored.subject)
                    change = self._change(stored, caught_up)
                    if change is not None:
                        yield change
                if not caught_up and (not missing or stored is None):
                    caught_up = True
                    yield Change("", None, caught_up=True)

    def _change(self, stored: Stored, caught_up: bool) -> Change[T] | None:
        name = self._name(stored.subject)
        if _is_deleted(stored):
            return Change(name, None) if caught_up else None
        try:
            return Change(name, self._entry(name, stored))
        except Rejected as fault:
            log.error("record does not decode", bucket=self._records.bucket, name=name, fault=fault.message)
            return None

    def _subject(self, name: str) -> str:
        return self._root + self._records.key(name)

    def _name(self, subject: str) -> str:
        key = subject.removeprefix(self._root)
        return key.removeprefix(self._records.family).lstrip(".") if self._records.family else key

    def _entry(self, name: str, stored: Stored) -> Entry[T]:
        return Entry(name, stored.sequence, codec.decode(stored.data, self._records.record))

    async def _write(
        self, subject: str, data: bytes, last: int | None, headers: Mapping[str, str] | None = None
    ) -> int:
        operation = uuid.uuid4().hex
        lines = telemetry.inject(dict(headers or {}))
        try:
            return await self._link.store(subject, data, message_id=operation, headers=lines, last=last)
        except Conflict:
            held = await self._read(subject)
            if held is not None and held.headers.get("Nats-Msg-Id") == operation:
                return held.sequence  # the write whose acknowledgement was lost was our own
            raise

    async def _read(self, subject: str) -> Stored | None:
        return await last_of(self._link, self._stream, subject)


def _is_deleted(stored: Stored) -> bool:
    return stored.headers.get("KV-Operation") in _DELETED or "Nats-Marker-Reason" in stored.headers
