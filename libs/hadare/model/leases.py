"""Leases: a node agent's right to run something for a job, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from hadare.model.fields import (
    Count,
    DeviceType,
    Fraction,
    JobId,
    LongText,
    NodeId,
    Positive,
    Seconds,
    Sha256,
    Text,
)
from hadare.model.jobs import JobSpec, ObjectRef

LeaseKind = Literal["init", "train", "evaluate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseKey:
    """(job, round, fork, attempt): the identity of a lease and of its result, in every ledger and log.

    Training rounds count from 1. An init or evaluate lease has its kind in the key, so that it never meets a fork's.
    Of a gang every ``rank`` has a lease of its own; the fork's steps and weights are those of rank 0.
    """

    job_id: JobId
    round: Count
    fork: Count
    attempt: Count = 0
    kind: LeaseKind = "train"
    rank: Count = 0

    def __str__(self) -> str:
        name = f"{self.job_id}.{self.round}.{self.fork}.{self.attempt}"
        if self.rank:
            name = f"{name}.r{self.rank}"
        return name if self.kind == "train" else f"{name}.{self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRank:
    """A lease's part in a gang (docs/decisions/0013-gangs.md): one rank is one device, on whatever node.

    ``shares``: samples of the global batch by rank, in proportion to the ranks' speeds; their sum is the batch of one
    update. ``address`` is host:port where rank 0 lets the others meet.
    """

    rank: Count
    shares: Annotated[tuple[Positive, ...], Meta(min_length=1, max_length=4096)]
    address: Annotated[str, Meta(min_length=3, max_length=262)]

    @property
    def world(self) -> int:
        return len(self.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What an agent may run, on what, from which weights, for how long.

    ``duration_s`` counts on the agent's monotonic clock from receipt. ``epoch`` fences: an agent refuses a lease
    whose epoch is lower than one that it has seen from the same issuer (train: allocator; init, evaluate: tracker).
    ``devices`` are indices of the node's inventory; empty: the lease runs on the host's CPU and holds no device.
    ``schedule_from/to`` are fractions of the job's budget between which the learning-rate schedule moves.
    ``gang`` is set where several devices train the fork in lockstep; such a lease has one device.
    """

    kind: LeaseKind
    key: LeaseKey
    epoch: Count
    node: NodeId
    spec: JobSpec
    devices: Annotated[tuple[int, ...], Meta(max_length=1024)] = ()
    device_type: DeviceType = "CPU"
    base_version: int = -1
    base: ObjectRef | None = None
    quota: Count = 0
    duration_s: Annotated[float, Meta(gt=0)]
    schedule_from: Fraction = 0.0
    schedule_to: Fraction = 0.0
    data_seed: Count = 0
    evaluate_base: bool = False
    gang: GangRank | None = None
    traceparent: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAnswer:
    """An agent's answer to a lease. Refusals carry a reason that the allocator records.

    ``incarnation``: the life of the agent that answers; what it has accepted dies with it.
    """

    accepted: bool
    reason: Text = ""
    incarnation: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke:
    """End every lease of the job on this node, or of those only ``leases``, by their names; answered once the devices
    are proven free.

    An order about leases is the allocator's, and fenced by its ``epoch`` as they are.
    """

    job_id: JobId
    reason: Text = ""
    leases: Annotated[tuple[Text, ...], Meta(max_length=4096)] = ()
    epoch: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """``ended`` are the leases that were running. ``free`` is false if a process could not be ended in time."""

    ended: tuple[str, ...] = ()
    free: bool = True


FailureKind = Literal[
    "import",
    "missing_data",
    "out_of_memory",
    "exception",
    "killed",
    "hung",
    "fetch",
    "upload",
    "not_finite",
    "device",
    "gang",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a lease failed. ``node_specific``: the job may well run elsewhere (missing import, data, memory).

    ``type_specific``: any device of this type would fail so, on every node; devices of other types may not (the
    memory of the type is too small for the job). Kind ``gang``: another rank ended, and this one with it; the reason
    is in that one's result.
    """

    kind: FailureKind
    message: Text
    tail: LongText = ""
    node_specific: bool = False
    type_specific: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Metrics of exactly the tensors of ``version``."""

    version: int
    sha256: Sha256
    metrics: dict[str, float]


StopReason = Literal["quota", "clock", "revoked", "drained", "failed", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkResult:
    """What a lease brought. Sent until acknowledged; the tracker counts it at most once.

    ``throughput`` is measured steps/s without warm-up (0: not measured); ``nominal_rate`` the emulated rate, if any.
    ``trained_s`` is the time from the first to the last step. Of a gang, ``throughput`` is the rank's own: samples over
    the time that it computed, in batches of the job's ``batch_size``; ``update_s`` and ``exchange_s`` are the mean time
    of an update and the part of it that the slowest rank spent in exchanging gradients.
    """

    kind: LeaseKind
    key: LeaseKey
    epoch: Count
    node: NodeId
    device_type: DeviceType
    ranks: Positive = 1
    base_version: int = -1
    steps: Count = 0
    samples: Count = 0
    updates: Count = 0
    object: ObjectRef | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    throughput: Annotated[float, Meta(ge=0)] = 0.0
    nominal_rate: Annotated[float, Meta(ge=0)] = 0.0
    trained_s: Seconds = 0.0
    update_s: Seconds = 0.0
    exchange_s: Seconds = 0.0
    reason: StopReason = "done"
    failure: Failure | None = None
    traceparent: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultAnswer:
    """The tracker's word on a result. ``counted`` is final, either way; the agent may forget the result."""

    counted: bool
    reason: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """A plain, lossy message, at most one a second and fork: how a running fork is doing."""

    key: LeaseKey
    node: NodeId
    device_type: DeviceType
    devices: tuple[int, ...] = ()
    phase: Literal["fetching", "starting", "training", "evaluating", "handing_back"] = "training"
    steps: Count = 0
    quota: Count = 0
    loss: float | None = None
    steps_per_s: float = 0.0
    nominal_rate: float = 0.0
