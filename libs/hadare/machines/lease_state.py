"""What a node agent remembers of a lease and of a process: phases, the table of transitions, results. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from hadare.machines.lease_events import LeaseId, Outcome, ProcessId, Progress, WorkPhase
from hadare.model.errors import Broken
from hadare.model.jobs import ObjectRef
from hadare.model.leases import Failure, FailureKind, ForkResult, Lease, StepReport, StopReason

_TEXT = 4096
_TAIL = 65536


class Phase(StrEnum):
    """A lease between its acceptance and its one result."""

    QUEUED = "queued"
    """Its devices, or a place on the CPU, are not free yet."""
    PREPARING = "preparing"
    """It has its process; the process or the base weights are not ready yet."""
    RUNNING = "running"
    STOPPING = "stopping"
    """The process hands back what it has, or has been told to."""
    UPLOADING = "uploading"
    """The process has handed back and is free for another lease."""
    ENDED = "ended"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.PREPARING, Phase.ENDED}),
    Phase.PREPARING: frozenset({Phase.RUNNING, Phase.ENDED}),
    Phase.RUNNING: frozenset({Phase.STOPPING, Phase.UPLOADING, Phase.ENDED}),
    Phase.STOPPING: frozenset({Phase.UPLOADING, Phase.ENDED}),
    Phase.UPLOADING: frozenset({Phase.ENDED}),
    Phase.ENDED: frozenset(),
}

WAITING = frozenset({Phase.QUEUED, Phase.PREPARING})
AT_WORK = frozenset({Phase.RUNNING, Phase.STOPPING})


class ProcessState(StrEnum):
    """A process may be claimed by a lease while it starts or waits; it is ``busy`` from the assignment on."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    ENDING = "ending"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLimits:
    """How long the machine waits for what, and how much it keeps.

    A fork that is told to stop has ``stop_grace_s``, or ``stop_grace_part`` of its lease if that is longer, until it is
    killed: saving a large model takes its time. ``hand_back_s`` runs from the moment a fork says that it hands back,
    ``revoke_grace_s`` from a revocation. A warm process that has waited ``idle_rounds`` lease durations is ended.
    ``max_devices``: of one process; a gang has a lease, and so a process, for each rank.
    ``retry_max_s`` is shorter than a tracker that takes over hears out (``TrackerSettings.hear_s``).
    ``farewell_s`` is how long an agent that stops goes on delivering once everything has stopped.
    """

    cpu_slots: int = 1
    stop_grace_s: float = 10.0
    stop_grace_part: float = 0.25
    hand_back_s: float = 60.0
    revoke_grace_s: float = 3.0
    start_limit_s: float = 120.0
    farewell_s: float = 2.0
    idle_rounds: float = 2.0
    report_every_s: float = 1.0
    retry_s: float = 0.5
    retry_max_s: float = 2.0
    max_devices: int = 1024
    max_open: int = 1024
    max_kept: int = 1024

    def grace_s(self, lease: Lease) -> float:
        return max(self.stop_grace_s, self.stop_grace_part * lease.duration_s)

    def overdue_s(self, run: Run) -> float:
        """What is left to a fork whose device the next round wants: as long as to be revoked, or two of its steps.

        How long a step takes, its quota tells of a fork that has not told of a step yet."""
        rate = run.progress.steps_per_s or run.lease.quota / run.lease.duration_s
        return max(self.revoke_grace_s, 2.0 / rate) if rate > 0 else self.grace_s(run.lease)


@dataclass(slots=True, kw_only=True)
class Run:
    """An open lease. ``deadline`` counts from receipt."""

    lease: Lease
    received_at: float
    sequence: int
    phase: Phase = Phase.QUEUED
    process: ProcessId | None = None
    cold: bool = False
    base_path: str | None = None
    fetched: bool = False
    stop_reason: StopReason | None = None
    kill_at: float | None = None
    first_step_at: float | None = None
    last_step_at: float | None = None
    done_at: float | None = None
    reported_at: float | None = None
    progress: Progress = field(default_factory=lambda: Progress(phase="starting"))
    outcome: Outcome | None = None

    @property
    def id(self) -> LeaseId:
        return str(self.lease.key)

    @property
    def deadline(self) -> float:
        return self.received_at + self.lease.duration_s

    @property
    def due(self) -> float | None:
        """When its time is up, unless only its upload is left."""
        if self.phase in AT_WORK and self.kill_at is not None:
            return self.kill_at
        return None if self.phase is Phase.UPLOADING else self.deadline

    @property
    def trained_from(self) -> str:
        """The hash of a fork's base; '' for what does not train."""
        return self.lease.base.sha256 if self.lease.kind == "train" and self.lease.base is not None else ""

    def reason(self, otherwise: StopReason | None = None) -> StopReason:
        """Why it ends. What an operator ordered wins over what the fork says of itself."""
        if self.stop_reason in ("revoked", "drained"):
            return self.stop_reason
        return otherwise or (self.outcome.reason if self.outcome else "failed")

    def move(self, phase: Phase) -> None:
        """Raises ``Broken`` if the table does not allow it; then nothing has changed."""
        if phase not in TRANSITIONS[self.phase]:
            raise Broken(f"lease {self.id} cannot go from {self.phase} to {phase}")
        self.phase = phase

    def note_progress(self, progress: Progress, at: float) -> None:
        """Remembers how far the fork has come: all that will be known of it should it crash."""
        self.progress = progress
        if progress.phase == "training":
            self.first_step_at = at if self.first_step_at is None else self.first_step_at
            self.last_step_at = at

    def kill_by(self, at: float) -> None:
        self.kill_at = at if self.kill_at is None else min(self.kill_at, at)


