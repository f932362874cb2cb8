"""What the gateway knows of the other services' records: copies that their watches keep up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from hadare.machines.admission import NameClaim
from hadare.model.devices import NodeInventory, NodeStatus, NodeWish
from hadare.model.jobs import JobProgress, JobRecord
from hadare.model.leases import StepReport
from hadare.model.plans import PriceBook
from hadare.model.rounds import NodeLeases, RoundHead
from hadare.runtime.bus import Backplane, Entry, Table
from hadare.wire import api, subjects
from hadare_gateway.rounds import Rounds

T = TypeVar("T")
V = TypeVar("V")

_MAX_REPORTS = 20_000


class View(Generic[T, V]):
    """What is kept of each record of a table, by name."""

    def __init__(self, table: Table[T], keep: Callable[[Entry[T]], V]) -> None:
        self._table = table
        self._keep = keep
        self.records: dict[str, V] = {}
        self.caught_up = asyncio.Event()

    def get(self, name: str) -> V | None:
        return self.records.get(name)

    async def follow(self) -> None:
        """Runs until it is cancelled."""
        async for change in self._table.watch():
            if change.caught_up:
                self.caught_up.set()
            elif change.entry is None:
                self.records.pop(change.name, None)
            else:
                self.records[change.name] = self._keep(change.entry)


class Views:
    """All that the gateway watches. What it wrote itself it reads from the table: then it is sure to see it."""

    def __init__(self, backplane: Backplane) -> None:
        def whole(records: subjects.Records[T]) -> View[T, T]:
            return View(backplane.table(records), _record)

        self.jobs: View[JobRecord, JobRecord] = whole(subjects.JOBS)
        self.requests = View(backplane.table(api.REQUESTS), lambda entry: entry.record.record.job_id)
        self.names: View[NameClaim, NameClaim] = whole(api.NAMES)
        self.progress: View[JobProgress, JobProgress] = whole(subjects.PROGRESS)
        self.nodes: View[NodeInventory, NodeInventory] = whole(subjects.NODES)
        self.wishes: View[NodeWish, NodeWish] = whole(subjects.NODE_WISHES)
        self.states: View[NodeStatus, NodeStatus] = whole(subjects.NODE_STATES)
        self.prices: View[PriceBook, PriceBook] = whole(subjects.PRICES)
        self.heads: View[RoundHead, RoundHead] = whole(subjects.ROUND_HEAD)
        self.leases: View[NodeLeases, NodeLeases] = whole(subjects.ROUND_LEASES)
        self.rounds = Rounds(backplane.table(subjects.ROUND_PAGES))
        self.reports: dict[tuple[str, int], StepReport] = {}

    @property
    def head(self) -> RoundHead | None:
        return next(iter(self.heads.records.values()), None)

    @property
    def book(self) -> PriceBook | None:
        return max(self.prices.records.values(), key=lambda book: book.round, default=None)

    def followers(self) -> list[Coroutine[Any, Any, None]]:
        """One consumer a family of records."""
        return [view.follow() for view in self._watched()]

    async def caught_up(self) -> None:
        """Waits until everything that existed at the start is known."""
        for view in self._watched():
            await view.caught_up.wait()

    async def on_report(self, report: StepReport) -> None:
        """Keeps the last report of each fork of the newest round; reports of older ones are forgotten."""
        if report.key.kind != "train":
            return
        known = self.reports.get((report.key.job_id, report.key.fork))
        if known and (known.key.round, known.key.attempt) > (report.key.round, report.key.attempt):
            return
        if len(self.reports) >= _MAX_REPORTS:
            newest = max(kept.key.round for kept in self.reports.values())
            self.reports = {key: kept for key, kept in self.reports.items() if kept.key.round == newest}
        if len(self.reports) < _MAX_REPORTS:
            self.reports[report.key.job_id, report.key.fork] = report

    def _watched(self) -> list[View[Any, Any] | Rounds]:
        jobs: list[View[Any, Any] | Rounds] = [self.jobs, self.requests, self.names, self.progress]
        return [*jobs, self.nodes, self.wishes, self.states, self.prices, self.heads, self.leases, self.rounds]


def _record(entry: Entry[T]) -> T:
    return entry.record
