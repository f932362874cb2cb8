"""Node states are judged from heartbeats on the listener's clock."""

from __future__ import annotations

from builders import a_node
from hadare.machines.nodes import NodeMachine, NodeTimes
from hadare.model.devices import Device, Heartbeat, NodeState, NodeWish


def a_machine() -> NodeMachine:
    machine = NodeMachine(NodeTimes(suspect_s=4.0, lost_s=12.0))
    machine.registered(a_node(), 0.0)
    return machine


def beat(machine: NodeMachine, at: float) -> None:
    machine.heard(Heartbeat(node="n1", incarnation="i1", sequence=1), at)


def state(machine: NodeMachine, at: float) -> NodeState:
    machine.refresh(at)
    return machine.statuses["n1"].state


def test_a_node_that_was_never_heard_gets_no_forks() -> None:
    assert state(a_machine(), 1.0) is NodeState.SUSPECT


def test_a_node_is_ready_suspect_lost_and_back_by_its_heartbeats_alone() -> None:
    machine = a_machine()
    beat(machine, 1.0)
    assert state(machine, 2.0) is NodeState.READY
    assert state(machine, 5.0) is NodeState.SUSPECT
    assert state(machine, 13.0) is NodeState.LOST
    beat(machine, 100.0)
    assert state(machine, 100.0) is NodeState.READY


def test_only_changes_are_given_out() -> None:
    machine = a_machine()
    beat(machine, 1.0)
    assert len(machine.refresh(1.0)) == 1
    assert machine.refresh(2.0) == []


def test_a_drained_node_is_draining_until_the_wish_is_taken_back() -> None:
    machine = a_machine()
    beat(machine, 1.0)
    machine.wished("n1", NodeWish(node="n1", drain=True, reason="new fan"))
    assert state(machine, 1.0) is NodeState.DRAINING
    assert machine.statuses["n1"].reason == "new fan"
    machine.wished("n1", NodeWish(node="n1", drain=False))
    assert state(machine, 1.0) is NodeState.READY


def test_a_wish_may_come_before_its_node() -> None:
    machine = NodeMachine()
    machine.wished("n1", NodeWish(node="n1", drain=True))
    machine.registered(a_node(), 0.0)
    beat(machine, 0.0)
    assert state(machine, 0.0) is NodeState.DRAINING


def test_a_node_without_a_healthy_device_gets_no_forks() -> None:
    machine = NodeMachine()
    broken = Device(index=0, type="V100", memory_gb=16.0, healthy=False, reason="Xid 79")
    machine.registered(a_node(devices=(broken,)), 0.0)
    beat(machine, 0.0)
    assert state(machine, 0.0) is NodeState.SUSPECT


def test_a_heartbeat_of_an_unknown_node_is_nothing() -> None:
    machine = NodeMachine()
    beat(machine, 0.0)
    assert machine.refresh(0.0) == []


def test_a_removed_node_is_forgotten() -> None:
    machine = a_machine()
    machine.refresh(0.0)
    machine.removed("n1")
    assert machine.statuses == {}
