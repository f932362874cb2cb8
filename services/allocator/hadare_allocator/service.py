"""The allocator's shell: what arrives becomes an event, what the machine wants is carried out. It decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace

import structlog

from hadare import __version__
from hadare.machines.nodes import NodeTimes
from hadare.machines.round_events import (
    AskClose,
    AskOpen,
    AskPrices,
    Closed,
    CloseFailed,
    ForgetNode,
    Granted,
    GrantLeases,
    JobSeen,
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
from hadare.model.errors import Broken, Conflict, Rejected, Unavailable
from hadare.model.leases import Lease
from hadare.model.rounds import RoundHead
from hadare.runtime.backoff import retrying
from hadare.runtime.bus import Backplane, Identity
from hadare.runtime.election import take_over
from hadare.runtime.shell import Historian, follow, stored
from hadare.runtime.telemetry import span
from hadare.scheduling.policies import policy_of
from hadare.wire import subjects
from hadare_allocator.tracing import RoundTrace

log = structlog.get_logger("hadare.allocator")

IDENTITY = Identity("hadare-allocator", __version__, "rounds: prices, placement, leases")

_TICK_S = 0.2
_ASK_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 20.0
_LARGE = 200
"""Jobs from which on the policy runs in a thread, so that heartbeats are heard while it thinks."""


class Allocator:
    """Runs the round machine on a backplane."""

    def __init__(
        self, backplane: Backplane, settings: RoundSettings, instance: str, times: NodeTimes | None = None
    ) -> None:
        self._backplane = backplane
        self._bus = backplane.bus
        self._settings = settings
        self._times = times
        self._instance = instance
        self._heads = backplane.table(subjects.ROUND_HEAD)
        self._leases = backplane.table(subjects.ROUND_LEASES)
        self._pages = backplane.table(subjects.ROUND_PAGES)
        self._memory = backplane.table(subjects.ROUND_MEMORY)
        self._node_states = backplane.table(subjects.NODE_STATES)
        self._historian = Historian(backplane.journal)
        self._inbox: asyncio.Queue[RoundEvent] = asyncio.Queue()
        self._head_revision: int | None = None
        self._trace = RoundTrace()
        self._caught_up = {bucket: asyncio.Event() for bucket in ("jobs", "progress", "nodes", "node_wishes")}

    async def run(self) -> None:
        """Until cancelled. Raises ``Broken`` if another allocator has taken over."""
        policy_of(self._settings.policy)  # an unknown policy is refused before anything is touched
        epoch = await take_over(self._backplane.table(subjects.ALLOCATOR_LEADER), self._instance)
        self._machine = RoundMachine(replace(self._settings, epoch=epoch), self._times)
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            listening = await self._bus.subscribe(subjects.HEARTBEAT, self._hear)
            self._follow_all()
            tasks.create_task(self._historian.run())
            await self._recover()
            tasks.create_task(self._tick())
            serving = await self._bus.serve(IDENTITY, [])  # nobody asks it anything; discovery and health find it
            log.info("allocator is up", epoch=epoch, policy=self._settings.policy, round_s=self._settings.round_s)
            try:
                while True:
                    event = await self._inbox.get()
                    for command in self._machine.handle(event):
                        await self._perform(command)
            finally:
                await serving.stop()
                await listening.stop()

    # --- what arrives ---

    def _follow_all(self) -> None:
        put, now, table = self._inbox.put_nowait, self._now, self._backplane.table
        self._tasks.create_task(
            follow(
                table(subjects.JOBS),
                lambda c: put(JobSeen(at=now(), job_id=c.name, record=c.entry.record if c.entry else None)),
                self._caught_up["jobs"].set,
            )
        )
        self._tasks.create_task(
            follow(
                table(subjects.PROGRESS),
                lambda c: put(ProgressSeen(at=now(), job_id=c.name, progress=c.entry.record if c.entry else None)),
                self._caught_up["progress"].set,
            )
        )
        self._tasks.create_task(
            follow(
                table(subjects.NODES),
                lambda c: put(NodeRegistered(at=now(), node=c.name, inventory=c.entry.record if c.entry else None)),
                self._caught_up["nodes"].set,
            )
        )
        self._tasks.create_task(
            follow(
                table(subjects.NODE_WISHES),
                lambda c: put(NodeWished(at=now(), node=c.name, wish=c.entry.record if c.entry else None)),
                self._caught_up["node_wishes"].set,
            )
        )

    async def _recover(self) -> None:
        """What was stored, once all that exists has been read: a round must not begin on half a cluster."""
        for caught_up in self._caught_up.values():
            await caught_up.wait()
        head = await retrying(self._fence_predecessor, what="take the head", patience_s=60.0, on=(Conflict,))
        memory = await self._memory.get("")
        prices = await self._backplane.table(subjects.PRICES).get("book")
        leases: list[Lease] = []
        for entry in await self._leases.entries():
            leases += entry.record.leases
        commands = self._machine.recover(
            head,
            memory.record if memory else None,
            leases,
            prices.record if prices else None,
            self._now(),
        )
        for command in commands:
            await self._perform(command)

    async def _fence_predecessor(self) -> RoundHead | None:
        """Writes the head again, unchanged: from its new revision on, an older allocator's next write fails."""
        head = await self._heads.get("")
        if head is not None:
            self._head_revision = await self._heads.update("", head.record, head.revision)
        return head.record if head else None

    async def _hear(self, heartbeat: Heartbeat) -> None:
        self._inbox.put_nowait(NodeHeard(at=self._now(), heartbeat=heartbeat))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
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
                await self._store_head(command.head)
                self._trace.end()
            case StoreNodeStatus(status=status):
                await stored(lambda: self._node_states.put(status.node, status), f"store node {status.node}")
                log.info("node state", node=status.node, state=status.state, reason=status.reason)
            case ForgetNode(node=node):
                await stored(lambda: self._node_states.delete(node), f"forget node {node}")
            case AskOpen():
                self._begin(self._ask_open(command))
            case GrantLeases():
                for lease in command.leases:
                    self._begin(self._grant(lease))
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
            with self._trace.step("price"):
                book = await self._bus.ask(subjects.QUOTE, request, timeout_s=_ASK_TIMEOUT_S)
        except (Unavailable, Rejected) as error:
            self._inbox.put_nowait(QuoteFailed(at=self._now(), round=request.round, reason=str(error)))
            return
        self._inbox.put_nowait(Quoted(at=self._now(), round=request.round, book=book))

    async def _make_plan(self, command: MakePlan) -> None:
        policy, snapshot = policy_of(command.policy), command.snapshot
        started = self._now()
        with self._trace.step("place", jobs=len(snapshot.jobs), nodes=len(snapshot.nodes)):
            if len(snapshot.jobs) < _LARGE:
                plan, memory = policy.plan(snapshot, command.memory)
            else:
                plan, memory = await asyncio.to_thread(policy.plan, snapshot, command.memory)
        log.debug("planned", round=plan.round, forks=len(plan.forks), seconds=round(self._now() - started, 4))
        self._inbox.put_nowait(Planned(at=self._now(), plan=plan, memory=memory))

    async def _store_round(self, command: StoreRound) -> None:
        with self._trace.step("store", pages=len(command.pages)):
            for leases in command.leases:
                await stored(lambda it=leases: self._leases.put(it.node, it), "store leases")  # type: ignore[misc]
            for page in command.pages:
                name = f"{page.round}.{page.page}"
                await stored(lambda n=name, it=page: self._pages.put(n, it), "store plan")  # type: ignore[misc]
            await stored(lambda: self._memory.put("", command.memory), "store memory")
            await self._store_head(command.head)
        self._trace.place(command.leases)
        self._inbox.put_nowait(RoundStored(at=self._now(), round=command.head.round))
        if command.forget_round > 0:
            self._begin(self._forget(command.forget_round))

    async def _store_head(self, head: RoundHead) -> None:
        """The one write that another allocator would also make: here the older one finds out."""
        revision = self._head_revision
        try:
            if revision is None:
                self._head_revision = await stored(lambda: self._heads.create("", head), "store head")
            else:
                self._head_revision = await stored(lambda: self._heads.update("", head, revision), "store head")
        except Conflict as conflict:
            raise Broken(f"another allocator has taken over: {conflict}") from conflict

    async def _forget(self, round_number: int) -> None:
        first = await stored(lambda: self._pages.get(f"{round_number}.0"), "read old plan")
        for page in range(first.record.pages if first else 0):
            name = f"{round_number}.{page}"
            await stored(lambda n=name: self._pages.delete(n), "forget old plan")  # type: ignore[misc]

    async def _ask_open(self, command: AskOpen) -> None:
        request = command.request
        try:
            with self._trace.step("open", jobs=len(request.jobs)):
                answer = await self._bus.ask(subjects.OPEN_ROUND, request, timeout_s=_CLOSE_TIMEOUT_S)
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
        links = self._trace.links()
        try:
            with span("grant lease", parent=lease.traceparent, links=links, attributes=data):
                answer = await self._bus.ask(subjects.GRANT, lease, timeout_s=_ASK_TIMEOUT_S, node=lease.node)
            accepted, reason = answer.accepted, answer.reason
        except (Unavailable, Rejected) as error:
            accepted, reason = False, str(error)
        self._inbox.put_nowait(Granted(at=self._now(), key=lease.key, accepted=accepted, reason=reason))

    async def _tell_taken(self, command: TellTaken) -> None:
        try:
            await self._bus.ask(subjects.TAKEN, command.taken, timeout_s=_ASK_TIMEOUT_S)
        except (Unavailable, Rejected) as error:
            log.warning("pricing was not told what is taken", round=command.taken.round, error=str(error))

    async def _ask_close(self, command: AskClose) -> None:
        request = command.request
        try:
            with self._trace.step("close"):
                answer = await self._bus.ask(subjects.CLOSE_ROUND, request, timeout_s=_CLOSE_TIMEOUT_S)
        except (Unavailable, Rejected) as error:
            self._end_if_fenced(error)
            self._inbox.put_nowait(CloseFailed(at=self._now(), round=request.round, reason=str(error)))
            return
        self._inbox.put_nowait(Closed(at=self._now(), answer=answer))

    @staticmethod
    def _end_if_fenced(error: Unavailable | Rejected) -> None:
        if isinstance(error, Rejected) and error.code == 412:
            raise Broken(f"another allocator has taken over: {error}") from error
