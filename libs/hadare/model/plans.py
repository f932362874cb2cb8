"""What a policy is given (``Snapshot``) and what it decides (``RoundPlan``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from hadare.model.devices import NodeState
from hadare.model.fields import Count, DeviceType, Fraction, JobId, NodeId, Positive, Seconds, Text
from hadare.model.jobs import Constraints, GangSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceCurve:
    """Dual price of one cell (node, type), in utility per device-round, exponential in what is taken.

    DESIGN §5: ``k(γ) = u_min · (u_max/u_min)^(γ/c)``.
    """

    node: NodeId
    type: DeviceType
    capacity: Positive
    u_min: Annotated[float, Meta(gt=0)]
    u_max: Annotated[float, Meta(gt=0)]
    taken: Count = 0

    def price(self, taken: int) -> float:
        """Marginal price of the next device when ``taken`` of the cell's devices are gone."""
        return float(self.u_min * (self.u_max / self.u_min) ** (taken / self.capacity))


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    """The curves of one round, frozen while it is planned. ``round`` says which round they were quoted for."""

    schema: int = 1
    round: Count
    curves: tuple[PriceCurve, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node as the policy sees it. ``devices`` counts the healthy devices by type."""

    node: NodeId
    state: NodeState
    devices: dict[str, int]
    memory_gb: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """x[j, r]: steps/s of one rank. ``confidence`` 0 is the bare formula, 1 well measured."""

    steps_per_s: float
    confidence: Fraction = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMember:
    """``count`` devices of one type on one node."""

    node: NodeId
    type: DeviceType
    count: Positive = 1


Gang = tuple[GangMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as the policy sees it. A type that is missing in ``throughput`` cannot run the job.

    ``excluded`` maps a node to the reason why the job cannot run there, ``excluded_types`` a device type;
    ``unready`` says why the job cannot be placed at all in this round (paused, no model yet, …). ``fork_gain``
    holds g(1), g(2), … relative to the best fork alone; empty means the paper's Σx/max x. ``exchange_s``: how long
    an exchange of gradients takes, where it was measured. ``barren``: rounds in a row that brought nothing.
    """

    job_id: JobId
    arrival_s: float
    steps_left: Count
    total_steps: Positive
    throughput: dict[str, Throughput]
    gang: Positive = 1
    batch_size: Positive = 1
    mode: Literal["forks", "gang", "auto"] = "forks"
    workload: Text = ""
    weights_bytes: Count = 0
    exchange_s: dict[GangSpan, float] = field(default_factory=dict)
    max_forks: Positive | None = None
    min_fork_share: Fraction = 0.0
    spread_factor: Fraction = 1.0
    batching: Literal["balanced", "lockstep"] = "balanced"
    priority: float = 1.0
    utility: str = "throughput"
    deadline_s: float | None = None
    constraints: Constraints = field(default_factory=Constraints)
    excluded: dict[str, str] = field(default_factory=dict)
    excluded_types: dict[str, str] = field(default_factory=dict)
    unready: Text = ""
    placed: tuple[Gang, ...] = ()
    restart_cost_s: Seconds = 0.0
    consolidation_cost_s: Seconds = 0.0
    fork_gain: tuple[float, ...] = ()
    barren: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The policy's whole input. ``now_s`` and every ``arrival_s`` are on the allocator's cluster clock.

    ``may_end_early``: the round ends with one of its jobs where that leaves fewer devices idle.
    """

    round: Count
    epoch: Count
    now_s: float
    round_s: Annotated[float, Meta(gt=0)]
    nodes: tuple[NodeView, ...]
    jobs: tuple[JobView, ...]
    prices: PriceBook
    may_end_early: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPlan:
    """One fork: its gang, its quota in steps, what it pays and what it is worth.

    ``rate`` is the expected steps/s of the fork. ``filled``: placed by the work-conserving second pass,
    at the reserve price, exempt from payoff > 0. ``batch_shares``: samples of one update for each device, in the order
    of the gang's members; none: by the speeds that are known when it is bound.
    """

    job_id: JobId
    fork: Count
    gang: Annotated[Gang, Meta(min_length=1)]
    quota: Count
    rate: float
    price: float
    payoff: float
    filled: bool = False
    batch_shares: tuple[int, ...] = ()


ReasonCode = Literal[
    "chosen",
    "waiting_for_capacity",
    "price_too_high",
    "fits_nowhere",
    "excluded_by_constraint",
    "no_nodes",
    "not_ready",
    "paused",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Why a job was placed or not: code, its position in the order, who blocks it, and what would change that.

    ``mode``: ``forks: why`` or ``gang: why``, of jobs that ask for a mode other than forks.
    """

    job_id: JobId
    code: ReasonCode
    message: Text = ""
    position: Count = 0
    blockers: tuple[str, ...] = ()
    remedy: Text = ""
    price: float = 0.0
    payoff: float = 0.0
    mode: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """A round's decision: forks of the placed jobs, and a decision for every active job."""

    schema: int = 1
    round: Count
    epoch: Count
    policy: Text = ""
    forks: tuple[ForkPlan, ...] = ()
    decisions: tuple[Decision, ...] = ()
