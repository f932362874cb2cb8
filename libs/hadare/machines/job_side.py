"""Init and evaluate leases: what the tracker asks of an agent by itself, for user code never runs in the tracker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hadare.machines.conduct import failed_on, tried
from hadare.machines.job_book import CLUSTER_TROUBLE, JobBook, NodeSeen
from hadare.machines.tracker_events import GrantLease, TrackerCommand
from hadare.model.devices import NodeState
from hadare.model.jobs import JobState, VersionManifest
from hadare.model.leases import Failure, ForkResult, Lease, LeaseKey, LeaseKind


@dataclass(slots=True)
class SideLeases:
    """The init or evaluate lease of a job that is out: on which ``node``, and until when nothing else is tried."""

    book: JobBook
    node: str = ""
    until: float = 0.0
    attempt: int = 0
    failed: int = 0

    def drive(self, at: float, nodes: Mapping[str, NodeSeen]) -> list[TrackerCommand]:
        """Sends the lease that the job needs now, unless one is out."""
        kind: LeaseKind = "init" if self.book.progress.version < 0 else "evaluate"
        if kind == "evaluate" and self.failed >= self.book.settings.max_attempts:
            return self.book.complete(f"its last version could not be evaluated: {self.book.progress.reason}")
        if self.node and nodes.get(self.node) and nodes[self.node].state is NodeState.LOST:
            self.rest()
        if at < self.until:
            return []
        node = self._choose(nodes)
        state = JobState.QUEUED if kind == "init" else JobState.EVALUATING
        if node is None:
            return self._no_node(state, nodes)
        return self._send(kind, state, node, at)

    def rest(self) -> None:
        """No lease is out any more."""
        self.node, self.until = "", 0.0

    def refused(self, key: LeaseKey, reason: str, at: float) -> list[TrackerCommand]:
        if not self.node or self.attempt != key.attempt:
            return []
        self.node, self.until = "", at + self.book.settings.retry_s
        return self.book.change(reason=f"{key.kind} on an agent was refused: {reason}"[:4096])

    def take(self, result: ForkResult, at: float) -> tuple[str, list[TrackerCommand]]:
        """Why a result does not count (empty if it does), and what follows from it."""
        return self._take_init(result, at) if result.kind == "init" else self._take_evaluation(result, at)

    def _send(self, kind: LeaseKind, state: JobState, node: str, at: float) -> list[TrackerCommand]:
        book, settings = self.book, self.book.settings
        self.attempt += 1
        self.node, self.until = node, at + settings.side_lease_s + settings.side_lease_grace_s
        lease = Lease(
            kind=kind,
            key=LeaseKey(
                job_id=book.job_id, round=max(0, book.progress.closed_round), fork=0, attempt=self.attempt, kind=kind
            ),
            epoch=settings.epoch,
            node=node,
            spec=book.record.spec,
            base_version=book.progress.version,
            base=book.progress.weights,
            duration_s=settings.side_lease_s,
            traceparent=book.record.traceparent,
        )
        doing = "its initial model is being built" if kind == "init" else "its last version is being evaluated"
        return [*book.become(state, f"{doing} on {node}"), GrantLease(lease=lease)]

    def _choose(self, nodes: Mapping[str, NodeSeen]) -> str | None:
        """Nodes that list the workload come first, then those that never failed it; each attempt goes to another."""
        able = [
            name
            for name, seen in nodes.items()
            if seen.state in (NodeState.READY, NodeState.DRAINING) and name not in self.book.progress.excluded
        ]
        listed = [name for name in able if self.book.record.spec.workload in nodes[name].inventory.workloads]
        failed = failed_on(self.book.progress)
        candidates = sorted(listed or able)
        candidates = [name for name in candidates if name not in failed] or candidates
        return candidates[self.attempt % len(candidates)] if candidates else None

    def _no_node(self, state: JobState, nodes: Mapping[str, NodeSeen]) -> list[TrackerCommand]:
        if nodes and self.book.progress.excluded.keys() >= nodes.keys():
            return self.book.fail(self.book.why_nowhere())
        return self.book.become(state, "no node is ready that could run it")

    def _take_init(self, result: ForkResult, at: float) -> tuple[str, list[TrackerCommand]]:
        book = self.book
        if book.progress.version >= 0:
            same = 0 in book.manifests and book.manifests[0].weights == result.object
            return ("" if same else "the job has its initial model already"), []
        if result.failure is not None or result.object is None:
            return "", self._failed(result, at)
        self.rest()
        self.failed = 0
        manifest = VersionManifest(
            job_id=book.job_id, version=0, base_version=-1, steps=0, weights=result.object, metrics=result.metrics
        )
        stored = book.keep(manifest)
        state = JobState.PAUSED if book.paused else JobState.WAITING
        reason = "paused by its user" if book.paused else "waits for the next round"
        changes = book.change(version=0, weights=result.object, failures=0, error="", state=state, reason=reason)
        return "", [stored, *changes, book.note("initialised", version=0)]

    def _take_evaluation(self, result: ForkResult, at: float) -> tuple[str, list[TrackerCommand]]:
        if result.evaluation is None or result.failure is not None:
            return "", self._failed(result, at)
        if result.evaluation.version != self.book.progress.version:
            return f"version {result.evaluation.version} is not the newest", []
        self.rest()
        self.failed = 0
        return "", [*self.book.note_evaluation(result), *self.conclude()]

    def conclude(self) -> list[TrackerCommand]:
        """What the metrics of the newest version mean for the job."""
        book, until = self.book, self.book.record.spec.until
        if book.progress.state.ended:
            return []
        if book.target_reached():
            return book.complete("its target is reached")
        if book.progress.steps < book.progress.total_steps:
            return book.become(JobState.WAITING, "waits for the next round")
        if until is not None and until.metric not in book.progress.metrics:
            known = ", ".join(sorted(book.progress.metrics)) or "none"
            return book.complete(f"its budget is used up; it reports no metric {until.metric!r}, only: {known}")
        if until is not None:
            return book.complete(f"its budget is used up before {until.metric} reached the target")
        return book.complete("all steps are done")

    def _failed(self, result: ForkResult, at: float) -> list[TrackerCommand]:
        """What the job did wrong counts against it; what the cluster did is tried again, after a while."""
        book = self.book
        failure = result.failure or Failure(kind="exception", message="the lease brought no result")
        self.rest()
        if failure.kind in CLUSTER_TROUBLE:
            self.until = at + book.settings.retry_s
            return book.change(reason=failure.message)
        trials = tried(book.progress.trials, result)
        if result.kind == "evaluate":
            self.failed += 1
            return book.change(reason=failure.message, error=failure.tail, trials=trials)
        own = not failure.node_specific
        changes = book.after_failure(result, failure)
        return book.change(reason=failure.message, failures=book.progress.failures + own, trials=trials, **changes)
