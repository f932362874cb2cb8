"""Which nodes may get forks: ready, suspect, draining or lost, judged from heartbeats on the listener's own clock.

Level-triggered: a node's state is what its last heartbeat and the operator's wish make it, so a node that comes back
is ready again without anybody's help.
"""

from __future__ import annotations

from dataclasses import dataclass

from hadare.model.devices import Heartbeat, NodeInventory, NodeState, NodeStatus, NodeWish


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """Silence in seconds after which a node is suspect, and after which it is lost."""

    suspect_s: float = 4.0
    lost_s: float = 12.0


@dataclass(slots=True)
class _Node:
    inventory: NodeInventory
    known_since: float
    heard_at: float | None = None
    heard_incarnation: str = ""
    wish: NodeWish | None = None


class NodeMachine:
    """Keeps the states of all nodes. ``refresh`` says which have changed."""

    def __init__(self, times: NodeTimes | None = None) -> None:
        self._times = times or NodeTimes()
        self._nodes: dict[str, _Node] = {}
        self._wishes: dict[str, NodeWish] = {}
        self.statuses: dict[str, NodeStatus] = {}

    def registered(self, inventory: NodeInventory, at: float) -> None:
        """A node agent has written its inventory: a new node, a restarted agent, or changed devices."""
        known = self._nodes.get(inventory.node)
        if known is None:
            self._nodes[inventory.node] = _Node(inventory, at)
        else:
            known.inventory = inventory

    def removed(self, node: str) -> None:
        self._nodes.pop(node, None)
        self.statuses.pop(node, None)

    def wished(self, node: str, wish: NodeWish | None) -> None:
        if wish is None:
            self._wishes.pop(node, None)
        else:
            self._wishes[node] = wish

    def heard(self, heartbeat: Heartbeat, at: float) -> None:
        """Of nodes that never registered nothing is known, so nothing is kept."""
        node = self._nodes.get(heartbeat.node)
        if node is not None:
            node.heard_at = at
            node.heard_incarnation = heartbeat.incarnation

    def incarnation(self, node: str) -> str:
        """The newest life of the node's agent that was heard."""
        return self._nodes[node].heard_incarnation if node in self._nodes else ""

    def refresh(self, at: float) -> list[NodeStatus]:
        """The states that differ from those last given out."""
        changed = []
        for name, node in sorted(self._nodes.items()):
            status = self._judge(name, node, at)
            if self.statuses.get(name) != status:
                self.statuses[name] = status
                changed.append(status)
        return changed

    def _judge(self, name: str, node: _Node, at: float) -> NodeStatus:
        silent_s = at - (node.heard_at if node.heard_at is not None else node.known_since)
        wish = self._wishes.get(name)
        if silent_s >= self._times.lost_s:
            return NodeStatus(node=name, state=NodeState.LOST, reason="no heartbeat; it is taken back when it returns")
        if node.heard_at is None:
            return NodeStatus(node=name, state=NodeState.SUSPECT, reason="registered, but not heard yet")
        if silent_s >= self._times.suspect_s:
            return NodeStatus(node=name, state=NodeState.SUSPECT, reason="heartbeats are late")
        if wish is not None and wish.drain:
            return NodeStatus(node=name, state=NodeState.DRAINING, reason=wish.reason or "drained by the operator")
        if not any(device.healthy for device in node.inventory.devices):
            return NodeStatus(node=name, state=NodeState.SUSPECT, reason="it has no healthy device")
        return NodeStatus(node=name, state=NodeState.READY)
