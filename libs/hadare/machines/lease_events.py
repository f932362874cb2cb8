"""What happens to the leases of a node agent. Messages alone.

``at`` is the agent's monotonic clock in seconds. A lease is named by its key, a process by the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hadare.model.jobs import ObjectRef
from hadare.model.leases import Evaluation, Failure, ForkResult, Lease, StopReason

LeaseId = str
"""``str(lease.key)``."""

ProcessId = str
WorkPhase = Literal["fetching", "starting", "training", "evaluating", "handing_back"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How a fork is doing. ``steps`` counts within the lease."""

    phase: WorkPhase
    steps: int = 0
    loss: float | None = None
    steps_per_s: float = 0.0
    nominal_rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a process brought of a lease. ``path`` is the local file with the weights, if there are any.

    ``trained_s`` is the time from the first to the last step, ``idle_s`` the time from the last step until now;
    ``phases_ms`` says where the time beside the steps went. ``update_s`` and ``exchange_s`` of a gang as in
    ``ForkResult``.
    """

    reason: StopReason
    steps: int = 0
    samples: int = 0
    updates: int = 0
    path: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    throughput: float = 0.0
    nominal_rate: float = 0.0
    trained_s: float = 0.0
    idle_s: float = 0.0
    update_s: float = 0.0
    exchange_s: float = 0.0
    phases_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseArrived:
    """``ticket`` names the question that ``AnswerLease`` answers."""

    at: float
    ticket: int
    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeArrived:
    """``leases`` and ``epoch`` as in ``Revoke``."""

    at: float
    ticket: int
    job_id: str
    reason: str = ""
    leases: tuple[LeaseId, ...] = ()
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAsked:
    """The agent shall end within ``limit_s``: forks hand back what they have, nothing new is accepted."""

    at: float
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsRecovered:
    """Results of an earlier incarnation that nobody has acknowledged."""

    at: float
    results: tuple[ForkResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFetched:
    at: float
    lease: LeaseId
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    at: float
    lease: LeaseId
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReady:
    at: float
    process: ProcessId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFailed:
    """The process cannot go on: it did not start, crashed, or its user code raised. It may still have children."""

    at: float
    process: ProcessId
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnded:
    """The whole process tree has been ended. ``free``: it is proven that it holds no device any more."""

    at: float
    process: ProcessId
    free: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkProgressed:
    at: float
    process: ProcessId
    lease: LeaseId
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone:
    at: float
    process: ProcessId
    lease: LeaseId
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultUploaded:
    at: float
    lease: LeaseId
    object: ObjectRef


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadFailed:
    at: float
    lease: LeaseId
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultAnswered:
    """The tracker's final word on a result."""

    at: float
    lease: LeaseId
    counted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryFailed:
    """Nobody answered in time; whether the result arrived is unknown."""

    at: float
    lease: LeaseId
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChanged:
    at: float
    device: int
    healthy: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time has passed; due at ``LeaseMachine.wake_at()`` at the latest."""

    at: float


Event = (
    LeaseArrived
    | RevokeArrived
    | DrainAsked
    | ResultsRecovered
    | BaseFetched
    | FetchFailed
    | ProcessReady
    | ProcessFailed
    | ProcessEnded
    | WorkProgressed
    | WorkDone
    | ResultUploaded
    | UploadFailed
    | ResultAnswered
    | DeliveryFailed
    | HealthChanged
    | Ticked
)
