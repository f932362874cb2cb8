"""The endpoints about jobs that exist: what users want of them, ask and watch."""

from __future__ import annotations

import re

from hadare.machines import admission
from hadare.machines.status import reason_of, state_of
from hadare.machines.validation import nearest
from hadare.model.errors import Conflict, Rejected, Unavailable
from hadare.model.events import Event
from hadare.model.jobs import JobProgress, JobRecord
from hadare.model.plans import ForkPlan
from hadare.runtime.bus import Backplane, Entry
from hadare.wire import api, subjects
from hadare_gateway.intake import Intake
from hadare_gateway.pages import fitting
from hadare_gateway.views import Views

_ATTEMPTS = 8
_SLUG = re.compile(r"^[a-z0-9][a-z0-9-]{0,62}$")
_MAX_FORKS_SHOWN = 64
_MAX_ERROR_IN_LISTS = 300


class Jobs:
    """Answers every question about jobs. Writes ``jobs`` records; what the tracker and the allocator say is joined."""

    def __init__(self, backplane: Backplane, views: Views) -> None:
        self._bus = backplane.bus
        self._journal = backplane.journal
        self._jobs = backplane.table(subjects.JOBS)
        self._names = backplane.table(api.NAMES)
        self._progress = backplane.table(subjects.PROGRESS)
        self._views = views
        self.intake = Intake(backplane)

    async def get(self, question: api.JobRef) -> api.JobStatus:
        entry = await self.find(question.job_id)
        return self.status(entry.record, await self._progress_of(entry.record))

    async def list(self, question: api.ListJobs) -> api.JobList:
        after = question.cursor
        found: list[api.JobStatus] = []
        for record in sorted(self._views.jobs.records.values(), key=_order):
            if _order(record) <= after:
                continue
            progress = self._views.progress.get(record.job_id)
            if question.state in (None, state_of(record, progress)):
                status = self.status(record, progress, short=True)
                found.append(status)
            if len(found) > question.limit:
                break
        page = fitting(found[: question.limit])
        more = len(found) > len(page)
        return api.JobList(jobs=tuple(page), cursor=_order_of(page[-1]) if more else "")

    async def cancel(self, question: api.JobRef) -> api.JobStatus:
        return await self._want(question.job_id, "cancel")

    async def pause(self, question: api.JobRef) -> api.JobStatus:
        return await self._want(question.job_id, "pause")

    async def resume(self, question: api.JobRef) -> api.JobStatus:
        return await self._want(question.job_id, "resume")

    async def delete(self, question: api.JobRef) -> api.Deleted:
        record = (await self.find(question.job_id)).record
        admission.check_delete(record, state_of(record, await self._progress_of(record)))
        await self.intake.remove(record)
        return api.Deleted(job_id=record.job_id, name=record.name)

    async def watch(self, question: api.Watch) -> api.Watching:
        job_id = (await self.find(question.job_id)).record.job_id
        events = fitting(await self._journal.read("job", job_id, after=question.from_seq, limit=question.limit))
        # The status is read after the events: it is never older than what they tell.
        return api.Watching(
            snapshot=await self.get(api.JobRef(job_id=job_id)),
            subject=self._journal.events_subject("job", job_id),
            events=tuple(events),
            last_seq=events[-1].sequence if events else question.from_seq,
        )

    async def logs(self, question: api.ReadLogs) -> api.Logs:
        job_id = (await self.find(question.job_id)).record.job_id
        found = await self._journal.logs(job_id, after=question.from_seq, limit=question.limit)
        lines = [
            api.LogEntry(
                sequence=sequence,
                round=line.round,
                fork=line.fork,
                attempt=line.attempt,
                node=line.node,
                text=line.text,
            )
            for sequence, line in found
        ]
        page = fitting(lines)
        wanted = [line for line in page if question.fork in (None, line.fork) and question.round in (None, line.round)]
        return api.Logs(
            lines=tuple(wanted),
            last_seq=page[-1].sequence if page else question.from_seq,
            more=len(page) < len(lines) or len(lines) == question.limit,
            subject=self._journal.logs_subject(job_id),
        )

    async def find(self, job: str) -> Entry[JobRecord]:
        """By identifier, else by name, from the table itself. Raises ``Rejected`` (404)."""
        if _SLUG.match(job):
            entry = await self._jobs.get(job)
            if entry is None and (claim := await self._names.get(job)):
                entry = await self._jobs.get(claim.record.job_id)
            if entry is not None:
                return entry
        hint = nearest(job, self._views.names.records)
        raise Rejected(404, f"there is no job '{job}'{hint}", {"job_id": job})

    def status(self, record: JobRecord, progress: JobProgress | None, *, short: bool = False) -> api.JobStatus:
        """The one status of a job. ``short`` (in lists) leaves out most of a long error."""
        head = self._views.head
        decision = self._views.rounds.decision(record.job_id, head)
        known = progress or JobProgress(job_id=record.job_id, name=record.name, state=state_of(record, None))
        forks = () if known.state.ended else self._views.rounds.forks(record.job_id, head)
        return api.JobStatus(
            job_id=record.job_id,
            name=record.name,
            state=state_of(record, progress),
            reason=reason_of(record, progress, decision),
            steps=known.steps,
            total_steps=record.spec.total_steps,
            version=known.version,
            metrics=known.metrics,
            metrics_version=known.metrics_version,
            eta_s=known.eta_s,
            loss=known.loss,
            desired=record.desired,
            workload=record.spec.workload,
            samples=known.samples,
            updates=known.updates,
            rounds=known.rounds,
            lost_rounds=known.lost_rounds,
            failures=known.failures,
            truth=known.truth,
            throughput={name: measured.steps_per_s for name, measured in sorted(known.throughput.items())},
            excluded=known.excluded,
            excluded_types=known.excluded_types,
            forks=tuple(self._fork(fork, head.round if head else -1) for fork in forks[:_MAX_FORKS_SHOWN]),
            decision=None if known.state.ended else decision,
            round=known.open.round if known.open else known.closed_round,
            submitted_at=record.submitted_at,
            trace_id=_trace_id(record.traceparent),
            error=known.error[-_MAX_ERROR_IN_LISTS:] if short else known.error,
        )

    def _fork(self, fork: ForkPlan, number: int) -> api.ForkNow:
        report = self._views.reports.get((fork.job_id, fork.fork))
        if report and report.key.round != number:
            report = None
        return api.ForkNow(
            fork=fork.fork,
            node="+".join(dict.fromkeys(member.node for member in fork.gang)),
            type="+".join(dict.fromkeys(member.type for member in fork.gang)),
            devices=sum(member.count for member in fork.gang),
            quota=fork.quota,
            steps=report.steps if report else 0,
            loss=report.loss if report else None,
            steps_per_s=report.steps_per_s if report else 0.0,
            phase=report.phase if report else "",
        )

    async def _want(self, job: str, what: admission.Wish) -> api.JobStatus:
        for _ in range(_ATTEMPTS):
            entry = await self.find(job)
            progress = await self._progress_of(entry.record)
            record = admission.wish(entry.record, state_of(entry.record, progress), what)
            revision = entry.revision
            if record is not entry.record:
                try:
                    revision = await self._jobs.update(record.job_id, record, entry.revision)
                except Conflict:
                    continue
            event = Event(kind="job", id=record.job_id, what=f"{what}_requested", data={"name": record.name})
            await self._journal.append(event, f"job:{record.job_id}:{what}:{revision}")
            return self.status(record, progress)
        raise Unavailable(f"job '{job}' is being changed by others; try again")

    async def _progress_of(self, record: JobRecord) -> JobProgress | None:
        entry = await self._progress.get(record.job_id)
        return entry.record if entry else None


def _order(record: JobRecord) -> str:
    return f"{record.submitted_at:017.3f}:{record.job_id}"


def _order_of(status: api.JobStatus) -> str:
    return f"{status.submitted_at:017.3f}:{status.job_id}"


def _trace_id(traceparent: str) -> str:
    parts = traceparent.split("-")
    return parts[1] if len(parts) == 4 else ""
