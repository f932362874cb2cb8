"""The endpoints about versions: which there are, where their weights lie, and how the metrics went."""

from __future__ import annotations

import asyncio

import msgspec

from hadare.model.errors import Rejected
from hadare.model.events import StoredEvent
from hadare.model.jobs import Guarded, VersionManifest
from hadare.runtime.bus import Backplane
from hadare.wire import api, subjects
from hadare_gateway.jobs import Jobs
from hadare_gateway.pages import fitting

_TOLD = ("initialised", "consolidated", "evaluated")


class Weights:
    """Reads what the tracker has written of versions; the weights themselves pass the gateway by."""

    def __init__(self, backplane: Backplane, jobs: Jobs, weights_url: str | None = None) -> None:
        """``weights_url``: where the weights are, if not in the object store."""
        self._versions = backplane.table(subjects.VERSIONS)
        self._journal = backplane.journal
        self._jobs = jobs
        self._bucket = f"{backplane.bus.prefix}_{subjects.WEIGHTS}"
        self._url = f"{weights_url.rstrip('/')}/{self._bucket}" if weights_url else ""

    async def list(self, question: api.ListWeights) -> api.WeightsList:
        record = (await self._jobs.find(question.job_id)).record
        newest = (await self._jobs.get(api.JobRef(job_id=record.job_id))).version
        if question.cursor:
            newest = min(newest, _number(question.cursor) - 1)
        wanted = range(newest, max(-1, newest - question.limit), -1)
        found = await asyncio.gather(*(self._versions.get(f"{record.job_id}.{version}") for version in wanted))
        versions = fitting([_version(entry.record) for entry in found if entry])
        # Manifests of old versions may be gone, all older ones with them: an empty page is the last.
        last = versions[-1].version if versions else 0
        return api.WeightsList(
            job_id=record.job_id,
            bucket=self._bucket,
            url=self._url,
            versions=tuple(versions),
            cursor=str(last) if last > 0 else "",
        )

    async def get(self, question: api.GetWeights) -> api.WeightsRef:
        status = await self._jobs.get(api.JobRef(job_id=question.job_id))
        version = status.version if question.version is None else question.version
        if status.version < 0:
            raise Rejected(404, f"job '{status.name}' has no model yet ({status.state.value}: {status.reason})")
        if version > status.version:
            raise Rejected(404, f"job '{status.name}' has no version {version}; the newest is {status.version}")
        entry = await self._versions.get(f"{status.job_id}.{version}")
        if entry is None or entry.record.weights_deleted:
            raise Rejected(404, f"the weights of version {version} of job '{status.name}' are no longer kept")
        return api.WeightsRef(
            job_id=status.job_id,
            name=status.name,
            version=version,
            steps=entry.record.steps,
            bucket=self._bucket,
            url=self._url,
            weights=entry.record.weights,
            metrics=entry.record.metrics,
        )

    async def history(self, question: api.ReadHistory) -> api.History:
        """Oldest first, from the job's events. A page ends at ``limit`` or where it would be too long."""
        record = (await self._jobs.find(question.job_id)).record
        events = await self._journal.read("job", record.job_id, after=question.from_seq, limit=question.limit)
        points = [_point(stored) for stored in events if stored.event.what in _TOLD]
        kept = fitting(points)
        cut = len(kept) < len(points)
        last = kept[-1].sequence if cut else events[-1].sequence if events else question.from_seq
        return api.History(
            job_id=record.job_id,
            points=tuple(kept),
            last_seq=last,
            more=cut or len(events) == question.limit,
        )


def _point(stored: StoredEvent) -> api.HistoryPoint:
    data = stored.event.data
    loss = data.get("loss")
    metrics = data.get("metrics")
    return api.HistoryPoint(
        sequence=stored.sequence,
        at=stored.at,
        version=int(data.get("version", 0)),
        steps=None if data.get("steps") is None else int(data["steps"]),
        forks=None if data.get("forks") is None else int(data["forks"]),
        devices=None if data.get("devices") is None else int(data["devices"]),
        loss=float(loss) if isinstance(loss, int | float) else None,
        metrics={str(name): float(value) for name, value in metrics.items()} if isinstance(metrics, dict) else {},
        fork_gain=float(data["fork_gain"]) if data.get("fork_gain") is not None else None,
        guard=msgspec.convert(data["guard"], Guarded) if data.get("guard") else None,
    )


def _version(manifest: VersionManifest) -> api.VersionInfo:
    return api.VersionInfo(
        version=manifest.version,
        base_version=manifest.base_version,
        steps=manifest.steps,
        weights=manifest.weights,
        metrics=manifest.metrics,
        available=not manifest.weights_deleted,
        parents=manifest.parents,
        rejected=manifest.rejected,
        guard=manifest.guard,
    )


def _number(cursor: str) -> int:
    if not cursor.isdecimal() or len(cursor) > 16:
        raise Rejected(400, f"cursor: '{cursor}' did not come from this endpoint")
    return int(cursor)
