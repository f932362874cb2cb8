"""Which nodes may get forks: ready, suspect, draining, lost or quarantined, judged by the listener's own clock.

Level-triggered: a node's state is what its last heartbeat and the operator's wish make it, so a node that comes back
is ready again without anybody's help. Only a quarantine stays until the operator ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hadare.machines.conduct import accused, failed_on
from hadare.model.devices import Heartbeat, NodeInventory, NodeState, NodeStatus, NodeWish
from hadare.model.jobs import JobProgress


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


@dataclass(frozen=True, slots=True)
class _Conduct:
    """What of a node's past counts: the fields of ``NodeStatus``."""

    quarantine: str = ""
    pardon: int = 0
    trusted_from: int = 0


_SPOTLESS = _Conduct()


class NodeMachine:
    """Keeps the states of all nodes. ``refresh`` says which have changed."""

    def __init__(self, times: NodeTimes | None = None) -> None:
        self._times = times or NodeTimes()
        self._nodes: dict[str, _Node] = {}
        self._wishes: dict[str, NodeWish] = {}
        self._conduct: dict[str, _Conduct] = {}
        self._suspicious = False
        self._judged: dict[str, tuple[NodeState, str, _Conduct]] = {}
        self.statuses: dict[str, NodeStatus] = {}

    def recover(self, stored: Iterable[NodeStatus]) -> None:
        """Who is out, and what was forgiven, outlives the allocator."""
        for status in stored:
            self._conduct[status.node] = _Conduct(status.quarantine, status.pardon, status.trusted_from)

    def registered(self, inventory: NodeInventory, at: float) -> None:
        """A node agent has written its inventory: a new node, a restarted agent, or changed devices."""
        known = self._nodes.get(inventory.node)
        if known is None:
            self._nodes[inventory.node] = _Node(inventory, at)
        else:
            known.inventory = inventory

    def removed(self, node: str) -> None:
        self._nodes.pop(node, None)
        self._conduct.pop(node, None)
        self._judged.pop(node, None)
        self.statuses.pop(node, None)

    def wished(self, node: str, wish: NodeWish | None, next_round: int = 0) -> None:
        """A new pardon ends a quarantine; the node is judged by what it does from ``next_round`` on."""
        if wish is None:
            self._wishes.pop(node, None)
            return
        self._wishes[node] = wish
        if wish.pardon > self._conduct.get(node, _SPOTLESS).pardon:
            self._conduct[node] = _Conduct("", wish.pardon, next_round)

    def quarantine(self, reasons: Mapping[str, str]) -> None:
        """Takes nodes out, each with its reason; one that is out already keeps the reason that it has."""
        for node, reason in reasons.items():
            known = self._conduct.get(node, _SPOTLESS)
            if node in self._nodes and not known.quarantine:
                self._conduct[node] = _Conduct(reason[:4096], known.pardon, known.trusted_from)

    def heed(self, progress: JobProgress | None) -> None:
        """A job whose fork failed somewhere is a reason to judge the nodes' conduct."""
        self._suspicious |= progress is not None and bool(failed_on(progress))

    def judge_conduct(self, progress: Iterable[JobProgress]) -> None:
        """Takes out nodes that fail every job, if there is a new reason to look."""
        if self._suspicious:
            self._suspicious = False
            self.quarantine(accused(progress, self.trusted_from(), self.quarantined()))

    def quarantined(self) -> frozenset[str]:
        return frozenset(node for node, conduct in self._conduct.items() if conduct.quarantine)

    def trusted_from(self) -> dict[str, int]:
        """From which round on each node is judged; from the first, if it is not named."""
        return {node: conduct.trusted_from for node, conduct in self._conduct.items()}

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
            conduct = self._conduct.get(name, _SPOTLESS)
            judged = (*self._state(name, node, conduct, at), conduct)
            if self._judged.get(name) != judged:  # most are as they were a moment ago
                self._judged[name] = judged
                self.statuses[name] = _status(name, *judged)
                changed.append(self.statuses[name])
        return changed

    def _state(self, name: str, node: _Node, conduct: _Conduct, at: float) -> tuple[NodeState, str]:
        silent_s = at - (node.heard_at if node.heard_at is not None else node.known_since)
        wish = self._wishes.get(name)
        if silent_s >= self._times.lost_s:
            return NodeState.LOST, "no heartbeat; it is taken back when it returns"
        if node.heard_at is None:
            return NodeState.SUSPECT, "registered, but not heard yet"
        if silent_s >= self._times.suspect_s:
            return NodeState.SUSPECT, "heartbeats are late"
        if conduct.quarantine:
            return NodeState.QUARANTINED, conduct.quarantine
        if wish is not None and wish.drain:
            return NodeState.DRAINING, wish.reason or "drained by the operator"
        if not any(device.healthy for device in node.inventory.devices):
            return NodeState.SUSPECT, "it has no healthy device"
        return NodeState.READY, ""


def _status(node: str, state: NodeState, reason: str, conduct: _Conduct) -> NodeStatus:
    return NodeStatus(
        node=node,
        state=state,
        reason=reason,
        quarantine=conduct.quarantine,
        pardon=conduct.pardon,
        trusted_from=conduct.trusted_from,
    )
