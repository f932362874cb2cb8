"""The allocator's shell: what arrives becomes an event, what the machine wants is carried out. It decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TypeVar

import structlog

from hadare import __version__
from hadare.machines.nodes import NodeTimes
from hadare.machines.round_events import (
    AskClose,
    AskOpen,
    AskPrices,
    Closed,
    CloseFailed,
    EndLeases,
    ForgetNode,
    Granted,
    GrantLeases,
    JobSeen,
    LeasesEnded,
    MakePlan,
    NodeHeard,
    NodeRegistered,
    NodeWished,
    Opened,
    OpenFailed,
    Planned,
    ProgressSeen,
    Quoted,
    QuoteFailed,
    Record,
    RoundCommand,
    RoundEvent,
    RoundStored,
    StoreHead,
    StoreNodeStatus,
    StoreRound,
    TellTaken,
    Ticked,
    Warn,
)
from hadare.machines.round_phases import RoundSettings
from hadare.machines.rounds import RoundMachine
from hadare.model.devices import Heartbeat
from hadare.model.errors import Broken, Rejected, Unavailable
from hadare.model.leases import Lease
from hadare.model.rounds import RoundHead, RoundPage
from hadare.runtime.bus import Backplane, Change, Identity
from hadare.runtime.election import Leadership, Term
from hadare.runtime.owned import OwnTable
from hadare.runtime.shell import Historian, all_of, follow, stored
from hadare.runtime.telemetry import span
from hadare.scheduling.modes import plan_round
from hadare.scheduling.policies import policy_of
from hadare.scheduling.utility import utility_of
from hadare.wire import subjects
from hadare.wire.subjects import Endpoint, Records
from hadare_allocator.tracing import RoundTrace

Q = TypeVar("Q")
A = TypeVar("A")
R = TypeVar("R")

log = structlog.get_logger("hadare.allocator")

IDENTITY = Identity("hadare-allocator", __version__, "rounds: prices, placement, leases")

_ASK_TIMEOUT_S = 5.0
_TRACKER_TIMEOUT_S = 20.0
_FAILOVER_S = 4.0
"""Within which another tracker leads, if the one that was asked has died with the question."""

_LARGE = 200
"""Jobs from which on the policy runs in a thread, so that heartbeats are heard while it thinks."""


class Allocator:
    """Runs the round machine on a backplane, as long as it leads."""

    def __init__(
        self,
        backplane: Backplane,
        settings: RoundSettings,
        instance: str,
        times: NodeTimes | None = None,
        term: Term | None = None,
        tick_s: float = 0.2,
    ) -> None:
        self._tick_s = tick_s
        self._backplane = backplane
        self._bus = backplane.bus
        self._settings = settings
        self._times = times
        self._leadership = Leadership(backplane.table(subjects.ALLOCATOR_LEADER), instance, term)
        self._heads = OwnTable(backplane.table(subjects.ROUND_HEAD), "the head of the rounds")
        self._leases = OwnTable(backplane.table(subjects.ROUND_LEASES), "leases")
        self._pages = OwnTable(backplane.table(subjects.ROUND_PAGES), "plan page")
        self._memory = OwnTable(backplane.table(subjects.ROUND_MEMORY), "memory")
        self._node_states = OwnTable(backplane.table(subjects.NODE_STATES), "node state")
        self._heads_in_order = asyncio.Lock()
        self._historian = Historian(backplane.journal)
        self._inbox: asyncio.Queue[RoundEvent] = asyncio.Queue()
        self._trace = RoundTrace()
        self._caught_up: list[asyncio.Event] = []

    async def run(self) -> None:
        """Stands by, leads, and runs until cancelled. Raises ``Broken`` if another allocator has taken over."""
        policy_of(self._settings.policy)  # what is unknown is refused before anything is touched
        if self._settings.utility is not None:
            utility_of(self._settings.utility)
        serving = await self._bus.serve(IDENTITY, [])  # nobody asks it anything; discovery and health find it
        try:
            epoch = await self._leadership.acquire()
            try:
                await self._lead(epoch)
            finally:
                await self._leadership.release()
        finally:
            await serving.stop()

    async def _lead(self, epoch: int) -> None:
        self._machine = RoundMachine(replace(self._settings, epoch=epoch), self._times)
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._leadership.keep())
            listening = await self._bus.subscribe(subjects.HEARTBEAT, self._hear)
            try:
                self._follow_all()
                tasks.create_task(self._historian.run())
                await self._recover()
                tasks.create_task(self._tick())
                log.info("allocator is up", epoch=epoch, policy=self._settings.policy, round_s=self._settings.round_s)
                while True:
                    event = await self._inbox.get()
                    await self._leadership.sure()
                    for command in self._machine.handle(event):
                        await self._leadership.sure()
                        with self._trace.current():
                            await self._perform(command)
            finally:
                self._trace.end_all()
                await listening.stop()

    # --- what arrives ---

    def _follow_all(self) -> None:
        now = self._now
        self._follow(subjects.JOBS, lambda name, record: JobSeen(at=now(), job_id=name, record=record))
        self._follow(subjects.PROGRESS, lambda name, record: ProgressSeen(at=now(), job_id=name, progress=record))
        self._follow(subjects.NODES, lambda name, record: NodeRegistered(at=now(), node=name, inventory=record))
        self._follow(subjects.NODE_WISHES, lambda name, record: NodeWished(at=now(), node=name, wish=record))

    def _follow(self, records: Records[R], seen: Callable[[str, R | None], RoundEvent]) -> None:
        """Each record that exists, and each change (None: deleted), becomes an event."""
        caught_up = asyncio.Event()
        self._caught_up.append(caught_up)

        def see(change: Change[R]) -> None:
            self._inbox.put_nowait(seen(change.name, change.entry.record if change.entry else None))

        self._tasks.create_task(follow(self._backplane.table(records), see, caught_up.set))

    async def _recover(self) -> None:
        """What was stored, once all that exists has been read: a round must not begin on half a cluster."""
        for caught_up in self._caught_up:
            await caught_up.wait()
        head = await self._fence_predecessor()
        memory = await self._memory.load()
        statuses = [entry.record for entry in await self._node_states.load()]
        await self._load_unfinished_plan(head.round + 1 if head else 1)
        prices = await stored(lambda: self._backplane.table(subjects.PRICES).get("book"), "read prices")
        leases: list[Lease] = []
        for entry in await self._leases.load():
            leases += entry.record.leases
        commands = self._machine.recover(
            head,
            memory[0].record if memory else None,
            leases,
            prices.record if prices else None,
            self._now(),
            statuses,
        )
        for command in commands:
            await self._perform(command)

    async def _fence_predecessor(self) -> RoundHead | None:
        """Writes the head again, unchanged: from its new revision on, an older allocator's next write fails."""
        for entry in await self._heads.load():
            await self._heads.write("", entry.record)
            return entry.record
        return None

    async def _load_unfinished_plan(self, round_number: int) -> None:
        """Pages of a plan whose head was never written: the next plan of this round takes their place."""
        page = 0
        while await self._pages.load([f"{round_number}.{page}"]):
            page += 1

    async def _hear(self, heartbeat: Heartbeat) -> None:
        self._inbox.put_nowait(NodeHeard(at=self._now(), heartbeat=heartbeat))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            self._inbox.put_nowait(Ticked(at=self._now()))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    # --- what the machine wants ---

    async def _perform(self, command: RoundCommand) -> None:
        match command:
            case AskPrices():
                self._trace.begin(command.request.round)
                self._begin(self._ask_prices(command))
            case MakePlan():
                self._begin(self._make_plan(command))
            case StoreRound():
                await self._store_round(command)
            case StoreHead():
                self._trace.end(command.head.round)
                self._begin(self._store_head(command.head))
            case StoreNodeStatus(status=status):
                await self._node_states.write(status.node, status)
                log.info("node state", node=status.node, state=status.state, reason=status.reason)
            case ForgetNode(node=node):
                await self._node_states.delete(node)
            case AskOpen():
                self._begin(self._ask_open(command))
            case GrantLeases():
                for lease in command.leases:
                    self._begin(self._grant(lease))
            case EndLeases():
                log.warning(
                    "leases are ended", node=command.node, leases=command.order.leases, cause=command.order.reason
                )
                self._begin(self._end_leases(command))
            case TellTaken():
                self._begin(self._tell_taken(command))
            case AskClose():
                self._begin(self._ask_close(command))
            case Record():
                log.info(f"{command.event.kind} {command.event.what}", id=command.event.id, **command.event.data)
                self._historian.note(command.event, command.message_id)
            case Warn():
                log.warning(command.what, **command.data)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        """Slow work: it comes back as an event, or it ends the service."""
        self._tasks.create_task(work)

    async def _ask_prices(self, command: AskPrices) -> None:
        request = command.request
        try:
            with self._trace.step("price", request.round):
                book = await self._bus.ask(subjects.QUOTE, request, timeout_s=_ASK_TIMEOUT_S)
        except (Unavailable, Rejected) as error:
            failed = QuoteFailed(at=self._now(), round=request.round, reason=str(error), revision=request.revision)
            self._inbox.put_nowait(failed)
            return
        self._inbox.put_nowait(Quoted(at=self._now(), round=request.round, book=book, revision=request.revision))

    async def _make_plan(self, command: MakePlan) -> None:
        policy, snapshot = policy_of(command.policy), command.snapshot
        started = self._now()
        with self._trace.step("place", snapshot.round, jobs=len(snapshot.jobs), nodes=len(snapshot.nodes)):
            if len(snapshot.jobs) < _LARGE:
                plan, memory = plan_round(policy, snapshot, command.memory)
            else:
                plan, memory = await asyncio.to_thread(plan_round, policy, snapshot, command.memory)
        log.debug("planned", round=plan.round, forks=len(plan.forks), seconds=round(self._now() - started, 4))
        self._inbox.put_nowait(Planned(at=self._now(), plan=plan, memory=memory, revision=command.revision))

    async def _store_round(self, command: StoreRound) -> None:
        with self._trace.step("store", command.head.round, pages=len(command.pages)):
            # The head makes the rest valid, so it comes last; what it names may land in any order.
            await all_of(
                *(self._leases.write(leases.node, leases) for leases in command.leases),
                self._store_pages(command.pages),
                self._memory.write("", command.memory),
            )
            await self._store_head(command.head)
        self._trace.place(command.head.round, command.leases)
        if command.head.state == "closed":
            self._trace.end(command.head.round)  # nothing could be placed
        self._inbox.put_nowait(RoundStored(at=self._now(), round=command.head.round))
        if command.forget_round > 0:
            self._begin(self._forget(command.forget_round))

    async def _store_head(self, head: RoundHead) -> None:
        """One after another: that a round has ended is written while the next is priced and planned."""
        async with self._heads_in_order:
            await self._heads.write("", head)

    async def _store_pages(self, pages: Sequence[RoundPage]) -> None:
        """In order: a successor looks for what was left of them from the first to the first that is missing."""
        for page in pages:
            await self._pages.write(f"{page.round}.{page.page}", page)

    async def _forget(self, round_number: int) -> None:
        first = await self._pages.load([f"{round_number}.0"])
        for page in range(first[0].record.pages if first else 0):
            await self._pages.delete(f"{round_number}.{page}")

    async def _ask_open(self, command: AskOpen) -> None:
        request = command.request
        try:
            with self._trace.step("open", request.round, jobs=len(request.jobs)):
                answer = await self._ask_tracker(subjects.OPEN_ROUND, request)
        except (Unavailable, Rejected) as error:
            self._end_if_fenced(error)
            self._inbox.put_nowait(OpenFailed(at=self._now(), round=request.round, reason=str(error)))
            return
        self._inbox.put_nowait(Opened(at=self._now(), answer=answer))

    async def _grant(self, lease: Lease) -> None:
        data: dict[str, str | int] = {
            "hadare.job": lease.key.job_id,
            "hadare.node": lease.node,
            "hadare.round": lease.key.round,
            "hadare.fork": lease.key.fork,
        }
        links = self._trace.links(lease.key.round)
        try:
            with span("grant lease", parent=lease.traceparent, links=links, attributes=data):
                answer = await self._bus.ask(subjects.GRANT, lease, timeout_s=_ASK_TIMEOUT_S, node=lease.node)
        except (Unavailable, Rejected) as error:
            # A refused message is an answer too, if not the agent's own.
            reached = isinstance(error, Rejected)
            event = Granted(at=self._now(), key=lease.key, accepted=False, reason=str(error), reached=reached)
        else:
            event = Granted(
                at=self._now(),
                key=lease.key,
                accepted=answer.accepted,
                reason=answer.reason,
                incarnation=answer.incarnation,
            )
        self._inbox.put_nowait(event)

    async def _end_leases(self, command: EndLeases) -> None:
        leases = command.order.leases
        try:
            await self._bus.ask(subjects.REVOKE, command.order, timeout_s=_ASK_TIMEOUT_S, node=command.node)
        except (Unavailable, Rejected) as error:
            log.warning("an order to end leases was not answered", node=command.node, leases=leases, error=str(error))
            self._inbox.put_nowait(LeasesEnded(at=self._now(), leases=leases, reached=isinstance(error, Rejected)))
        else:
            self._inbox.put_nowait(LeasesEnded(at=self._now(), leases=leases))

    async def _tell_taken(self, command: TellTaken) -> None:
        try:
            await self._bus.ask(subjects.TAKEN, command.taken, timeout_s=_ASK_TIMEOUT_S)
        except (Unavailable, Rejected) as error:
            log.warning("pricing was not told what is taken", round=command.taken.round, error=str(error))

    async def _ask_close(self, command: AskClose) -> None:
        request = command.request
        try:
            with self._trace.step("close", request.round):
                answer = await self._ask_tracker(subjects.CLOSE_ROUND, request)
        except (Unavailable, Rejected) as error:
            self._end_if_fenced(error)
            event: RoundEvent = CloseFailed(at=self._now(), round=request.round, reason=str(error))
        else:
            event = Closed(at=self._now(), answer=answer)
        if not request.only_withdrawn:  # that is asked again for as long as it is not seen to be done
            self._inbox.put_nowait(event)

    async def _ask_tracker(self, endpoint: Endpoint[Q, A], question: Q) -> A:
        """Asks a second time early: the tracker may be slow, or it may have died and a standby taken over."""
        try:
            return await self._bus.ask(endpoint, question, timeout_s=_FAILOVER_S)
        except Unavailable as error:
            log.info("the tracker is asked again", endpoint=endpoint.template, reason=str(error))
            return await self._bus.ask(endpoint, question, timeout_s=_TRACKER_TIMEOUT_S)

    @staticmethod
    def _end_if_fenced(error: Unavailable | Rejected) -> None:
        if isinstance(error, Rejected) and error.code == 412:
            raise Broken(f"another allocator has taken over: {error}") from error
