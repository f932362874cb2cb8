"""Several policies on one trace: the same jobs, the same cluster, the same costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hadare.model.errors import Rejected
from hadare.scheduling.devices import canonical_type
from hadare.simulator.engine import Simulation
from hadare.simulator.jobs import SimJob, TraceRow
from hadare.simulator.limits import limits_of
from hadare.simulator.metrics import Metrics, metrics_of
from hadare.simulator.rates import RateTable, jobs_of
from hadare.simulator.record import Outcome
from hadare.simulator.settings import Settings, SimNode

Watch = Callable[[str, float, int], None]
"""Told now and then: policy, simulated seconds, jobs done."""


@dataclass(frozen=True, slots=True)
class Study:
    """What came out, by policy in the order asked for."""

    jobs: tuple[SimJob, ...]
    nodes: tuple[SimNode, ...]
    settings: Settings
    outcomes: Mapping[str, Outcome]
    metrics: Mapping[str, Metrics]
    bounds: Mapping[str, float]

    def over_bounds(self, policy: str) -> dict[str, float]:
        """How many times the bounds of forks a policy took; nothing if there are no bounds."""
        metrics, bounds = self.metrics[policy], self.bounds
        if not bounds:
            return {}
        return {
            "ttd_over_bound": metrics.ttd_s / bounds["fluid_ttd_s"],
            "mean_jct_over_bound": metrics.mean_jct_s / bounds["mean_jct_s"],
        }

    def document(self) -> dict[str, Any]:
        """What ``hadare simulate --json`` prints."""
        flags = sorted({flag for job in self.jobs for flag in job.flags})
        return {
            "policies": {name: asdict(metrics) | self.over_bounds(name) for name, metrics in self.metrics.items()},
            "bounds": dict(self.bounds),
            "jobs": len(self.jobs),
            "devices": devices_of(self.nodes),
            "assumed": flags,
        }


def study(
    jobs: Sequence[SimJob],
    nodes: Sequence[SimNode],
    policies: Iterable[str],
    settings: Settings,
    watch: Watch | None = None,
    *,
    bounds: bool = True,
) -> Study:
    """Runs every policy. Raises ``Rejected`` for one that is unknown."""
    if not nodes:
        raise Rejected(400, "the cluster has no nodes")
    outcomes: dict[str, Outcome] = {}
    for policy in policies:
        told = None if watch is None else _told(watch, policy)
        outcomes[policy] = Simulation(jobs, nodes, policy, settings).run(told)
    metrics = {name: metrics_of(outcome) for name, outcome in outcomes.items()}
    limits = limits_of(jobs, devices_of(nodes)) if bounds else {}
    return Study(tuple(jobs), tuple(nodes), settings, outcomes, metrics, limits)


def prepare(rows: Iterable[TraceRow], table: RateTable, nodes: Sequence[SimNode]) -> tuple[SimJob, ...]:
    """The jobs of a trace with their rates on the types of the cluster."""
    return jobs_of(rows, table, devices_of(nodes))


def nodes_of(described: Iterable[tuple[str, Iterable[tuple[str, int]], Mapping[str, str]]]) -> tuple[SimNode, ...]:
    """Nodes from (name, devices as (type, count), labels), their types by canonical names."""
    nodes = []
    for name, groups, labels in described:
        devices: dict[str, int] = {}
        for kind, count in groups:
            devices[canonical_type(kind)] = devices.get(canonical_type(kind), 0) + count
        nodes.append(SimNode(name=name, devices=devices, labels=labels))
    return tuple(nodes)


def devices_of(nodes: Iterable[SimNode]) -> dict[str, int]:
    """Devices by type."""
    found: dict[str, int] = {}
    for node in nodes:
        for kind, count in node.devices.items():
            found[kind] = found.get(kind, 0) + count
    return dict(sorted(found.items()))


def _told(watch: Watch, policy: str) -> Callable[[float, int], None]:
    return lambda now_s, done: watch(policy, now_s, done)
