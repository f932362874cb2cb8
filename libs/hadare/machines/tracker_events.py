"""What the tracker hears (events, past tense) and what it wants done (commands, imperative)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hadare.model.devices import NodeInventory, NodeState
from hadare.model.events import Event
from hadare.model.jobs import ConsolidationSpec, JobProgress, JobRecord, ObjectRef, VersionManifest
from hadare.model.leases import ForkResult, Lease, LeaseKey, ResultAnswer
from hadare.model.rounds import CloseAnswer, CloseRequest, OpenAnswer, OpenRequest

Token = int
"""Names a question that waits for its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanged:
    """The gateway wrote a job: a new one, or another wish for a known one."""

    at: float
    record: JobRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDeleted:
    at: float
    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanged:
    """``inventory`` None: the node has left for good."""

    at: float
    node: str
    inventory: NodeInventory | None
    state: NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAsked:
    at: float
    request: OpenRequest
    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseAsked:
    at: float
    request: CloseRequest
    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultArrived:
    at: float
    result: ForkResult
    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkKept:
    """A fork that the consolidation accepted, with its weight in the mean and what its delta looked like."""

    fork: int
    weight: float
    delta_norm: float
    agreement: float
    transport_error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A version that a guard may choose: its weights, stored, and the part of each fork in it (none: 0)."""

    weights: ObjectRef
    parts: dict[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidated:
    """``weights`` None: no fork could be accepted, the base stays; ``rejected`` says why, by fork.

    ``candidates`` by their names (``forking.outer``) if a guard is to choose; ``weights`` is then the average's.
    ``changes``: what makes the weights of their base, where that is stored too. ``notes``: what was decided of tensors
    that have no mean.
    """

    at: float
    job_id: str
    round: int
    weights: ObjectRef | None
    kept: tuple[ForkKept, ...] = ()
    rejected: dict[int, str] = field(default_factory=dict)
    candidates: dict[str, Candidate] = field(default_factory=dict)
    changes: ObjectRef | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationFailed:
    """The averaging could not be done (store unreachable, disk full): to be tried again."""

    at: float
    job_id: str
    round: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantAnswered:
    """An agent's answer to an init or evaluate lease; ``accepted`` False also when it could not be reached."""

    at: float
    key: LeaseKey
    node: str
    accepted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeAnswered:
    """``free``: the node has proven that no process of the job is left. False also when it could not be reached."""

    at: float
    job_id: str
    node: str
    free: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsListed:
    """The names of all objects in the weights store."""

    at: float
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestsRead:
    """Manifests of older versions, read after the start."""

    at: float
    manifests: tuple[VersionManifest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    at: float


TrackerEvent = (
    JobChanged
    | JobDeleted
    | NodeChanged
    | OpenAsked
    | CloseAsked
    | ResultArrived
    | Consolidated
    | ConsolidationFailed
    | GrantAnswered
    | RevokeAnswered
    | ObjectsListed
    | ManifestsRead
    | Ticked
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreManifest:
    manifest: VersionManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreProgress:
    """The one write that makes steps and version visible together. All that it names is stored before it."""

    progress: JobProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantLease:
    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeJob:
    job_id: str
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """A fork's result as it goes into the consolidation."""

    fork: int
    attempt: int
    steps: int
    object: ObjectRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidate:
    """``nodes``: where the forks trained, which are likely to train from the version as well."""

    job_id: str
    round: int
    base: ObjectRef
    version: int
    forks: tuple[Contribution, ...]
    nodes: tuple[str, ...] = ()
    how: ConsolidationSpec
    traceparent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOpen:
    token: Token
    answer: OpenAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerClose:
    token: Token
    answer: CloseAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerResult:
    token: Token
    answer: ResultAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseQuestion:
    """The question is out of date (an older epoch); the asker gets ``Rejected`` (412)."""

    token: Token
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Append to the history, once per ``message_id``."""

    event: Event
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListObjects:
    """Comes back as ``ObjectsListed``, or, if the store cannot be read now, not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteObjects:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetJob:
    """Remove the progress, the manifests and the objects of a deleted job."""

    job_id: str
    versions: tuple[int, ...]


TrackerCommand = (
    StoreManifest
    | StoreProgress
    | GrantLease
    | RevokeJob
    | Consolidate
    | AnswerOpen
    | AnswerClose
    | AnswerResult
    | RefuseQuestion
    | Record
    | ListObjects
    | DeleteObjects
    | ForgetJob
)
