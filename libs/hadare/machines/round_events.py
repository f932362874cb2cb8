"""What the allocator hears (events, past tense) and what it wants done (commands, imperative)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hadare.model.devices import Heartbeat, NodeInventory, NodeStatus, NodeWish
from hadare.model.events import Event
from hadare.model.jobs import JobProgress, JobRecord
from hadare.model.leases import Lease, LeaseKey, Revoke
from hadare.model.plans import PriceBook, RoundPlan, Snapshot
from hadare.model.rounds import (
    AllocatorMemory,
    CloseAnswer,
    CloseRequest,
    NodeLeases,
    OpenAnswer,
    OpenRequest,
    QuoteRequest,
    RoundHead,
    RoundPage,
    Taken,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """A job's record changed; ``record`` None: it was deleted."""

    at: float
    job_id: str
    record: JobRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSeen:
    at: float
    job_id: str
    progress: JobProgress | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRegistered:
    at: float
    node: str
    inventory: NodeInventory | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWished:
    at: float
    node: str
    wish: NodeWish | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHeard:
    at: float
    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Quoted:
    """``revision`` is that of the question, here and below."""

    at: float
    round: int
    book: PriceBook
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteFailed:
    at: float
    round: int
    reason: str
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    at: float
    plan: RoundPlan
    memory: dict[str, Any]
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStored:
    at: float
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    at: float
    answer: OpenAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFailed:
    at: float
    round: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """An agent's answer to a lease, with the life of the agent that gave it; ``reached`` False: there is none."""

    at: float
    key: LeaseKey
    accepted: bool
    reason: str = ""
    incarnation: str = ""
    reached: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesEnded:
    """A node's answer to ``EndLeases``; ``reached`` False: there is none."""

    at: float
    leases: tuple[str, ...]
    reached: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    at: float
    answer: CloseAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseFailed:
    at: float
    round: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    at: float


RoundEvent = (
    JobSeen
    | ProgressSeen
    | NodeRegistered
    | NodeWished
    | NodeHeard
    | Quoted
    | QuoteFailed
    | Planned
    | RoundStored
    | Opened
    | OpenFailed
    | Granted
    | LeasesEnded
    | Closed
    | CloseFailed
    | Ticked
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPrices:
    request: QuoteRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePlan:
    """Run the policy; pure, but too slow for the loop when the cluster is large."""

    policy: str
    snapshot: Snapshot
    memory: dict[str, Any]
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRound:
    """Persist a plan before any of it is acted upon: leases, pages and memory first, the head last."""

    head: RoundHead
    leases: tuple[NodeLeases, ...]
    pages: tuple[RoundPage, ...]
    memory: AllocatorMemory
    forget_round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHead:
    head: RoundHead


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreNodeStatus:
    status: NodeStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetNode:
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOpen:
    request: OpenRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantLeases:
    leases: tuple[Lease, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLeases:
    """End single leases on a node at once. Comes back as ``LeasesEnded``."""

    node: str
    order: Revoke


@dataclass(frozen=True, slots=True, kw_only=True)
class TellTaken:
    taken: Taken


@dataclass(frozen=True, slots=True, kw_only=True)
class AskClose:
    request: CloseRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    event: Event
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """Something an operator should see in the log."""

    what: str
    data: dict[str, Any] = field(default_factory=dict)


RoundCommand = (
    AskPrices
    | MakePlan
    | StoreRound
    | StoreHead
    | StoreNodeStatus
    | ForgetNode
    | AskOpen
    | GrantLeases
    | EndLeases
    | TellTaken
    | AskClose
    | Record
    | Warn
)


def tell_status(status: NodeStatus, epoch: int, at: float) -> list[RoundCommand]:
    """A node's new state, for the state of record and for its history."""
    event = Event(kind="node", id=status.node, what=status.state, data={"reason": status.reason})
    stamp = f"{status.node}.{status.state}.{epoch}.{at:.3f}"
    return [StoreNodeStatus(status=status), Record(event=event, message_id=stamp)]


def tell_refused(answer: OpenAnswer) -> list[RoundCommand]:
    """The jobs that the tracker keeps out of a round."""
    return [
        Warn(what="the tracker keeps a job out of the round", data={"job_id": job_id, "reason": reason})
        for job_id, reason in sorted(answer.refused.items())
    ]
