"""The only writer's view of its records: every write is a compare-and-set on what it wrote, or read at its start.

A predecessor that wakes up, or whose write arrives late, finds another revision and ends; so does a successor that a
late write has overtaken, and is started again on what is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Generic, TypeVar

from hadare.model.errors import Broken, Conflict
from hadare.runtime.bus import Entry, Table
from hadare.runtime.shell import stored
from hadare.wire import codec

T = TypeVar("T")

_AT_ONCE = 64


class OwnTable(Generic[T]):
    """``load`` what is needed, then ``write`` and ``delete``. Every call raises ``Unavailable`` after long patience."""

    def __init__(self, table: Table[T], what: str) -> None:
        self._table = table
        self._what = what
        self._revisions: dict[str, int] = {}

    async def load(self, names: Iterable[str] | None = None) -> list[Entry[T]]:
        """The records of these names that exist; of all, if none are given."""
        if names is None:
            found = await stored(self._table.entries, f"read {self._what}")
        else:
            slots = asyncio.Semaphore(_AT_ONCE)
            read = await asyncio.gather(*(self._get(name, slots) for name in names))
            found = [entry for entry in read if entry is not None]
        self._revisions |= {entry.name: entry.revision for entry in found}
        return found

    async def write(self, name: str, record: T) -> None:
        """Raises ``Broken`` if somebody else has written the record since."""
        known = self._revisions.get(name)
        try:
            if known is None:
                revision = await stored(lambda: self._table.create(name, record), f"store {self._what} {name}")
            else:
                revision = await stored(lambda: self._table.update(name, record, known), f"store {self._what} {name}")
        except Conflict as conflict:
            revision = await self._own_revision(name, record, conflict)
        self._revisions[name] = revision

    async def delete(self, name: str) -> None:
        """Raises ``Broken`` if somebody else has written the record since it was last seen here."""
        known = self._revisions.pop(name, None)
        try:
            await stored(lambda: self._table.delete(name, known), f"delete {self._what} {name}")
        except Conflict as conflict:
            if await stored(lambda: self._table.get(name), f"read {self._what}") is not None:
                raise self._deposed(name) from conflict

    async def _get(self, name: str, slots: asyncio.Semaphore) -> Entry[T] | None:
        async with slots:
            return await stored(lambda: self._table.get(name), f"read {self._what} {name}")

    async def _own_revision(self, name: str, record: T, conflict: Conflict) -> int:
        """The write may be our own, unacknowledged and tried again; then what is stored is what was to be stored."""
        held = await stored(lambda: self._table.get(name), f"read {self._what}")
        if held is None or codec.encode(held.record) != codec.encode(record):
            raise self._deposed(name) from conflict
        return held.revision

    def _deposed(self, name: str) -> Broken:
        return Broken(f"another process has written {self._what} '{name}'")
