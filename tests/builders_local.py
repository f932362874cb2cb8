"""Builders for what a local run leaves behind: events of the journal, job states, calibrations."""

from __future__ import annotations

from typing import Any

from hadare.local.targets import Calibration
from hadare.model.devices import NodeState
from hadare.model.events import Event, EventKind, StoredEvent
from hadare.model.jobs import JobState
from hadare.wire.api import JobStatus
from hadare.wire.api_cluster import ClusterStatus, DeviceNow, NodeInfo


def an_event(what: str, at: float, entity: str = "j1", of: EventKind = "job", **data: Any) -> StoredEvent:
    event = Event(kind=of, id=entity, what=what, data=data)
    return StoredEvent(sequence=int(at * 1000), at=at, event=event)


def a_lease_end(at: float, **changes: Any) -> StoredEvent:
    """100 steps in 4 s at a nominal 25 steps/s, whose last step was 0.5 s before the event."""
    node = changes.pop("node", "n1")
    data = {
        "kind": "train",
        "job": "j1",
        "round": 1,
        "fork": 0,
        "attempt": 0,
        "devices": [0],
        "device_type": "V100",
        "steps": 100,
        "trained_s": 4.0,
        "since_last_s": 0.5,
        "nominal_rate": 25.0,
        "reason": "clock",
    }
    return an_event("lease_ended", at, node, "node", **(data | changes))


def a_job_status(**changes: Any) -> JobStatus:
    fields: dict[str, Any] = {
        "job_id": "j1",
        "name": "digits",
        "state": JobState.COMPLETED,
        "reason": "",
        "steps": 100,
        "total_steps": 100,
        "version": 3,
        "metrics": {"accuracy": 0.97},
        "metrics_version": 3,
        "eta_s": None,
        "rounds": 3,
    }
    return JobStatus(**(fields | changes))


def a_calibration(**changes: Any) -> Calibration:
    """Mean 0.96, standard deviation 0.01, so a target of 0.94."""
    fields: dict[str, Any] = {
        "metric": "accuracy",
        "better": "higher",
        "steps": 100,
        "values": {0: 0.95, 1: 0.96, 2: 0.97},
        "spec": "0" * 16,
    }
    return Calibration(**(fields | changes))


def a_cluster_status(nodes: dict[str, NodeState], problems: tuple[str, ...] = ()) -> ClusterStatus:
    """Nodes of one T4 each; all well unless there are problems."""
    device = DeviceNow(index=0, type="T4", memory_gb=16, healthy=True, emulated=True)
    infos = tuple(
        NodeInfo(node=name, state=state, reason="", drain=False, devices=(device,)) for name, state in nodes.items()
    )
    return ClusterStatus(ok=not problems, services=(), nodes=infos, jobs={}, round=None, problems=problems)