@dataclass(slots=True, kw_only=True)
class Process:
    """A process tree that holds ``devices`` (none: it runs on the CPU) for a job until it is proven gone."""

    id: ProcessId
    job_id: str
    devices: tuple[int, ...]
    started_at: float
    state: ProcessState = ProcessState.STARTING
    lease: LeaseId | None = None
    idle_since: float = 0.0
    idle_s: float = 0.0

    @property
    def idle_until(self) -> float:
        return self.idle_since + self.idle_s

    @property
    def claimable(self) -> bool:
        return self.lease is None and self.state in (ProcessState.STARTING, ProcessState.IDLE)


def same_work(one: Lease, other: Lease) -> bool:
    """Whether two leases of one name mean the same; a resent one may carry other clocks and another trace."""
    return (one.node, one.spec, one.devices, one.device_type, one.base, one.base_version, one.gang) == (
        other.node,
        other.spec,
        other.devices,
        other.device_type,
        other.base,
        other.base_version,
        other.gang,
    )


def failure(kind: FailureKind, message: str) -> Failure:
    return Failure(kind=kind, message=message[:_TEXT])


def clipped(fault: Failure) -> Failure:
    """Within the bounds of the wire, so that a long traceback cannot make a result undeliverable."""
    return replace(fault, message=fault.message[:_TEXT], tail=fault.tail[-_TAIL:])


def hung_text(run: Run) -> str:
    """Of a fork that was to hand back and did not: where it was when it was last heard of."""
    doing = {"evaluating": ": it was evaluating", "handing_back": ": it was saving its weights"}
    return f"it did not hand back in time{doing.get(run.progress.phase, '')}"


def result_of(run: Run, reason: StopReason, fault: Failure | None, obj: ObjectRef | None) -> ForkResult:
    """The one result of a lease. Steps whose weights were not handed back are not reported: they are lost."""
    lease, got = run.lease, run.outcome or Outcome(reason=reason)
    kept = obj is not None
    return ForkResult(
        kind=lease.kind,
        key=lease.key,
        epoch=lease.epoch,
        node=lease.node,
        device_type=lease.device_type,
        ranks=max(1, len(lease.devices)),
        base_version=lease.base_version,
        steps=got.steps if kept else 0,
        samples=got.samples if kept else 0,
        updates=got.updates if kept else 0,
        object=obj,
        metrics=got.metrics,
        evaluation=got.evaluation,
        throughput=got.throughput,
        nominal_rate=got.nominal_rate,
        trained_s=got.trained_s,
        update_s=got.update_s,
        exchange_s=got.exchange_s,
        reason=reason,
        failure=None if fault is None else clipped(fault),
    )


def step_report(run: Run, phase: WorkPhase) -> StepReport:
    lease, progress = run.lease, run.progress
    return StepReport(
        key=lease.key,
        node=lease.node,
        device_type=lease.device_type,
        devices=lease.devices,
        phase=phase,
        steps=progress.steps,
        quota=lease.quota,
        loss=progress.loss,
        steps_per_s=progress.steps_per_s,
        nominal_rate=progress.nominal_rate,
    )


def started_record(run: Run, at: float) -> dict[str, Any]:
    """Data of the event ``lease_started``. ``at_s`` is the agent's monotonic clock."""
    return {**_identity(run), "cold": run.cold, "waited_s": at - run.received_at, "at_s": at}


def ended_record(run: Run, result: ForkResult, at: float) -> dict[str, Any]:
    """Data of the event ``lease_ended``. The steps were made from ``since_last_s + trained_s`` before it, until
    ``since_last_s`` before it; ``steps`` are those made, also when they were lost. ``at_s`` as in ``lease_started``."""
    got = run.outcome or _seen(run, at)
    handing_back = 0.0 if run.done_at is None else at - run.done_at
    return {
        **_identity(run),
        "steps": got.steps,
        "trained_s": got.trained_s,
        "since_last_s": got.idle_s + handing_back,
        "upload_s": handing_back,
        "lease_s": at - run.received_at,
        "at_s": at,
        "phases_ms": got.phases_ms,
        "throughput": got.throughput,
        "nominal_rate": got.nominal_rate,
        "reason": result.reason,
        "failure": result.failure.message if result.failure else "",
        "phase": run.phase.value,
    }


def _seen(run: Run, at: float) -> Outcome:
    """What was reported of a fork that never handed back."""
    if run.first_step_at is None or run.last_step_at is None:
        return Outcome(reason="failed")
    return Outcome(
        reason="failed",
        steps=run.progress.steps,
        trained_s=run.last_step_at - run.first_step_at,
        idle_s=at - run.last_step_at,
        nominal_rate=run.progress.nominal_rate,
    )


def _identity(run: Run) -> dict[str, Any]:
    key = run.lease.key
    return {
        "kind": run.lease.kind,
        "job": key.job_id,
        "round": key.round,
        "fork": key.fork,
        "attempt": key.attempt,
        "devices": list(run.lease.devices),
        "device_type": run.lease.device_type,
    }
