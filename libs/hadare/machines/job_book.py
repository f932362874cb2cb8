"""A job's record, progress and manifests, and the few ways in which they change. No rule about *when* lives here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hadare.machines.tracker_events import DeleteObjects, Record, StoreManifest, StoreProgress, TrackerCommand
from hadare.model.devices import NodeInventory, NodeState
from hadare.model.events import Event
from hadare.model.jobs import Desired, JobProgress, JobRecord, JobState, ObjectRef, VersionManifest
from hadare.model.leases import Failure, FailureKind, ForkResult

CLUSTER_TROUBLE: frozenset[FailureKind] = frozenset({"fetch", "upload", "device"})
"""Failures that say nothing of the job: a store or a device was not to be had."""

OWN_FAULT: frozenset[FailureKind] = frozenset({"exception", "not_finite", "hung"})
"""Failures that count against a job if its whole round brought nothing."""


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """Times in seconds. ``max_attempts``: failures in a row after which a job is given up.

    ``keep_versions``: how many versions keep their weights; older ones keep their manifest only. ``sweep_s``: how
    often the weights store is searched for what nobody needs. ``stalled_rounds``: rounds in a row without progress
    after which, and after each as many more, the job's history says so. ``guard_s``: how long the evaluation of a
    guard's candidates may keep a job from its next round. ``hear_s``: how long a tracker that takes over waits for
    results that nobody heard before it closes a round; agents tell them again sooner.
    """

    epoch: int = 1
    keep_versions: int = 3
    side_lease_s: float = 300.0
    side_lease_grace_s: float = 10.0
    retry_s: float = 2.0
    max_attempts: int = 3
    sweep_s: float = 300.0
    stalled_rounds: int = 5
    guard_s: float = 15.0
    hear_s: float = 4.0


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """What the tracker knows of a node."""

    inventory: NodeInventory
    state: NodeState


@dataclass(slots=True)
class JobBook:
    """What is known of one job. ``change`` keeps it and the stored progress the same."""

    settings: TrackerSettings
    record: JobRecord
    progress: JobProgress
    manifests: dict[int, VersionManifest] = field(default_factory=dict)

    @property
    def job_id(self) -> str:
        return self.record.job_id

    @property
    def paused(self) -> bool:
        return self.record.desired is Desired.PAUSED

    def change(self, **changes: Any) -> list[TrackerCommand]:
        self.progress = replace(self.progress, **changes)
        return [StoreProgress(progress=self.progress)]

    def become(self, state: JobState, reason: str) -> list[TrackerCommand]:
        """A state with its reason; nothing if that is what it is already."""
        if (self.progress.state, self.progress.reason) == (state, reason):
            return []
        return self.change(state=state, reason=reason[:4096])

    def keep(self, manifest: VersionManifest) -> StoreManifest:
        self.manifests[manifest.version] = manifest
        return StoreManifest(manifest=manifest)

    def note(self, what: str, **data: Any) -> Record:
        """An event of the job's history; ``what`` is ``name`` or ``name.<occurrence>``, which makes it unique."""
        event = Event(kind="job", id=self.job_id, what=what.split(".")[0], data=data)
        return Record(event=event, message_id=f"{self.job_id}.{what}")

    def fail(self, reason: str) -> list[TrackerCommand]:
        return [
            *self.change(state=JobState.FAILED, reason=reason[:4096], eta_s=None),
            self.note("failed", reason=reason[:4096], error=self.progress.error),
        ]

    def why_nowhere(self) -> str:
        """What each of the nodes lacks for the job, once that is all of them."""
        return f"no node can run it: {'; '.join(f'{n}: {w}' for n, w in sorted(self.progress.excluded.items()))}"

    def complete(self, reason: str) -> list[TrackerCommand]:
        done = self.change(state=JobState.COMPLETED, reason=reason[:4096], eta_s=0.0)
        progress = self.progress
        data = {"steps": progress.steps, "version": progress.version, "metrics": progress.metrics, "reason": reason}
        return [*done, self.note("completed", **data)]

    def after_failure(self, result: ForkResult, failure: Failure) -> dict[str, Any]:
        """What a failed lease changes: a node or device type at fault is left out, the traceback's tail is kept."""
        if failure.kind == "gang":
            return {}  # why is told by the rank that ended first
        changes: dict[str, Any] = {"error": failure.tail or failure.message}
        if failure.node_specific:
            changes["excluded"] = {**self.progress.excluded, result.node: failure.message}
        if failure.type_specific:
            changes["excluded_types"] = {**self.progress.excluded_types, result.device_type: failure.message}
        return changes

    def note_excluded_type(self, result: ForkResult) -> list[TrackerCommand]:
        """A line of the job's history, once a device type."""
        failure, kind = result.failure, result.device_type
        if failure is None or not failure.type_specific or kind in self.progress.excluded_types:
            return []
        data = {"device_type": kind, "node": result.node, "reason": failure.message}
        return [self.note(f"type_excluded.{kind}", **data)]

    def note_evaluation(self, result: ForkResult) -> list[TrackerCommand]:
        """Metrics belong to the version whose tensors were evaluated, whichever is the newest by now."""
        seen = result.evaluation
        if seen is None or seen.version not in self.manifests or seen.version < self.progress.metrics_version:
            return []
        manifest = self.manifests[seen.version]
        if manifest.weights.sha256 != seen.sha256 or manifest.metrics == seen.metrics:
            return []
        return [
            self.keep(replace(manifest, metrics=seen.metrics)),
            *self.change(metrics=seen.metrics, metrics_version=seen.version),
            self.note(f"evaluated.{seen.version}", version=seen.version, metrics=seen.metrics),
        ]

    def retire_versions(self) -> list[TrackerCommand]:
        """Deletes the weights of all but the newest versions; the manifests stay, as the history of the job."""
        oldest_kept = self.progress.version - self.settings.keep_versions + 1
        old = [m for v, m in sorted(self.manifests.items()) if v < oldest_kept and not m.weights_deleted]
        commands: list[TrackerCommand] = []
        for manifest in old:
            commands += [self.keep(replace(manifest, weights_deleted=True)), *delete([manifest.weights])]
        return commands

    def needed_objects(self) -> set[str]:
        """Names of the weights that the job still needs: of its kept versions and of its open round's forks."""
        opened = self.progress.open
        forks = {entry.object.name for entry in (opened.forks if opened else ()) if entry.object is not None}
        kept = {manifest.weights.name for manifest in self.manifests.values() if not manifest.weights_deleted}
        newest = {self.progress.weights.name} if self.progress.weights else set()
        return forks | kept | newest

    def target_reached(self) -> bool:
        """Whether the metrics at hand reach the job's ``until``; false if it has none."""
        until = self.record.spec.until
        value = self.progress.metrics.get(until.metric) if until else None
        if until is None or value is None:
            return False
        above = until.at_least is None or value >= until.at_least
        below = until.at_most is None or value <= until.at_most
        return above and below

    def is_decided(self) -> bool:
        """Whether the newest version ends the job by metrics that are known already: a guard has evaluated it."""
        known = self.progress.metrics_version == self.progress.version >= 0
        return known and (self.progress.steps >= self.progress.total_steps or self.target_reached())

    def must_evaluate(self) -> bool:
        """Whether the newest version decides if the job ends here."""
        if self.progress.version >= 0 and self.progress.steps >= self.progress.total_steps:
            return True
        return self.target_reached() and self.progress.metrics_version < self.progress.version


def fails_by_itself(book: JobBook, failure: Failure) -> bool:
    """A process that is killed may be an accident, but not for ever: some jobs kill whatever runs them."""
    if failure.kind == "killed" and not failure.node_specific:
        return book.progress.barren >= book.settings.max_attempts
    return failure.kind in OWN_FAULT


def delete(objects: Iterable[ObjectRef | None]) -> list[TrackerCommand]:
    names = tuple(sorted(ref.name for ref in objects if ref is not None))
    return [DeleteObjects(names=names)] if names else []
