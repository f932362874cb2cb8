"""The tracker's shell: what arrives becomes an event, what the machine wants is carried out. It decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import structlog

from hadare import __version__
from hadare.machines.job_book import TrackerSettings
from hadare.machines.ledger import is_final
from hadare.machines.tracker import TrackerMachine
from hadare.machines.tracker_events import (
    AnswerClose,
    AnswerOpen,
    AnswerResult,
    CloseAsked,
    Consolidate,
    ConsolidationFailed,
    DeleteObjects,
    ForgetJob,
    GrantAnswered,
    GrantLease,
    JobChanged,
    JobDeleted,
    ListObjects,
    ManifestsRead,
    NodeChanged,
    ObjectsListed,
    OpenAsked,
    Record,
    RefuseQuestion,
    ResultArrived,
    RevokeAnswered,
    RevokeJob,
    StoreManifest,
    StoreProgress,
    Ticked,
    TrackerCommand,
    TrackerEvent,
)
from hadare.model.devices import NodeInventory, NodeState, NodeStatus
from hadare.model.errors import HadareError, Rejected, Unavailable
from hadare.model.jobs import JobProgress, JobRecord, ObjectRef, OpenRound, VersionManifest
from hadare.model.leases import ForkResult, ResultAnswer
from hadare.model.rounds import CloseAnswer, CloseRequest, OpenAnswer, OpenRequest
from hadare.runtime.bus import Backplane, Change, Identity, Route
from hadare.runtime.election import Leadership, Term
from hadare.runtime.owned import OwnTable
from hadare.runtime.shell import Historian, Questions, all_of, follow, stored
from hadare.runtime.telemetry import span
from hadare.wire import subjects
from hadare_jobtracker.averager import Averager
from hadare_jobtracker.news import VersionNews

log = structlog.get_logger("hadare.jobtracker")

IDENTITY = Identity("hadare-jobtracker", __version__, "ledger, consolidation and progress of all jobs")

_TICK_S = 1.0
_DELETE_AFTER_S = 1.0
_GRANT_TIMEOUT_S = 5.0
_REVOKE_TIMEOUT_S = 30.0


class JobTracker:
    """Runs the tracker's machine on a backplane, as long as it leads."""

    def __init__(
        self,
        backplane: Backplane,
        averager: Averager,
        settings: TrackerSettings,
        instance: str,
        term: Term | None = None,
    ) -> None:
        self._backplane = backplane
        self._bus = backplane.bus
        self._averager = averager
        self._settings = settings
        self._leadership = Leadership(backplane.table(subjects.TRACKER_LEADER), instance, term)
        self._progress = OwnTable(backplane.table(subjects.PROGRESS), "progress of")
        self._versions = OwnTable(backplane.table(subjects.VERSIONS), "version")
        self._objects = backplane.objects(subjects.WEIGHTS)
        self._historian = Historian(backplane.journal)
        self._questions = Questions()
        self._inbox: asyncio.Queue[TrackerEvent] = asyncio.Queue()
        self._traceparents: dict[str, str] = {}
        self._inventories: dict[str, NodeInventory] = {}
        self._states: dict[str, NodeState] = {}
        self._changes: dict[str, ObjectRef] = {}
        """Of each job's newest version. One that is lost sight of is of no use to the job: the sweep removes it."""
        self._news = VersionNews(backplane.bus)
        self._expected: dict[str, int] = {}
        """The round of each job whose results are expected."""
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Stands by, leads, and runs until cancelled. Raises ``Broken`` if another tracker has taken over."""
        found = await self._bus.serve(IDENTITY, [])  # discovery and health find it while it stands by, too
        try:
            epoch = await self._leadership.acquire()
        finally:
            await found.stop()
        try:
            await self._lead(epoch)
        finally:
            await self._leadership.release()

    async def _lead(self, epoch: int) -> None:
        self._machine = TrackerMachine(replace(self._settings, epoch=epoch))
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._leadership.keep())
            await self._recover()
            serving = await self._bus.serve(IDENTITY, self._routes())
            try:
                tasks.create_task(follow(self._backplane.table(subjects.JOBS), self._see_job, self.ready.set))
                tasks.create_task(follow(self._backplane.table(subjects.NODES), self._see_node, _nothing))
                tasks.create_task(follow(self._backplane.table(subjects.NODE_STATES), self._see_state, _nothing))
                tasks.create_task(self._historian.run())
                tasks.create_task(self._tick())
                log.info("tracker is up", epoch=epoch)
                while True:
                    event = await self._inbox.get()
                    await self._leadership.sure()
                    await self._perform_all(self._machine.handle(event))
            finally:
                self._questions.close()  # else its handlers would wait for answers that nobody gives
                await serving.stop()

    def _routes(self) -> list[Route[Any, Any]]:
        return [
            Route(subjects.OPEN_ROUND, self._on_open),
            Route(subjects.CLOSE_ROUND, self._on_close),
            Route(subjects.RESULT, self._on_result, concurrency=256),
        ]

    # --- what arrives ---

    async def _recover(self) -> None:
        jobs = self._backplane.table(subjects.JOBS)
        records = [entry.record for entry in await stored(jobs.entries, "read jobs")]
        progress = [entry.record for entry in await self._progress.load()]
        nodes = self._backplane.table(subjects.NODES)
        inventories = [entry.record for entry in await stored(nodes.entries, "read nodes")]
        # A node's state may be seen before its inventory is seen again; that must not look as if the node were gone.
        self._inventories = {inventory.node: inventory for inventory in inventories}
        for record in records:
            self._traceparents[record.job_id] = record.traceparent
        active = [known for known in progress if not known.state.ended]
        newest = await self._versions.load(name for known in active for name in _newest_manifests(known))
        manifests = [entry.record for entry in newest]
        await self._fence_predecessor(active, manifests)
        await self._perform_all(self._machine.recover(records, progress, manifests, self._now(), inventories))
        self._begin(self._read_older(active))

    async def _fence_predecessor(self, active: list[JobProgress], manifests: list[VersionManifest]) -> None:
        """A manifest that no progress names was its last write: the next may be under way, and publish that version.

        This process may make another one of the same forks (a guard's choice depends on who answers in time), so what
        is under way must fail: the progress gets a new revision. Raises ``Broken`` if it has landed by now.
        """
        unpublished = {(manifest.job_id, manifest.version) for manifest in manifests}
        between = [known for known in active if (known.job_id, known.version + 1) in unpublished]
        await all_of(*(self._progress.write(known.job_id, known) for known in between))

    async def _read_older(self, active: list[JobProgress]) -> None:
        """Manifests that are needed only when their weights are to be deleted: nobody waits for them."""
        keep = self._settings.keep_versions
        names = [
            f"{known.job_id}.{version}"
            for known in active
            for version in range(max(0, known.version - keep + 1), known.version)
        ]
        found = tuple(entry.record for entry in await self._versions.load(names))
        self._inbox.put_nowait(ManifestsRead(at=self._now(), manifests=found))

    def _see_job(self, change: Change[JobRecord]) -> None:
        if change.entry is None:
            self._inbox.put_nowait(JobDeleted(at=self._now(), job_id=change.name))
            return
        self._traceparents[change.name] = change.entry.record.traceparent
        self._inbox.put_nowait(JobChanged(at=self._now(), record=change.entry.record))

    def _see_node(self, change: Change[NodeInventory]) -> None:
        if change.entry is None:
            self._inventories.pop(change.name, None)
        else:
            self._inventories[change.name] = change.entry.record
        self._node_changed(change.name)

    def _see_state(self, change: Change[NodeStatus]) -> None:
        if change.entry is None:
            self._states.pop(change.name, None)
        else:
            self._states[change.name] = change.entry.record.state
        self._node_changed(change.name)

    def _node_changed(self, node: str) -> None:
        state = self._states.get(node, NodeState.SUSPECT)
        inventory = self._inventories.get(node)
        self._inbox.put_nowait(NodeChanged(at=self._now(), node=node, inventory=inventory, state=state))

    async def _on_open(self, request: OpenRequest) -> OpenAnswer:
        answer: OpenAnswer = await self._questions.put(
            lambda token: self._inbox.put_nowait(OpenAsked(at=self._now(), request=request, token=token))
        )
        return answer

    async def _on_close(self, request: CloseRequest) -> CloseAnswer:
        answer: CloseAnswer = await self._questions.put(
            lambda token: self._inbox.put_nowait(CloseAsked(at=self._now(), request=request, token=token))
        )
        return answer

    async def _on_result(self, result: ForkResult) -> ResultAnswer:
        answer: ResultAnswer = await self._questions.put(
            lambda token: self._inbox.put_nowait(ResultArrived(at=self._now(), result=result, token=token))
        )
        if answer.counted and result.kind == "train" and result.object is not None:
            key = result.key
            self._begin(self._averager.fetch_ahead(key.job_id, key.round, key.fork, result.object))
        return answer

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._inbox.put_nowait(Ticked(at=self._now()))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    # --- what the machine wants ---

    async def _perform_all(self, commands: list[TrackerCommand]) -> None:
        """Consolidations first: they read what is stored already, and what they make counts only once it is told."""
        for command in sorted(commands, key=lambda command: not isinstance(command, Consolidate)):
            await self._leadership.sure()
            await self._perform(command)

    async def _perform(self, command: TrackerCommand) -> None:
        match command:
            case StoreProgress():
                await self._store_progress(command)
            case StoreManifest(manifest=manifest):
                await self._versions.write(f"{manifest.job_id}.{manifest.version}", manifest)
            case Consolidate():
                self._begin(self._consolidate(command))
            case GrantLease():
                self._begin(self._grant(command))
            case RevokeJob():
                self._begin(self._revoke(command))
            case AnswerOpen() | AnswerClose() | AnswerResult():
                self._questions.answer(command.token, command.answer)
            case RefuseQuestion():
                self._questions.refuse(command.token, Rejected(412, command.message))
            case Record():
                self._note(command)
            case ListObjects():
                self._begin(self._list_objects())
            case DeleteObjects():
                self._begin(self._delete(command))
            case ForgetJob():
                await self._forget(command)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        """Slow work: it comes back as an event, or it ends the service."""
        self._tasks.create_task(work)

    async def _store_progress(self, command: StoreProgress) -> None:
        progress = command.progress
        await self._progress.write(progress.job_id, progress)
        data = {"state": progress.state, "steps": progress.steps, "version": progress.version}
        log.debug("progress stored", job_id=progress.job_id, **data)
        if progress.state.ended:
            self._expected.pop(progress.job_id, None)
            if (changes := self._changes.pop(progress.job_id, None)) is not None:
                self._begin(self._delete(DeleteObjects(names=(changes.name,))))
            self._begin(self._averager.forget(progress.job_id))
        elif progress.open is not None and progress.weights is not None:
            self._expect_results(progress.job_id, progress.open, progress.weights)

    def _expect_results(self, job_id: str, opened: OpenRound, base: ObjectRef) -> None:
        """Once for each round: its ledger is stored whenever it changes."""
        if self._expected.get(job_id) != opened.round:
            self._expected[job_id] = opened.round
            self._begin(self._averager.expect(job_id, opened.round, len(opened.forks), base))

    async def _consolidate(self, command: Consolidate) -> None:
        data: dict[str, str | int] = {
            "hadare.job": command.job_id,
            "hadare.round": command.round,
            "hadare.forks": len(command.forks),
            "hadare.bytes": sum(fork.object.bytes for fork in command.forks),
        }
        with span("consolidate job", parent=command.traceparent, attributes=data):
            await self._news.coming(command)
            try:
                done = await self._averager.consolidate(command)
            except (HadareError, OSError, ValueError) as error:
                log.warning("consolidation failed", job_id=command.job_id, round=command.round, error=str(error))
                failed = ConsolidationFailed(
                    at=self._now(), job_id=command.job_id, round=command.round, reason=str(error)
                )
                self._inbox.put_nowait(failed)
                return
        self._inbox.put_nowait(replace(done, at=self._now()))
        await self._news.made(command, done)
        before = self._changes.pop(done.job_id, None)
        if done.changes is not None:
            self._changes[done.job_id] = done.changes
        if before is not None:
            await self._delete(DeleteObjects(names=(before.name,)))

    async def _grant(self, command: GrantLease) -> None:
        lease = command.lease
        try:
            answer = await self._bus.ask(subjects.GRANT, lease, timeout_s=_GRANT_TIMEOUT_S, node=lease.node)
            accepted, reason = answer.accepted, answer.reason
        except (Unavailable, Rejected) as error:
            accepted, reason = False, str(error)
        if not accepted:
            log.warning("lease refused", lease=str(lease.key), node=lease.node, reason=reason)
        self._inbox.put_nowait(
            GrantAnswered(at=self._now(), key=lease.key, node=lease.node, accepted=accepted, reason=reason)
        )

    async def _revoke(self, command: RevokeJob) -> None:
        question = subjects.REVOKE.question(job_id=command.job_id, reason=command.reason)
        try:
            answer = await self._bus.ask(subjects.REVOKE, question, timeout_s=_REVOKE_TIMEOUT_S, node=command.node)
            free = answer.free
        except (Unavailable, Rejected) as error:
            log.warning("revocation unanswered", job_id=command.job_id, node=command.node, error=str(error))
            free = False
        self._inbox.put_nowait(RevokeAnswered(at=self._now(), job_id=command.job_id, node=command.node, free=free))

    def _note(self, command: Record) -> None:
        event = command.event
        with span(
            f"job {event.what}", parent=self._traceparents.get(event.id, ""), attributes={"hadare.job": event.id}
        ):
            log.info(f"job {event.what}", job_id=event.id, **{k: v for k, v in event.data.items() if k != "error"})
        self._historian.note(event, command.message_id)

    async def _list_objects(self) -> None:
        try:
            names = await self._objects.names()
            found = await self._versions.load(self._machine.unread_manifests(names))
            self._inbox.put_nowait(ManifestsRead(at=self._now(), manifests=tuple(entry.record for entry in found)))
            # What an upload that died has left; none that goes on waits as long as this between two of its chunks.
            await self._objects.collect_garbage(2 * self._settings.sweep_s)
        except Unavailable as error:
            log.warning("the weights store cannot be listed", error=str(error))
            return
        self._inbox.put_nowait(ObjectsListed(at=self._now(), names=tuple(names)))

    async def _delete(self, command: DeleteObjects) -> None:
        """Not at once: when a version has just been made, its forks wait for the same store."""
        await asyncio.sleep(_DELETE_AFTER_S)
        for name in command.names:
            await stored(lambda name=name: self._objects.delete(name), f"delete {name}")  # type: ignore[misc]

    async def _forget(self, command: ForgetJob) -> None:
        for version in command.versions:
            await self._versions.delete(f"{command.job_id}.{version}")
        await self._progress.delete(command.job_id)
        self._traceparents.pop(command.job_id, None)


def _newest_manifests(progress: JobProgress) -> list[str]:
    """The newest version's, and where the next may be under way, one that a predecessor stored before it ended.

    No version is made of a round of which a fork is still expected: in mid-round, that spares half of the reads.
    """
    under_way = is_final(progress.open) if progress.open is not None else progress.version < 0
    versions = [progress.version, *([progress.version + 1] if under_way else [])]
    return [f"{progress.job_id}.{version}" for version in versions if version >= 0]


def _nothing() -> None:
    """Being caught up with nodes needs no act: they are judged by what is known so far."""
