"""The gateway's message API about the cluster: nodes, prices, rounds, and whether all is well."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from hadare.model.devices import NodeState
from hadare.model.fields import Count, Text
from hadare.model.plans import Decision, ForkPlan
from hadare.model.rounds import RoundHead
from hadare.wire.subjects import Endpoint

Limit = Annotated[int, Meta(ge=1, le=1000)]
Cursor = Annotated[str, Meta(max_length=256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """``cursor``: the one that came with the page before; empty for the first."""

    limit: Limit = 200
    cursor: Cursor = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNow:
    """``job_id`` and ``fork`` of the open round's lease that holds the device; none: it is free."""

    index: Count
    type: str
    memory_gb: float
    healthy: bool
    emulated: bool
    reason: str = ""
    job_id: str | None = None
    fork: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """``state`` is null until the allocator has seen the node. ``drain`` is what the operator wants."""

    node: str
    state: NodeState | None
    reason: str
    drain: bool
    devices: tuple[DeviceNow, ...]
    labels: dict[str, str] = field(default_factory=dict)
    workloads: tuple[str, ...] = ()
    host: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeList:
    """By name."""

    nodes: tuple[NodeInfo, ...]
    cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRef:
    """``reason`` is kept with the wish to drain, or with the event of being forgotten, for people."""

    node: Annotated[str, Meta(min_length=1, max_length=63)]
    reason: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPrice:
    """``price`` is what the next device of the cell costs, in utility per device-round; null if all are taken."""

    node: str
    type: str
    capacity: Count
    taken: Count
    price: float | None
    u_min: float
    u_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The curves of ``round``: price at γ taken devices is ``u_min · (u_max/u_min)^(γ/capacity)``. -1: none yet."""

    round: int
    cells: tuple[CellPrice, ...]
    cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSummary:
    """A round's plan in numbers: jobs ``placed`` with so many ``forks``, jobs ``waiting``."""

    round: Count
    epoch: Count
    pages: Count
    forks: Count
    placed: Count
    waiting: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundList:
    """Newest first; ``head`` is where the allocator stands."""

    head: RoundHead | None
    rounds: tuple[RoundSummary, ...]
    cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRound:
    """``round`` null: the newest. A plan can exceed one message: ask for ``page`` 0 to ``pages - 1``."""

    round: Count | None = None
    page: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundView:
    """A page of a round's plan."""

    round: Count
    epoch: Count
    page: Count
    pages: Count
    state: Literal["planned", "open", "closed"]
    policy: str = ""
    forks: tuple[ForkPlan, ...] = ()
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty:
    """No arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSeen:
    """A control service and its running instances."""

    name: str
    instances: Count
    version: str = ""
    ok: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """``ok``: every control service answers and a node is ready. ``jobs`` counts them by state."""

    ok: bool
    services: tuple[ServiceSeen, ...]
    nodes: tuple[NodeInfo, ...]
    jobs: dict[str, int]
    round: RoundHead | None
    problems: tuple[str, ...] = ()
    prefix: str = "hadare"
    version: str = ""


LIST_NODES = Endpoint("api.v1.nodes.list", Page, NodeList)
DRAIN = Endpoint("api.v1.nodes.drain", NodeRef, NodeInfo)
UNDRAIN = Endpoint("api.v1.nodes.undrain", NodeRef, NodeInfo)
FORGET = Endpoint("api.v1.nodes.forget", NodeRef, NodeInfo)
GET_PRICES = Endpoint("api.v1.prices.get", Page, Prices)
LIST_ROUNDS = Endpoint("api.v1.rounds.list", Page, RoundList)
GET_ROUND = Endpoint("api.v1.rounds.get", GetRound, RoundView)
STATUS = Endpoint("api.v1.cluster.status", Empty, ClusterStatus)

ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    LIST_NODES,
    DRAIN,
    UNDRAIN,
    FORGET,
    GET_PRICES,
    LIST_ROUNDS,
    GET_ROUND,
    STATUS,
)
