"""Rounds as the allocator stores them, and the messages with which it opens and closes one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from hadare.model.fields import Count, DeviceType, JobId, NodeId, Text
from hadare.model.jobs import LedgerEntry
from hadare.model.leases import Lease
from hadare.model.plans import Decision, ForkPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundHead:
    """KV ``rounds`` key ``head``, written last: whoever reads it finds all that it names.

    ``clock_s`` is the cluster clock: seconds of allocator life, carried on over restarts.
    """

    schema: int = 1
    round: Count
    epoch: Count
    state: Literal["open", "closed"]
    clock_s: float
    round_s: float
    policy: Text
    forks: Count = 0
    waiting: Count = 0
    pages: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeases:
    """KV ``rounds`` key ``leases.<node>``: the leases of the newest round in which the node had any."""

    schema: int = 1
    node: NodeId
    round: Count
    epoch: Count
    leases: tuple[Lease, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPage:
    """KV ``rounds`` key ``plan.<round>.<page>``: a part of a plan, small enough for one message."""

    schema: int = 1
    round: Count
    epoch: Count
    page: Count
    pages: Count
    forks: tuple[ForkPlan, ...] = ()
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorMemory:
    """KV ``rounds`` key ``memory``: what the allocator needs again after a restart, stored with each round."""

    schema: int = 1
    round: Count
    policy: Text = ""
    memory: dict[str, Any] = field(default_factory=dict)
    arrivals: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """KV ``rounds`` and ``progress`` key ``leader``: who leads. The epoch grows with every take-over; it fences.

    ``holder`` '' : the leader has left, anyone may take over. ``nonce`` is new in every start of a process.
    """

    schema: int = 1
    holder: Text
    epoch: Count
    nonce: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOpening:
    """What the allocator is about to lease for one job. ``mode`` as in ``Decision``, or empty."""

    job_id: JobId
    base_version: Count
    forks: Annotated[tuple[LedgerEntry, ...], Meta(max_length=8192)]
    mode: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """Asks the tracker to open its ledger for a round, before any lease goes out."""

    round: Count
    epoch: Count
    round_s: float
    jobs: Annotated[tuple[JobOpening, ...], Meta(max_length=100_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAnswer:
    """``refused`` maps a job to why its forks must not start (paused meanwhile, another version, …)."""

    round: Count
    accepted: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRequest:
    """Ends a round, and all before it: forks that have not reported count nothing.

    ``withdrawn``: why leases never went out, or died. ``only_withdrawn``: the round goes on, without those.
    """

    round: Count
    epoch: Count
    withdrawn: dict[str, str] = field(default_factory=dict)
    only_withdrawn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseAnswer:
    """``missing``: leases that did not report. ``pending``: jobs whose new version is still being made."""

    round: Count
    missing: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteRequest:
    """Asks pricing for the price curves of a round. ``arrivals`` and ``now_s`` are on the cluster clock.

    ``utility`` is that of the jobs that name none: it comes with the policy, which pricing does not know.
    ``revision``: how often the round has been priced before, of a cluster that has changed since.
    """

    round: Count
    epoch: Count
    round_s: float
    now_s: float = 0.0
    arrivals: dict[str, float] = field(default_factory=dict)
    utility: str = "throughput"
    revision: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTaken:
    """How many devices of a type on a node the round's plan takes."""

    node: NodeId
    type: DeviceType
    taken: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Tells pricing what the plan took; the current prices follow from it."""

    round: Count
    epoch: Count
    cells: tuple[CellTaken, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A plain acknowledgement."""

    ok: bool = True
