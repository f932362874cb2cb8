"""What a simulation is of: the cluster, what things cost in it, and what befalls its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hadare.model.devices import Device, NodeInventory
from hadare.scheduling.devices import spec_of

INCARNATION = "simulated"

DEFAULT_HOLD = 8
"""Rounds that a plan is kept where nothing asks for exactness: twice as fast, figures within 0.2 %."""

EARLY = 0.01
"""Part of a round that a boundary is taken to last where rounds may end early: the live allocator's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimNode:
    """A node with its devices by type."""

    name: str
    devices: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)

    def inventory(self) -> NodeInventory:
        """What the node's agent would register."""
        kinds = [kind for kind, count in sorted(self.devices.items()) for _ in range(count)]
        return NodeInventory(
            node=self.name,
            incarnation=INCARNATION,
            devices=tuple(
                Device(index=index, type=kind, memory_gb=spec_of(kind).memory_gb) for index, kind in enumerate(kinds)
            ),
            labels=dict(self.labels),
            gang_address=self.name,
            gang_ports=tuple(range(29400, 29400 + len(kinds))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a round costs beside training; the default is nothing at all, as in the simulators of the baselines.

    ``restart_s``: until a process that is not warm does its first step; None: each model's own (``models.py``).
    ``bandwidth_mb_s``: of a node, for weights on their way to and from the store (0: no time at all);
    ``averaging_mb_s``: of the consolidation. ``boundary_s``: between two rounds, for what is not of one job.
    ``spread``: gangs that span nodes lose what the throughput table says.
    """

    restart_s: float | None = 0.0
    bandwidth_mb_s: float = 0.0
    averaging_mb_s: float = 2000.0
    boundary_s: float = 0.0
    spread: bool = False

    @property
    def none(self) -> bool:
        return self == Costs()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvent:
    """Something that befalls a node: it fails (and its forks' round is lost), is drained, or comes back."""

    at_s: float
    node: str
    what: Literal["fail", "recover", "drain", "undrain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``round_s`` 0: a new round whenever a job or a node comes or goes, at the latest after ``pace_s``.

    ``utility``: of all jobs; None: the policy's own.
    ``oracle``: the policy knows the true rates from the start; else it starts from the formula and measures, with
    relative errors of standard deviation ``noise``. ``grace_s``: how long a closed round waits for missing forks.
    ``hold``: a plan is kept for up to so many rounds while no job is near its end, none arrives and no node changes;
    1 decides every round, as the live system does. Only without costs, and for policies that do not take turns.
    ``early_s``: rounds of ``hadare`` and ``hadar`` may end early, with a job that ends, as live (``round_length``); a
    boundary is taken to last so long. None: never.
    ``idle_rounds``: so many rounds without any fork, and nothing to come, end the simulation;
    so do ``most_rounds`` of any kind.
    """

    round_s: float = 360.0
    pace_s: float = 360.0
    oracle: bool = False
    noise: float = 0.0
    seed: int = 0
    utility: str | None = None
    costs: Costs = field(default_factory=Costs)
    events: tuple[NodeEvent, ...] = ()
    grace_s: float = 10.0
    hold: int = 1
    early_s: float | None = None
    idle_rounds: int = 500
    most_rounds: int | None = None
    detail: bool = False

    @property
    def event_driven(self) -> bool:
        return self.round_s <= 0

    @property
    def length_s(self) -> float:
        """The longest a round can be."""
        return self.pace_s if self.event_driven else self.round_s
