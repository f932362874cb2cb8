"""Nodes and their devices: what a node agent reports, and what the operator wants of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from hadare.model.fields import Count, DeviceType, NodeId, Seconds, Text


class NodeState(StrEnum):
    """A node as the allocator sees it. Only ``ready`` nodes get forks; derived from reports, never edge-triggered.

    ``quarantined``: it failed several jobs that work elsewhere, and stays out until the operator puts it back.
    """

    READY = "ready"
    SUSPECT = "suspect"
    DRAINING = "draining"
    LOST = "lost"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or an emulated one."""

    index: Count
    type: DeviceType
    memory_gb: float
    healthy: bool = True
    reason: Text = ""
    emulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInventory:
    """KV ``nodes``, written by the node agent alone.

    ``incarnation`` is new in every start of the agent: leases of an older one are over. Gangs whose rank 0 is here meet
    at ``gang_address``, which other nodes must reach, on the port at the device's position in ``gang_ports``; without
    an address only gangs within the node do.
    """

    schema: int = 1
    node: NodeId
    incarnation: Text
    devices: tuple[Device, ...]
    labels: dict[str, str] = field(default_factory=dict)
    workloads: tuple[str, ...] = ()
    host: Text = ""
    version: Text = ""
    gang_address: Text = ""
    gang_ports: tuple[Count, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWish:
    """KV ``node_wishes``, written by the gateway: what the operator wants of a node.

    ``pardon`` goes up each time that the operator puts the node back: what it did before is forgotten.
    """

    schema: int = 1
    node: NodeId
    drain: bool
    reason: Text = ""
    pardon: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """KV ``node_states``, written by the allocator.

    ``quarantine``: why the node is out until the operator puts it back, whatever else it is; empty: it is not.
    ``pardon`` is the operator's last one that was heard; from round ``trusted_from`` on the node is judged.
    """

    schema: int = 1
    node: NodeId
    state: NodeState
    reason: Text = ""
    quarantine: Text = ""
    pardon: Count = 0
    trusted_from: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A plain, lossy message once a second, judged on the reader's own monotonic clock.

    ``busy`` maps a device's index to the lease that holds it.
    """

    node: NodeId
    incarnation: Text
    sequence: Count
    busy: dict[str, str] = field(default_factory=dict)
    uptime_s: Seconds = 0.0
