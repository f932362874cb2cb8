"""Submissions and deletions that survive a crash between any two of their writes.

The order of a submission is intent, name, event, job; of a deletion intent, job, name. So an intent without a job is
work to finish, and a name whose request and job are both gone is free.
"""

from __future__ import annotations

import structlog

from hadare.machines import admission
from hadare.machines.admission import NameClaim, SubmitIntent
from hadare.model.errors import Conflict, Rejected, Unavailable
from hadare.model.events import Event
from hadare.model.jobs import JobRecord
from hadare.runtime.bus import Backplane, Entry
from hadare.wire import api, subjects

_ATTEMPTS = 8

log = structlog.get_logger("hadare.gateway")


class Intake:
    """Everything that creates or removes jobs. Any number of gateways may run one at the same time."""

    def __init__(self, backplane: Backplane) -> None:
        self._requests = backplane.table(api.REQUESTS)
        self._names = backplane.table(api.NAMES)
        self._jobs = backplane.table(subjects.JOBS)
        self._journal = backplane.journal

    async def knows(self, request_id: str) -> bool:
        """Whether the request has been here before: then its spec was found good."""
        return await self._requests.get(admission.request_key(request_id)) is not None

    async def submit(self, intent: SubmitIntent) -> api.Submitted:
        """Creates the job, or finds the one that the same request has made. Raises ``Rejected`` (409)."""
        key = admission.request_key(intent.request_id)
        known = await self._requests.get(key)
        repeated = known is not None
        if known is None:
            try:
                known = Entry(key, await self._requests.create(key, intent), intent)
            except Conflict:
                known, repeated = await self._requests.get(key), True
        if known is None:
            raise Unavailable("the same request is being withdrawn at this moment; send it again")
        admission.same_spec(known.record.record, intent.record.digest)
        created = await self.finish(known, repeated=repeated)
        record = known.record.record
        return api.Submitted(job_id=record.job_id, name=record.name, created=created)

    async def finish(self, intent: Entry[SubmitIntent], *, repeated: bool = True) -> bool:
        """Brings an intent to its end; says whether this call made the job. Raises ``Rejected`` (409)."""
        record = intent.record.record
        holder = await self._claim(record)
        if holder is not None:
            await self._withdraw(intent)
            raise admission.name_taken(record.name, holder)
        if not repeated or not await self._announced(record):
            await self._journal.append(_submitted(record), f"job:{record.job_id}:submitted")
        try:
            await self._jobs.create(record.job_id, record)
        except Conflict:
            await self._check_same(intent)
            return False
        return True

    async def remove(self, record: JobRecord) -> None:
        """Forgets an ended job: its request, its record and its name. The tracker sees it and cleans up the rest."""
        event = Event(kind="job", id=record.job_id, what="deleted", data={"name": record.name})
        await self._journal.append(event, f"job:{record.job_id}:deleted")
        await self._requests.delete(admission.request_key(record.request_id))
        await self._jobs.delete(record.job_id)
        await self._release(record.name, record.job_id)

    async def finish_dangling(self, key: str) -> None:
        """Finishes what a crashed gateway has begun, if the intent still stands without its job."""
        intent = await self._requests.get(key)
        if intent is None or await self._jobs.get(intent.record.record.job_id):
            return
        try:
            await self.finish(intent)
        except Rejected as refusal:
            log.info("dangling submission withdrawn", job_id=intent.record.record.job_id, cause=refusal.message)
        else:
            log.info("dangling submission finished", job_id=intent.record.record.job_id)

    async def free_stale(self, name: str) -> None:
        """Frees a name that a crashed deletion has left behind."""
        claim = await self._names.get(name)
        if claim is not None and not await self._alive(claim.record):
            await self._release(name, claim.record.job_id)

    async def _claim(self, record: JobRecord) -> str | None:
        """Makes the name the job's; says whose it is if that cannot be."""
        mine = admission.claim_of(record)
        for _ in range(_ATTEMPTS):
            try:
                await self._names.create(record.name, mine)
            except Conflict:
                claim = await self._names.get(record.name)
            else:
                return None
            if claim is None:
                continue
            if claim.record.job_id != record.job_id and await self._alive(claim.record):
                return claim.record.job_id
            try:
                # Written anew even if it is ours: a rival that found it stale must lose its compare-and-set.
                await self._names.update(record.name, mine, claim.revision)
            except Conflict:
                continue
            return None
        raise Unavailable(f"the name '{record.name}' is contended; try again")

    async def _alive(self, claim: NameClaim) -> bool:
        return bool(await self._requests.get(claim.request) or await self._jobs.get(claim.job_id))

    async def _announced(self, record: JobRecord) -> bool:
        events = await self._journal.read("job", record.job_id, limit=1)
        return any(stored.event.what == "submitted" for stored in events)

    async def _check_same(self, intent: Entry[SubmitIntent]) -> None:
        """The job exists already. If it is of another spec (its intent was deleted), this request must go."""
        record = intent.record.record
        existing = await self._jobs.get(record.job_id)
        if existing is None or existing.record.digest == record.digest:
            return
        await self._withdraw(intent)
        if existing.record.name != record.name:
            await self._release(record.name, record.job_id)
        admission.same_spec(existing.record, record.digest)

    async def _withdraw(self, intent: Entry[SubmitIntent]) -> None:
        try:
            await self._requests.delete(intent.name, intent.revision)
        except Conflict:
            log.debug("intent was withdrawn by another gateway", request=intent.name)

    async def _release(self, name: str, job_id: str) -> None:
        claim = await self._names.get(name)
        if claim is None or claim.record.job_id != job_id:
            return
        try:
            await self._names.delete(name, claim.revision)
        except Conflict:
            log.debug("name was claimed anew", name=name)


def _submitted(record: JobRecord) -> Event:
    spec = record.spec
    data = {"name": record.name, "workload": spec.workload, "total_steps": spec.total_steps}
    return Event(kind="job", id=record.job_id, what="submitted", data=data)
