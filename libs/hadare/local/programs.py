"""Which programs a local cluster consists of, and what each is told through its environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hadare.local.directory import LocalCluster
from hadare.local.processes import Program
from hadare.local.spec import Emulation, NodeSpec
from hadare.model.errors import Rejected
from hadare.runtime.embedded import EmbeddedNats

CONTROL_SERVICES = ("gateway", "pricing", "allocator", "jobtracker")

PASSED_ON = (
    "HADARE_GRACE_S",
    "HADARE_SETTLE_S",
    *("HADARE_WEIGHTS_URL", "HADARE_BANDWIDTH_MB_S", "HADARE_CAPACITY_GB", "HADARE_PYTHON", "HADARE_LOG_LEVEL"),
    *("HADARE_KEEP_ROUNDS", "HADARE_KEEP_VERSIONS", "HADARE_KEEP_CODE_S", "HADARE_UTILITY"),
)
"""What an operator may set for all programs of a local cluster; the rest of its environment is its own."""

_AGENTS_STAGE, _SERVICES_STAGE, _BUS_STAGE = 0, 1, 2
_MOST_REPLICAS = 8
_AGENT_GRACE_S = 25.0
"""Longer than an agent's own time limit, within which its forks hand back what they have."""


def spans_directory(directory: Path) -> Path:
    """Where the processes of a cluster write their spans."""
    return directory / "spans"


def programs(cluster: LocalCluster, directory: Path) -> list[Program]:
    """The bus first, then the control services, then a node agent for each node. Writes the bus' configuration."""
    common = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {
        "HADARE_NATS_URL": cluster.nats_url,
        "HADARE_PREFIX": cluster.prefix,
        "HADARE_OTLP_ENDPOINT": os.environ.get("HADARE_OTLP_ENDPOINT", f"file:{spans_directory(directory)}"),
        "PYTHONUNBUFFERED": "1",
        # The machine is shared by many processes: more threads in each only wait for one another.
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(directory / "tmp"),
    }
    (directory / "tmp").mkdir(parents=True, exist_ok=True)
    each = replicas()
    own = {
        "allocator": {"HADARE_ROUND_S": str(cluster.round_s), "HADARE_POLICY": cluster.policy},
        "jobtracker": {"HADARE_WORK_DIR": str(directory / "tracker")},
    }
    return [
        _bus(cluster, directory),
        *(_service(name, common | own.get(name, {})) for name in CONTROL_SERVICES),
        *(_replica(name, number, common | own[name]) for name in own for number in range(2, each + 1)),
        *(_agent(node, cluster.spec.emulation, directory, common) for node in cluster.spec.nodes),
    ]


def _bus(cluster: LocalCluster, directory: Path) -> Program:
    command = EmbeddedNats(directory / "nats", port=cluster.port).prepare()
    return Program(name="nats", command=command, stage=_BUS_STAGE)


def _service(name: str, env: dict[str, str]) -> Program:
    env = {"HADARE_INSTANCE": f"{name}-local"} | env
    return Program(name=name, command=(sys.executable, "-m", f"hadare_{name}"), env=env, stage=_SERVICES_STAGE)


def _replica(name: str, number: int, env: dict[str, str]) -> Program:
    """A standby: it takes over when the one that leads falls silent. Each has a name and a folder of its own."""
    instance = f"{name}-{number}"
    env = {"HADARE_INSTANCE": instance} | env
    if "HADARE_WORK_DIR" in env:
        env["HADARE_WORK_DIR"] += f"-{number}"
    return Program(name=instance, command=(sys.executable, "-m", f"hadare_{name}"), env=env, stage=_SERVICES_STAGE)


def replicas() -> int:
    """Allocators and trackers, each. Raises ``Rejected`` (400)."""
    text = os.environ.get("HADARE_REPLICAS", "1")
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= _MOST_REPLICAS:
        raise Rejected(400, f"HADARE_REPLICAS='{text}': 1 to {_MOST_REPLICAS} allocators and trackers can run")
    return int(text)


def _agent(node: NodeSpec, emulation: Emulation, directory: Path, common: dict[str, str]) -> Program:
    own = {
        "HADARE_INSTANCE": node.name,
        "HADARE_NODE": node.name,
        "HADARE_DEVICES": ",".join(f"{group.count}:{group.type}" for group in node.devices) or "auto",
        "HADARE_LABELS": ",".join(f"{name}={value}" for name, value in sorted(node.labels.items())),
        "HADARE_BASE_RATE": str(emulation.base_rate),
        "HADARE_BASE_RATES": ",".join(f"{name}={rate}" for name, rate in sorted(emulation.workloads.items())),
        "HADARE_WORK_DIR": str(directory / "nodes" / node.name),
        "HADARE_GANG_ADDRESS": "127.0.0.1",
    }
    return Program(
        name=node.name,
        command=(sys.executable, "-m", "hadare_node_agent"),
        env=common | own,
        stage=_AGENTS_STAGE,
        grace_s=_AGENT_GRACE_S,
    )
