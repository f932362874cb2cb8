"""What services see of the bus and of the state of record. Two forms exist: in memory, and over NATS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from hadare.model.events import Event, EventKind, LogLine, StoredEvent
from hadare.model.jobs import ObjectRef
from hadare.wire.subjects import Endpoint, Records, Topic

M = TypeVar("M")
Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """A record as it stands in its bucket. ``name`` is the key without the family; ``revision`` is for CAS."""

    name: str
    revision: int
    record: T


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """A watch's news: a record written (``entry``), deleted (``entry`` None), or, once, that all old ones are through.

    ``caught_up`` is true on the one marker that follows the records that existed when the watch began.
    """

    name: str
    entry: Entry[T] | None
    caught_up: bool = False


class Table(Protocol[T]):
    """The records of one type in a key-value bucket. A write that is not acknowledged raises ``Unavailable``."""

    async def get(self, name: str) -> Entry[T] | None: ...

    async def create(self, name: str, record: T) -> int:
        """Raises ``Conflict`` if the name exists."""
        ...

    async def update(self, name: str, record: T, revision: int) -> int:
        """Raises ``Conflict`` if the record is no longer at ``revision``."""
        ...

    async def put(self, name: str, record: T) -> int: ...

    async def delete(self, name: str, revision: int | None = None) -> None: ...

    async def entries(self) -> list[Entry[T]]:
        """All records, by name."""
        ...

    def watch(self) -> AsyncIterator[Change[T]]:
        """Every record that exists, a ``caught_up`` marker, then every change, in order; survives reconnects."""
        ...


class Objects(Protocol):
    """Immutable objects, named ``<label>.<sha256>``: who made them and what they hold.

    The label keeps equal contents of two makers apart, so that deleting one never takes the other away.
    """

    async def put(self, path: Path, label: str) -> ObjectRef:
        """Uploads a file; the same content under the same label twice is one object. Raises ``Unavailable``."""
        ...

    async def get(self, ref: ObjectRef, path: Path) -> None:
        """Downloads to ``path`` (atomically, hash and size checked). Raises ``Rejected`` (404), ``Unavailable``."""
        ...

    async def expect(self, label: str, folder: Path, most_bytes: int) -> Subscription:
        """From now on, small objects with this label, or one that begins with it and a dot, need not be read: they are
        heard while they are stored, up to so much in all, and kept in ``folder`` until ``get`` moves them elsewhere on
        its file system. Stop it when they are no longer wanted. Raises ``Unavailable``, ``OSError``."""
        ...

    async def delete(self, name: str) -> None:
        """Deleting what is not there is no error."""
        ...

    async def names(self) -> list[str]: ...

    async def find(self, name: str) -> ObjectRef | None:
        """What the object is, as whoever stored it has said; its content is checked by ``get``."""
        ...

    async def collect_garbage(self, min_age_s: float) -> int:
        """Removes what uploads that died have left behind, if it is older; says of how many."""
        ...


class Journal(Protocol):
    """The streams ``events`` and ``logs``: append-only, with a stated retention."""

    async def append(self, event: Event, message_id: str) -> None:
        """Stored exactly once per ``message_id`` (within the stream's duplicate window). Raises ``Unavailable``."""
        ...

    async def read(self, kind: EventKind, entity: str = "*", after: int = 0, limit: int = 1000) -> list[StoredEvent]:
        """Events with a sequence number above ``after``, oldest first; ``entity`` '*' means all of the kind."""
        ...

    async def log(self, line: LogLine) -> None: ...

    async def logs(self, job_id: str, after: int = 0, limit: int = 1000) -> list[tuple[int, LogLine]]:
        """Log lines of a job with their sequence numbers, oldest first."""
        ...

    def events_subject(self, kind: EventKind, entity: str) -> str:
        """The full subject on which new events of ``entity`` appear, for a plain subscription."""
        ...

    def logs_subject(self, job_id: str) -> str: ...


class Subscription(Protocol):
    async def stop(self) -> None:
        """No new messages; those in flight are finished first."""
        ...


class Unheard:
    """The ``expect`` of a store whose objects cannot be heard: all are read."""

    async def stop(self) -> None:
        """There is nothing to stop."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who serves, in the words of NATS micro (ADR-32): discovered by ``$SRV.PING|INFO|STATS``."""

    name: str
    version: str
    description: str
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Route(Generic[Q, A]):
    """An endpoint with its handler. ``group`` is the queue group: one replica of the group answers each question.

    ``concurrency`` bounds how many questions are handled at once; the others wait.
    """

    endpoint: Endpoint[Q, A]
    handler: Callable[[Q], Awaitable[A]]
    tokens: dict[str, str] = field(default_factory=dict)
    group: str = "q"
    concurrency: int = 64


class Bus(Protocol):
    """Publish, subscribe, ask and serve, typed. Trace context travels in the headers (W3C)."""

    @property
    def prefix(self) -> str: ...

    async def publish(self, topic: Topic[M], message: M, **tokens: str) -> None: ...

    async def subscribe(
        self, topic: Topic[M], handler: Callable[[M], Awaitable[None]], *, group: str = "", **tokens: str
    ) -> Subscription:
        """Tokens that are not given match anything. A message that does not decode is logged and dropped."""
        ...

    async def ask(self, endpoint: Endpoint[Q, A], question: Q, *, timeout_s: float, **tokens: str) -> A:
        """Raises ``Rejected`` as the responder said, ``Unavailable`` if nobody answered in time."""
        ...

    async def serve(self, identity: Identity, routes: Sequence[Route[Any, Any]]) -> Subscription:
        """``Rejected`` from a handler goes back to the asker; anything else is logged and answered as code 500."""
        ...


class Backplane(Protocol):
    """A connection to the cluster's bus and stores."""

    @property
    def bus(self) -> Bus: ...

    @property
    def journal(self) -> Journal: ...

    def table(self, records: Records[T]) -> Table[T]: ...

    def objects(self, bucket: str) -> Objects: ...

    async def closed(self) -> str:
        """Waits until the connection is lost for good and says why; then the process must end."""
        ...

    async def close(self) -> None:
        """Drains and closes."""
        ...
