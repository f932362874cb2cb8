"""Pricing's shell: watches the cluster, answers quotes, stores and publishes the book. It decides nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TypeVar

import structlog

from hadare import __version__
from hadare.machines import prices
from hadare.machines.cluster import ClusterView
from hadare.machines.prices import PriceMachine, QuoteAsked, Recovered
from hadare.model.devices import NodeInventory, NodeStatus
from hadare.model.errors import Rejected, Unavailable
from hadare.model.jobs import JobProgress, JobRecord
from hadare.model.plans import GangMember, PriceBook
from hadare.model.rounds import Done, QuoteRequest, Taken
from hadare.runtime.bus import Backplane, Change, Identity, Route
from hadare.runtime.shell import follow
from hadare.runtime.telemetry import span, traceparent
from hadare.wire import subjects

T = TypeVar("T")

log = structlog.get_logger("hadare.pricing")

BOOK = "book"
"""The key of the newest book in KV ``prices``."""


class Pricing:
    """Runs the price machine on a backplane."""

    def __init__(self, backplane: Backplane, horizon_rounds: int | None = None) -> None:
        self._backplane = backplane
        self._bus = backplane.bus
        self._books = backplane.table(subjects.PRICES)
        self._horizon = horizon_rounds
        self._machine = PriceMachine()
        self._cluster = ClusterView()
        self._states: dict[str, NodeStatus] = {}
        self._priced: set[str] = set()
        self._caught_up = [asyncio.Event() for _ in range(4)]

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            table = self._backplane.table
            jobs, progress, nodes, states = self._caught_up
            tasks.create_task(follow(table(subjects.JOBS), self._see_job, jobs.set))
            tasks.create_task(follow(table(subjects.PROGRESS), self._see_progress, progress.set))
            tasks.create_task(follow(table(subjects.NODES), self._see_node, nodes.set))
            tasks.create_task(follow(table(subjects.NODE_STATES), self._see_state, states.set))
            stored = await self._books.get(BOOK)
            self._machine.handle(Recovered(at=self._now(), book=stored.record if stored else None))
            for caught_up in self._caught_up:
                await caught_up.wait()
            serving = await self._bus.serve(
                Identity("hadare-pricing", __version__, "dual prices of every node and device type"),
                [
                    Route(subjects.QUOTE, self._on_quote, concurrency=1),
                    Route(subjects.TAKEN, self._on_taken, concurrency=1),
                ],
            )
            log.info("pricing is up", recovered_round=stored.record.round if stored else None)
            try:
                await asyncio.Event().wait()
            finally:
                await serving.stop()

    # --- what arrives ---

    def _see_job(self, change: Change[JobRecord]) -> None:
        _set(self._cluster.records, change)

    def _see_progress(self, change: Change[JobProgress]) -> None:
        _set(self._cluster.progress, change)

    def _see_node(self, change: Change[NodeInventory]) -> None:
        _set(self._cluster.inventories, change)

    def _see_state(self, change: Change[NodeStatus]) -> None:
        _set(self._states, change)

    async def _on_quote(self, request: QuoteRequest) -> PriceBook:
        self._trace_new_jobs(request.arrivals)
        self._cluster.round = request.round
        event = QuoteAsked(
            at=self._now(),
            round=request.round,
            now_s=request.now_s,
            round_s=request.round_s,
            nodes=self._cluster.nodes(self._states),
            jobs=self._cluster.bidders(request.arrivals, request.utility),
            horizon=self._horizon,
            revision=request.revision,
        )
        book = await self._perform(self._machine.handle(event))
        if book is None:
            raise Unavailable("the price machine gave no book")
        return book

    async def _on_taken(self, taken: Taken) -> Done:
        occupancy = tuple(GangMember(node=c.node, type=c.type, count=c.taken) for c in taken.cells if c.taken)
        await self._perform(self._machine.handle(prices.Taken(at=self._now(), round=taken.round, occupancy=occupancy)))
        return Done()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    # --- what the machine wants ---

    async def _perform(self, commands: list[prices.Command]) -> PriceBook | None:
        reply: PriceBook | None = None
        for command in commands:
            match command:
                case prices.Store(book=book):
                    await self._books.put(BOOK, book)
                case prices.Announce(book=book):
                    with suppress(Rejected):  # too large for one message: watchers read the bucket
                        await self._bus.publish(subjects.PRICES_CHANGED, book)
                case prices.Reply(book=book):
                    reply = book
        return reply

    def _trace_new_jobs(self, arrivals: dict[str, float]) -> None:
        """A job's own trace shows where it was priced first; later quotes are in the rounds' traces."""
        here = traceparent()
        for job_id in sorted(arrivals.keys() - self._priced):
            record = self._cluster.records.get(job_id)
            if record is not None:
                links, attributes = [here] if here else [], {"hadare.job": job_id}
                with span("price job", parent=record.traceparent, links=links, attributes=attributes):
                    self._priced.add(job_id)
        self._priced &= arrivals.keys()


def _set(known: dict[str, T], change: Change[T]) -> None:
    if change.entry is None:
        known.pop(change.name, None)
    else:
        known[change.name] = change.entry.record
