"""The tracker: every job's ledger, versions and state. Events in, commands out; never waits, never reads a clock.

Rules of this file: commands are carried out in the order in which they stand, so what is answered is stored before.
Any event may come twice or late. Everything in flight is rebuilt from jobs, progress and manifests (``recover``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import assert_never

from hadare.machines import ledger
from hadare.machines.job import Job
from hadare.machines.job_book import JobBook, NodeSeen, TrackerSettings
from hadare.machines.tracker_events import (
    AnswerClose,
    AnswerOpen,
    AnswerResult,
    CloseAsked,
    Consolidated,
    ConsolidationFailed,
    DeleteObjects,
    ForgetJob,
    GrantAnswered,
    JobChanged,
    JobDeleted,
    ListObjects,
    ManifestsRead,
    NodeChanged,
    ObjectsListed,
    OpenAsked,
    RefuseQuestion,
    ResultArrived,
    RevokeAnswered,
    Ticked,
    TrackerCommand,
    TrackerEvent,
)
from hadare.machines.tracker_hearing import Hearing
from hadare.machines.tracker_sweep import Sweep, unread
from hadare.model.devices import NodeInventory, NodeState
from hadare.model.jobs import Desired, JobProgress, JobRecord, JobState, OpenRound, VersionManifest
from hadare.model.leases import ForkResult, ResultAnswer
from hadare.model.rounds import CloseAnswer, OpenAnswer

_LATE = "no result before the round closed"

JobAction = Callable[[Job], list[TrackerCommand]]


class TrackerMachine:
    """All jobs of a cluster."""

    def __init__(self, settings: TrackerSettings) -> None:
        self._settings = settings
        self._jobs: dict[str, Job] = {}
        self._nodes: dict[str, NodeSeen] = {}
        self._newest_epoch = 0
        self._sweep = Sweep(settings.sweep_s)
        self._hearing = Hearing()

    def recover(
        self,
        records: Iterable[JobRecord],
        progress: Iterable[JobProgress],
        manifests: Iterable[VersionManifest],
        at: float,
        nodes: Iterable[NodeInventory] = (),
    ) -> list[TrackerCommand]:
        """The machine as it was, from the state of record. Jobs whose record is gone are forgotten.

        Nodes are known from the start: a job must not be given up because only the nodes that fail it were seen yet.

        Of the manifests only each job's newest is needed now; ``ManifestsRead`` brings others whose weights are kept.
        """
        known = {record.job_id: record for record in records}
        self._nodes = {inventory.node: NodeSeen(inventory, NodeState.SUSPECT) for inventory in nodes}
        orphans: list[TrackerCommand] = []
        for stored in sorted(progress, key=lambda stored: stored.job_id):
            if stored.job_id in known:
                self._jobs[stored.job_id] = self._remember(known[stored.job_id], stored)
            else:
                orphans.append(ForgetJob(job_id=stored.job_id, versions=tuple(range(stored.version + 1))))
        for manifest in manifests:
            job = self._jobs.get(manifest.job_id)
            if job is None:
                orphans.append(DeleteObjects(names=(manifest.weights.name,)))
            elif manifest.version <= job.book.progress.version:
                job.book.manifests[manifest.version] = manifest
        for job in self._jobs.values():
            job.resume_cancel(at)
            opened = job.book.progress.open
            if opened is not None:
                self._newest_epoch = max(self._newest_epoch, opened.epoch)
        self._hearing.begin((job.book.progress for job in self._jobs.values()), at + self._settings.hear_s)
        return orphans

    def progress_of(self, job_id: str) -> JobProgress | None:
        job = self._jobs.get(job_id)
        return job.book.progress if job else None

    def handle(self, event: TrackerEvent) -> list[TrackerCommand]:
        """The only door."""
        commands = self._react(event)
        for asked in self._hearing.ripe(event.at):
            commands += self._close(asked)
        return commands

    def _react(self, event: TrackerEvent) -> list[TrackerCommand]:
        match event:
            case JobChanged():
                return self._job_changed(event)
            case JobDeleted():
                return self._job_deleted(event)
            case NodeChanged():
                return self._node_changed(event)
            case OpenAsked():
                return self._open(event)
            case CloseAsked():
                return self._close(event)
            case ResultArrived():
                return self._result(event)
            case Consolidated():
                return self._on_job(event.job_id, event.at, lambda job: job.round.consolidated(event))
            case ConsolidationFailed():
                return self._on_job(event.job_id, event.at, lambda job: job.round.failed(event.at, event.reason))
            case GrantAnswered():
                return self._grant_answered(event)
            case RevokeAnswered():
                job = self._jobs.get(event.job_id)
                if job is not None:
                    job.freed(event.node, event.at, event.free)
                return self._drive(event.job_id, event.at)
            case ObjectsListed():
                useless = self._sweep.useless(event.names, self._jobs)
                return [DeleteObjects(names=useless)] if useless else []
            case ManifestsRead():
                return self._manifests_read(event)
            case Ticked():
                sweep: list[TrackerCommand] = [ListObjects()] if self._sweep.due(event.at) else []
                return [*sweep, *self._drive_all(event.at)]
            case _:
                assert_never(event)

    def unread_manifests(self, names: Iterable[str]) -> tuple[str, ...]:
        """Which manifests to read, as ``ManifestsRead``, before these objects of the store are listed."""
        return unread(names, self._jobs)

    # --- jobs and nodes ---

    def _manifests_read(self, event: ManifestsRead) -> list[TrackerCommand]:
        """A version may have been made while its predecessors were still being read: they are retired now."""
        known = [manifest for manifest in event.manifests if manifest.job_id in self._jobs]
        for manifest in known:
            self._jobs[manifest.job_id].book.manifests.setdefault(manifest.version, manifest)
        jobs = dict.fromkeys(manifest.job_id for manifest in known)
        return [command for job_id in jobs for command in self._jobs[job_id].book.retire_versions()]

    def _job_changed(self, event: JobChanged) -> list[TrackerCommand]:
        record = event.record
        job = self._jobs.get(record.job_id)
        if job is not None:
            job.book.record = record
            return self._drive(record.job_id, event.at)
        progress = JobProgress(
            job_id=record.job_id,
            name=record.name,
            state=JobState.QUEUED,
            reason="waits for its initial model",
            total_steps=record.spec.total_steps,
        )
        job = self._remember(record, progress)
        self._jobs[record.job_id] = job
        return [*job.book.change(), job.book.note("queued", name=record.name), *self._drive(record.job_id, event.at)]

    def _job_deleted(self, event: JobDeleted) -> list[TrackerCommand]:
        job = self._jobs.pop(event.job_id, None)
        if job is None:
            return []
        manifests = job.book.manifests
        names = sorted(m.weights.name for m in manifests.values() if not m.weights_deleted)
        forget = ForgetJob(job_id=event.job_id, versions=tuple(range(job.book.progress.version + 1)))
        return [DeleteObjects(names=tuple(names)), forget] if names else [forget]

    def _node_changed(self, event: NodeChanged) -> list[TrackerCommand]:
        if event.inventory is None:
            self._nodes.pop(event.node, None)
        else:
            self._nodes[event.node] = NodeSeen(event.inventory, event.state)
        return self._drive_all(event.at)

    # --- rounds ---

    def _open(self, event: OpenAsked) -> list[TrackerCommand]:
        request = event.request
        if request.epoch < self._newest_epoch:
            stale = f"epoch {request.epoch} is over, the newest is {self._newest_epoch}"
            return [RefuseQuestion(token=event.token, message=stale)]
        self._newest_epoch = request.epoch
        commands: list[TrackerCommand] = self._end_rounds(before=request.round, at=event.at)
        refused: dict[str, str] = {}
        for opening in request.jobs:
            job = self._jobs.get(opening.job_id)
            why = job.refusal(opening.base_version, request.round, request.epoch) if job else "there is no such job"
            if job is None or why:
                refused[opening.job_id] = why
                continue
            ledger_of_job = OpenRound(
                round=request.round, epoch=request.epoch, base_version=opening.base_version, forks=opening.forks
            )
            job.side.rest()
            commands += job.round.open(ledger_of_job, request.round_s, opening.mode)
        accepted = tuple(opening.job_id for opening in request.jobs if opening.job_id not in refused)
        for job_id in sorted(self._jobs.keys() - set(accepted)):
            commands += self._jobs[job_id].sit_out()
        answer = OpenAnswer(round=request.round, accepted=accepted, refused=refused)
        return [*commands, AnswerOpen(token=event.token, answer=answer)]

    def _close(self, event: CloseAsked) -> list[TrackerCommand]:
        request = event.request
        if request.epoch < self._newest_epoch:
            stale = f"epoch {request.epoch} is over, the newest is {self._newest_epoch}"
            return [RefuseQuestion(token=event.token, message=stale)]
        if self._hearing.holds(event, [job.book.progress for _, job in self._open_jobs(request.round)]):
            return []
        commands: list[TrackerCommand] = []
        missing: list[str] = []
        if not request.only_withdrawn:
            commands += self._end_rounds(before=request.round, at=event.at)
        for job_id, job in self._open_jobs(request.round):
            opened = job.book.progress.open
            assert opened is not None
            late = "" if request.only_withdrawn else _LATE
            missing += [f"{job_id}.{e.fork}" for e in opened.forks if e.outcome == "expected" and late]
            commands += job.round.give_up(request.withdrawn, late)
            commands += self._drive(job_id, event.at)
        pending = tuple(job_id for job_id, _ in self._open_jobs(request.round))
        answer = CloseAnswer(round=request.round, missing=tuple(missing), pending=pending)
        return [*commands, AnswerClose(token=event.token, answer=answer)]

    def _end_rounds(self, before: int, at: float) -> list[TrackerCommand]:
        """Rounds follow one another: whatever an earlier one still waits for will not come, or comes too late."""
        commands: list[TrackerCommand] = []
        for job_id, job in sorted(self._jobs.items()):
            opened = job.book.progress.open
            if opened is not None and opened.round < before:
                given_up = job.round.give_up({}, _LATE)
                commands += [*given_up, *self._drive(job_id, at)] if given_up else []
        return commands

    def _result(self, event: ResultArrived) -> list[TrackerCommand]:
        result = event.result
        job = self._jobs.get(result.key.job_id)
        if job is None:
            return self._refuse(event, "there is no such job")
        if job.book.progress.state.ended or job.book.record.desired is Desired.CANCELLED:
            return self._refuse(event, f"the job is {job.book.progress.state}")
        if result.kind == "evaluate" and result.key.fork > 0:
            why = job.round.guard.take(result) if job.round.guard else "nobody waits for this evaluation"
            return [*(self._refuse(event, why) if why else self._accept(event)), *self._then(event)]
        if result.kind != "train":
            why, commands = job.side.take(result, event.at)
            return [*commands, *(self._refuse(event, why) if why else self._accept(event)), *self._then(event)]
        if result.key.rank > 0:
            why, commands = job.round.ranks.take(result)
            return [*commands, *self._refuse(event, why), *self._then(event)]
        fault = ledger.fault_of(job.book.progress, result)
        if fault:
            return [*job.round.late.take(result), *self._refuse(event, fault), *self._then(event)]
        return [*self._count(job, event), *self._then(event)]

    def _count(self, job: Job, event: ResultArrived) -> list[TrackerCommand]:
        opened = job.book.progress.open
        assert opened is not None
        entry = ledger.find(opened, event.result.key.fork)
        assert entry is not None
        if entry.outcome == "expected":
            return [*job.round.take(event.result), *self._accept(event)]
        if ledger.is_repeat(entry, event.result):
            return self._accept(event)
        return self._refuse(event, f"fork {entry.fork} of round {opened.round} is on record already: {entry.outcome}")

    def _then(self, event: ResultArrived) -> list[TrackerCommand]:
        return self._drive(event.result.key.job_id, event.at)

    @staticmethod
    def _accept(event: ResultArrived) -> list[TrackerCommand]:
        return [AnswerResult(token=event.token, answer=ResultAnswer(counted=True))]

    def _refuse(self, event: ResultArrived, why: str) -> list[TrackerCommand]:
        answer = AnswerResult(token=event.token, answer=ResultAnswer(counted=False, reason=why))
        unwanted = event.result.object
        if unwanted is None or self._is_recorded(event.result):
            return [answer]
        return [answer, DeleteObjects(names=(unwanted.name,))]

    def _is_recorded(self, result: ForkResult) -> bool:
        """Whether the result's object is one that the job still needs."""
        job = self._jobs.get(result.key.job_id)
        if job is None or result.object is None:
            return False
        return result.object.name in job.book.needed_objects()

    def _grant_answered(self, event: GrantAnswered) -> list[TrackerCommand]:
        job = self._jobs.get(event.key.job_id)
        if job is None or event.accepted:
            return []
        if event.key.fork > 0:
            if job.round.guard is not None:
                job.round.guard.refused(event.key, event.reason)
            return self._drive(event.key.job_id, event.at)
        return job.side.refused(event.key, event.reason, event.at)

    # --- small parts ---

    def _remember(self, record: JobRecord, progress: JobProgress) -> Job:
        return Job(JobBook(self._settings, record, progress))

    def _on_job(self, job_id: str, at: float, act: JobAction) -> list[TrackerCommand]:
        job = self._jobs.get(job_id)
        return [*act(job), *self._drive(job_id, at)] if job else []

    def _drive(self, job_id: str, at: float) -> list[TrackerCommand]:
        job = self._jobs.get(job_id)
        return job.drive(at, self._nodes) if job else []

    def _drive_all(self, at: float) -> list[TrackerCommand]:
        return [command for job_id in sorted(self._jobs) for command in self._drive(job_id, at)]

    def _open_jobs(self, round_number: int) -> list[tuple[str, Job]]:
        return [
            (job_id, job)
            for job_id, job in sorted(self._jobs.items())
            if job.book.progress.open is not None and job.book.progress.open.round == round_number
        ]
