"""Which programs a local cluster consists of, and what each is told through its environment."""

from __future__ import annotations

import sys
from pathlib import Path

from hadare.local.directory import LocalCluster
from hadare.local.processes import Program
from hadare.local.spec import NodeSpec

CONTROL_SERVICES = ("gateway", "pricing", "allocator", "jobtracker")

_AGENTS_STAGE, _SERVICES_STAGE, _BUS_STAGE = 0, 1, 2


def programs(cluster: LocalCluster, directory: Path) -> list[Program]:
    """The bus first, then the control services, then a node agent for each node."""
    common = {
        "HADARE_NATS_URL": cluster.nats_url,
        "HADARE_PREFIX": cluster.prefix,
        "HADARE_TELEMETRY": f"file:{directory / 'spans'}",
        "PYTHONUNBUFFERED": "1",
    }
    services = [_service(name, cluster, common) for name in CONTROL_SERVICES]
    return [
        _bus(cluster, directory),
        *services,
        *(_agent(node, cluster, directory, common) for node in cluster.spec.nodes),
    ]


def _bus(cluster: LocalCluster, directory: Path) -> Program:
    raise NotImplementedError


def _service(name: str, cluster: LocalCluster, common: dict[str, str]) -> Program:
    own = {"HADARE_ROUND_S": str(cluster.round_s), "HADARE_POLICY": cluster.policy}
    return Program(name=name, command=(sys.executable, "-m", f"hadare_{name}"), env=common | own, stage=_SERVICES_STAGE)


def _agent(node: NodeSpec, cluster: LocalCluster, directory: Path, common: dict[str, str]) -> Program:
    own = {"HADARE_NODE": node.name}
    return Program(
        name=node.name, command=(sys.executable, "-m", "hadare_node_agent"), env=common | own, stage=_AGENTS_STAGE
    )
