"""What a node agent must do about its leases, in the order given. Messages alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hadare.machines.lease_events import LeaseId, ProcessId
from hadare.model.devices import Device
from hadare.model.jobs import JobSpec, ObjectRef
from hadare.model.leases import ForkResult, Lease, LeaseAnswer, LeaseKey, Revoked, StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLease:
    ticket: int
    answer: LeaseAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRevoke:
    ticket: int
    answer: Revoked


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """A lease has been accepted: its part of the job's trace begins, and ends with the first ``Deliver``."""

    lease_id: LeaseId
    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Bring the base weights onto this node. Comes back as ``BaseFetched`` or ``FetchFailed``.

    ``sent``: they are a user's, in the object store ``code``.
    """

    lease: LeaseId
    ref: ObjectRef
    sent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProcess:
    """Comes back as ``ProcessReady`` or ``ProcessFailed``. ``key`` is the lease that it is first meant for."""

    process: ProcessId
    key: LeaseKey
    spec: JobSpec
    devices: tuple[int, ...]
    device_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Let a ready process do a lease that has ``left_s`` to go. Comes back as ``WorkDone`` or ``ProcessFailed``."""

    process: ProcessId
    lease_id: LeaseId
    lease: Lease
    base_path: str | None
    left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Ask a process to stop training and to hand back what it has. Comes back as ``WorkDone``."""

    process: ProcessId
    lease: LeaseId


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """End the whole process tree and prove its devices free. Always comes back as ``ProcessEnded``."""

    process: ProcessId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Comes back as ``ResultUploaded`` or ``UploadFailed``. ``base``: the hash of what a fork began from; '' if the
    result must be whole."""

    lease: LeaseId
    path: str
    base: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """A weights file that nothing will come of."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Keep the result on disk and tell the tracker once. Comes back as ``ResultAnswered`` or ``DeliveryFailed``."""

    lease: LeaseId
    result: ForkResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The result need not be kept any longer."""

    lease: LeaseId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    report: StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An entry of the node's history."""

    what: str
    lease: LeaseId
    data: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportHealth:
    """The inventory has changed."""

    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Nothing runs any more. ``undelivered`` results stay on disk for the next incarnation."""

    undelivered: int


Command = (
    AnswerLease
    | AnswerRevoke
    | Follow
    | Fetch
    | StartProcess
    | Assign
    | Stop
    | Kill
    | Upload
    | Discard
    | Deliver
    | Forget
    | Report
    | Record
    | ReportHealth
    | Drained
)
