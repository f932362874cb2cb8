"""The gateway's message API about jobs and their weights (DESIGN §7), and the records that only the gateway keeps.

A question is checked with ``machines.validation``: an unknown field is a fault with a suggestion.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from hadare.machines.admission import NameClaim, SubmitIntent
from hadare.model.events import Event, StoredEvent
from hadare.model.fields import Count
from hadare.model.jobs import Desired, ForkTruth, Guarded, JobState, ObjectRef, Parent
from hadare.model.plans import Decision
from hadare.wire import api_cluster
from hadare.wire.api_cluster import Cursor, Limit
from hadare.wire.subjects import Endpoint, Records, Topic

JobName = Annotated[str, Meta(min_length=1, max_length=63, description="a job's name or its job_id")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """``spec`` is a job file as a map. Without a ``request_id`` the request cannot be repeated safely."""

    spec: dict[str, Any]
    request_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """``created`` is false if an earlier request with the same ``request_id`` made the job."""

    job_id: str
    name: str
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRef:
    """``job_id`` may also be the job's name, here and in every question about a job."""

    job_id: JobName


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkNow:
    """A fork of the open round. ``steps``, ``loss``, ``steps_per_s``, ``phase``: from its last report, if any."""

    fork: Count
    node: str
    type: str
    devices: Count
    quota: Count
    steps: Count = 0
    loss: float | None = None
    steps_per_s: float = 0.0
    phase: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """The record, the tracker's progress and the allocator's decision, joined.

    ``steps`` are counted steps; those of forks that still train are in ``forks``. ``throughput`` is steps/s of one
    rank by device type. ``truth``: what forking has been worth, as far as that can be estimated. ``excluded`` and
    ``excluded_types`` say why the job cannot run on a node or a device type. ``decision`` is the newest round's.
    ``eta_s`` is null while nothing can be estimated.
    """

    job_id: str
    name: str
    state: JobState
    reason: str
    steps: Count
    total_steps: Count
    version: int
    metrics: dict[str, float]
    eta_s: float | None
    metrics_version: int = -1
    loss: float | None = None
    desired: Desired = Desired.RUN
    workload: str = ""
    samples: Count = 0
    updates: Count = 0
    rounds: Count = 0
    lost_rounds: Count = 0
    failures: Count = 0
    truth: ForkTruth | None = None
    throughput: dict[str, float] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)
    excluded_types: dict[str, str] = field(default_factory=dict)
    forks: tuple[ForkNow, ...] = ()
    decision: Decision | None = None
    round: int = -1
    submitted_at: float = 0.0
    trace_id: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListJobs:
    """``state`` null: jobs in any state."""

    state: JobState | None = None
    limit: Limit = 100
    cursor: Cursor = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """In the order of submission. ``cursor`` is for the next page; empty on the last."""

    jobs: tuple[JobStatus, ...]
    cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """What was deleted."""

    job_id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """``from_seq``: events after this sequence number come with the answer (0: from the beginning)."""

    job_id: JobName
    from_seq: Count = 0
    limit: Limit = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """Subscribe to ``subject`` first, then ask; ask again with ``last_seq`` for what came since, without a gap."""

    snapshot: JobStatus
    subject: str
    events: tuple[StoredEvent, ...] = ()
    last_seq: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLogs:
    """Lines after ``from_seq``; ``round`` and ``fork`` narrow them down."""

    job_id: JobName
    from_seq: Count = 0
    limit: Limit = 200
    fork: Count | None = None
    round: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """What a fork printed."""

    sequence: Count
    round: Count
    fork: Count
    attempt: Count
    node: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """Oldest first. ``more``: there are further lines after ``last_seq`` already."""

    lines: tuple[LogEntry, ...]
    last_seq: Count
    more: bool = False
    subject: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadHistory:
    """How a job's metrics went, after the event ``from_seq``. ``limit`` counts events."""

    job_id: JobName
    from_seq: Count = 0
    limit: Limit = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """A version was made (``steps``, ``forks``, ``loss``: of the training) or evaluated (``metrics``), ``at`` Unix s.

    ``devices``: those of its forks together; more than ``forks`` if a gang trained.
    ``loss`` is the newest that a fork had reported when the version was made; ``guard``: what a guard chose then.
    """

    sequence: Count
    at: float
    version: Count
    steps: Count | None = None
    forks: Count | None = None
    devices: Count | None = None
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    fork_gain: float | None = None
    guard: Guarded | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Oldest first. ``more``: ask again with ``last_seq``."""

    job_id: str
    points: tuple[HistoryPoint, ...]
    last_seq: Count
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListWeights:
    job_id: JobName
    limit: Annotated[int, Meta(ge=1, le=200)] = 20
    cursor: Cursor = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionInfo:
    """One version of a job's model. ``available`` is false once its weights were removed (retention)."""

    version: Count
    base_version: int
    steps: Count
    weights: ObjectRef
    metrics: dict[str, float]
    available: bool
    parents: tuple[Parent, ...] = ()
    rejected: dict[str, str] = field(default_factory=dict)
    guard: Guarded | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsList:
    """Newest first. ``bucket`` is the NATS object store that holds them; if ``url`` is set, they are files there."""

    job_id: str
    bucket: str
    versions: tuple[VersionInfo, ...]
    cursor: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetWeights:
    """``version`` null: the newest."""

    job_id: JobName
    version: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsRef:
    """Where the weights are: object ``weights.name`` (safetensors) of the NATS object store ``bucket``.

    With a ``url`` (fsspec) they are the file ``weights.name`` there instead.
    """

    job_id: str
    name: str
    version: Count
    steps: Count
    bucket: str
    weights: ObjectRef
    metrics: dict[str, float]
    url: str = ""


SUBMIT = Endpoint("api.v1.jobs.submit", Submit, Submitted)
GET = Endpoint("api.v1.jobs.get", JobRef, JobStatus)
LIST = Endpoint("api.v1.jobs.list", ListJobs, JobList)
CANCEL = Endpoint("api.v1.jobs.cancel", JobRef, JobStatus)
PAUSE = Endpoint("api.v1.jobs.pause", JobRef, JobStatus)
RESUME = Endpoint("api.v1.jobs.resume", JobRef, JobStatus)
DELETE = Endpoint("api.v1.jobs.delete", JobRef, Deleted)
WATCH = Endpoint("api.v1.jobs.watch", Watch, Watching)
LOGS = Endpoint("api.v1.jobs.logs", ReadLogs, Logs)
HISTORY = Endpoint("api.v1.jobs.history", ReadHistory, History)
LIST_WEIGHTS = Endpoint("api.v1.weights.list", ListWeights, WeightsList)
GET_WEIGHTS = Endpoint("api.v1.weights.get", GetWeights, WeightsRef)

ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    *(SUBMIT, GET, LIST, CANCEL, PAUSE, RESUME, DELETE, WATCH, LOGS, HISTORY, LIST_WEIGHTS, GET_WEIGHTS),
    *api_cluster.ENDPOINTS,
)
"""All of the gateway's."""

JOB_EVENTS = Topic("event.v1.{kind}.{id}.{what}", Event)
"""New events as plain messages: a wake-up; the journal is what counts."""

REQUESTS = Records("jobs", "request", SubmitIntent)
NAMES = Records("jobs", "name", NameClaim)
