"""Jobs: what a user asks for (``JobSpec``), what the gateway stores, and how far the tracker has brought it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

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

WorkloadName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][\w]*(\.[A-Za-z_][\w]*)*:[A-Za-z_]\w*\Z",
        max_length=255,
        description="pkg.module:Class or pkg.module:function, importable on the node agents",
    ),
]


Name = Annotated[str, Meta(min_length=1, max_length=512)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Where a job may run. Empty means anywhere."""

    types: Annotated[tuple[DeviceType, ...], Meta(max_length=64)] = ()
    labels: Annotated[dict[str, str], Meta(max_length=32)] = field(default_factory=dict)
    min_memory_gb: Annotated[float, Meta(ge=0, le=65536)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """End on a target metric instead of on steps; ``total_steps`` is then the budget."""

    metric: Text
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSpec:
    """Evaluate several ways to make a version, and keep the average unless another is better by ``margin``.

    ``margin`` is a fraction of the average's ``metric``. Costs four evaluations a round.
    """

    metric: Annotated[str, Meta(min_length=1, max_length=256)]
    better: Literal["higher", "lower"]
    margin: Fraction = 0.01


HalfLife = Annotated[float, Meta(gt=0, le=1e12)] | Literal["round"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationSpec:
    """How the forks of a round become one model. The default is the paper's step-weighted average.

    ``diloco`` takes an outer step with Nesterov momentum along the averaged change instead; ``auto`` one that is as
    long as the fastest fork's way, however unequal the forks are. ``outer_rate`` unset: 1 for
    the average, 0.7 for diloco; ``outer_momentum`` unset: 0.5, for diloco alone. ``ema_half_life``: keep an average of
    the versions too, in which a version's part halves after so many steps of the job, or each round; ``None`` keeps
    none. It is evaluated with the version. ``transport``: how forks' results travel, whole or as changes in bf16.
    ``guard``: see there.
    """

    method: Literal["auto", "weighted_average", "diloco"] = "weighted_average"
    outer_rate: Annotated[float, Meta(gt=0, le=4)] | None = None
    outer_momentum: Annotated[float, Meta(ge=0, lt=1)] | None = None
    max_norm_ratio: Annotated[float, Meta(gt=1)] = 5.0
    ema_half_life: HalfLife = None
    transport: Literal["full", "bf16"] = "full"
    guard: GuardSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The job file (YAML or the API's ``spec``). Immutable once accepted.

    ``batch_size`` is samples per step; ``total_steps`` the budget in steps of the whole job, summed over forks.
    ``mode``: whether the devices that a job gets in a round train forks that are averaged, or one gang in lockstep.
    ``code`` is a bundle's hash, ``start_from`` names version 0's weights, and ``start_object`` is what the gateway has
    found under that name (users do not write it). A job without a ``utility`` gets the policy's own.
    ``fork_after``: rounds before the first forks; ``auto``: until the loss curve bends. ``fork_gain``: what placement
    takes several forks to be worth, their summed steps as the paper does, or what was estimated of this job.
    """

    name: JobId | None = None
    workload: WorkloadName
    config: Annotated[dict[str, Any], Meta(max_length=256)] = field(default_factory=dict)
    total_steps: Annotated[int, Meta(ge=1, le=10**12)]
    batch_size: Annotated[int, Meta(ge=1, le=10**7)]
    gang: Annotated[int, Meta(ge=1, le=4096)] = 1
    mode: Literal["forks", "gang", "auto"] = "forks"
    max_forks: Annotated[int, Meta(ge=1, le=4096)] | None = None
    min_fork_share: Fraction = 0.0
    fork_after: Annotated[int, Meta(ge=0, le=10**6)] | Literal["auto"] = 0
    fork_gain: Literal["steps", "measured"] = "steps"
    utility: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)] | None = None
    priority: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    deadline: Annotated[float, Meta(gt=0)] | None = None
    constraints: Constraints = field(default_factory=Constraints)
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    until: Until | None = None
    accounting: Literal["steps"] = "steps"
    consolidation: ConsolidationSpec = field(default_factory=ConsolidationSpec)
    evaluate_every_rounds: Annotated[int, Meta(ge=1, le=10**6)] = 1
    env: Annotated[dict[str, str], Meta(max_length=128)] = field(default_factory=dict)
    code: Sha256 | None = None
    requirements: Annotated[tuple[Name, ...], Meta(max_length=128)] = ()
    data: Annotated[tuple[Name, ...], Meta(max_length=128)] = ()
    start_from: Name | None = None
    start_object: ObjectRef | None = None


class Desired(StrEnum):
    """What the user wants of a job; it wins over whatever is in flight."""

    RUN = "run"
    PAUSED = "paused"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """KV ``jobs``, written by the gateway alone: the spec and what the user wants.

    ``submitted_at`` is the gateway's wall clock (Unix seconds), for people to read, never compared.
    ``traceparent`` is the W3C trace context of the submission; every span of the job descends from it.
    """

    schema: int = 1
    job_id: JobId
    name: JobId
    spec: JobSpec
    desired: Desired = Desired.RUN
    request_id: Text
    digest: Sha256
    submitted_at: float = 0.0
    traceparent: Text = ""


class JobState(StrEnum):
    """DESIGN §4. ``waiting`` has a model and no devices in this round; ``queued`` has no model yet."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    EVALUATING = "evaluating"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """An immutable object of the weights store: its name is derived from its content."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    sha256: Sha256
    bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A smoothed measurement of one rank's throughput on a device type, in steps/s, of ``count`` observations."""

    steps_per_s: Annotated[float, Meta(ge=0)]
    count: Count
    surprises: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangTimes:
    """Smoothed seconds of a gang's update, and of the part of it that goes into exchanging gradients."""

    update_s: Seconds
    exchange_s: Seconds
    count: Count


GangSpan = Literal["packed", "spread"]
"""On one node, or over several: gradients travel otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a gang's rank is."""

    node: NodeId
    device_type: DeviceType


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One fork that the open round expects, and what it brought. Of a gang, ranks 1, 2, … are in ``others``,
    and those of them that have told of their end in ``reported``.

    ``received``: its result is on record and takes part in the consolidation; ``missing``: it counts nothing.
    ``devices``: indices of the node's devices that hold its (of a gang: its first rank's) process.
    """

    fork: Count
    attempt: Count = 0
    node: NodeId
    device_type: DeviceType
    ranks: Positive = 1
    devices: Annotated[tuple[int, ...], Meta(max_length=1024)] = ()
    quota: Count
    outcome: Literal["expected", "received", "missing"] = "expected"
    reason: Text = ""
    loss: float | None = None
    steps: Count = 0
    samples: Count = 0
    updates: Count = 0
    object: ObjectRef | None = None
    others: Annotated[tuple[RankPlace, ...], Meta(max_length=4096)] = ()
    reported: Annotated[tuple[Count, ...], Meta(max_length=4096)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRound:
    """The ledger of the round that a job takes part in. A result counts only if its epoch and base are these.

    ``own_fault``: a fork of the round has failed by what the job itself did.
    """

    round: Count
    epoch: Count
    base_version: Count
    forks: tuple[LedgerEntry, ...]
    own_fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How a job last fared on a node: in ``round``; ``failed`` times in a row by then, since round ``first``.

    ``version``: what it was to train there. ``hardware``: what failed last was the device itself; ``accident``: its
    process was killed by we do not know whom; ``evaluating``: it failed to evaluate, which says nothing of training.
    """

    round: Count
    failed: Count = 0
    first: Count = 0
    version: int = -1
    hardware: bool = False
    accident: bool = False
    evaluating: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkTruth:
    """What forks have been to a job, from ``rounds`` rounds with several (``forking.gain``).

    ``noise_steps``: after so many steps of one fork, the way that all share and its own noise are equally long.
    ``gain``: progress of the last such round over that of its fastest fork alone, estimated; that fork did
    ``fastest_steps``. ``agreement``: the mean cosine of the forks with what was made of them. ``alone``: rounds
    of a single fork since.
    """

    rounds: Count
    noise_steps: Annotated[float, Meta(gt=0)]
    gain: float
    fastest_steps: Count
    agreement: float = 0.0
    alone: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """KV ``progress`` (keys ``job.<id>``), written by the tracker alone.

    ``version`` and ``steps`` change in one write, so nobody sees one without the other. -1: no model yet.
    ``metrics`` are those of ``metrics_version``'s weights. ``throughput`` is keyed by device type.
    ``excluded`` maps a node to why this job cannot run there, ``excluded_types`` a device type.
    ``round_steps``: what the last closed round brought.
    ``barren``: rounds in a row that brought nothing. ``gang_times``: what its gangs have measured. ``trials``: how
    the job fared on the nodes where it was last. ``losses``: of the rounds until the curve was ``bent``
    (``forking.bend``).
    ``path``: how far the averaged model has travelled, in steps (``forking.schedule``).
    """

    schema: int = 1
    job_id: JobId
    name: JobId
    state: JobState
    reason: Text = ""
    steps: Count = 0
    samples: Count = 0
    updates: Count = 0
    path: float = 0.0
    total_steps: Count = 0
    version: int = -1
    weights: ObjectRef | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    metrics_version: int = -1
    loss: float | None = None
    rounds: Count = 0
    lost_rounds: Count = 0
    barren: Count = 0
    failures: Count = 0
    throughput: dict[str, Measured] = field(default_factory=dict)
    gang_times: dict[GangSpan, GangTimes] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)
    excluded_types: dict[str, str] = field(default_factory=dict)
    trials: dict[str, Trial] = field(default_factory=dict)
    truth: ForkTruth | None = None
    losses: Annotated[tuple[float, ...], Meta(max_length=256)] = ()
    bent: bool = False
    open: OpenRound | None = None
    closed_round: int = -1
    round_steps: Count = 0
    eta_s: Seconds | None = None
    error: LongText = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """A fork that went into a version: its part of the weighted mean and what its delta looked like.

    ``transport_error``: what rounding its delta for the way cost, of its length.
    """

    round: Count
    fork: Count
    attempt: Count
    node: NodeId
    device_type: DeviceType
    steps: Count
    weight: Fraction
    sha256: Sha256
    delta_norm: float = 0.0
    agreement: float = 0.0
    transport_error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """What a guard made of a round: the candidate ``chosen`` by the ``scores``, or why it is the average unseen."""

    chosen: Text
    scores: dict[str, float] = field(default_factory=dict)
    reason: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionManifest:
    """KV ``progress`` (keys ``version.<job>.<n>``). Exists for readers only once progress names it or a later one.

    ``steps`` are all that were counted, also those of forks whose weight is 0 since a guard chose another's model.
    """

    schema: int = 1
    job_id: JobId
    version: Count
    base_version: int
    steps: Count
    weights: ObjectRef
    parents: tuple[Parent, ...] = ()
    rejected: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    guard: Guarded | None = None
    weights_deleted: bool = False
