"""Builders for what a chaos run leaves: one node, one job, two rounds, and nothing wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hadare.bench.chaos.cluster import Life
from hadare.bench.chaos.evidence import Evidence
from hadare.bench.chaos.users import Promise
from hadare.model.events import Event, StoredEvent
from hadare.model.jobs import JobProgress, JobState, ObjectRef, Parent, VersionManifest
from hadare.model.plans import ForkPlan, GangMember
from hadare.model.rounds import RoundPage

HASH = "0" * 64
NODE = "n1"


def weights(version: int, job: str = "j1") -> ObjectRef:
    return ObjectRef(name=f"{job}.v{version}.{HASH}", sha256=HASH, bytes=10)


def a_parent(round_no: int, steps: int, fork: int = 0, attempt: int = 0) -> Parent:
    return Parent(
        round=round_no, fork=fork, attempt=attempt, node=NODE, device_type="V100", steps=steps, weight=1.0, sha256=HASH
    )


def a_manifest(version: int, steps: int, *parents: Parent, job: str = "j1") -> VersionManifest:
    return VersionManifest(
        job_id=job,
        version=version,
        base_version=version - 1,
        steps=steps,
        weights=weights(version, job),
        parents=parents,
    )


def a_progress(**changes: Any) -> JobProgress:
    fields: dict[str, Any] = {
        "job_id": "j1",
        "name": "digits-1",
        "state": JobState.COMPLETED,
        "steps": 500,
        "total_steps": 500,
        "version": 2,
        "weights": weights(2),
        "metrics": {"accuracy": 0.98},
    }
    return JobProgress(**(fields | changes))


def job_event(what: str, job: str = "j1", **data: Any) -> StoredEvent:
    return StoredEvent(sequence=1, at=1000.0, event=Event(kind="job", id=job, what=what, data=data))


def lease_started(round_no: int, at: float, fork: int = 0, device: int = 0, job: str = "j1") -> StoredEvent:
    data = {
        "kind": "train",
        "job": job,
        "round": round_no,
        "fork": fork,
        "attempt": 0,
        "devices": [device],
        "device_type": "V100",
        "at_s": at,
    }
    return StoredEvent(sequence=1, at=at, event=Event(kind="node", id=NODE, what="lease_started", data=data))


def lease_ended(round_no: int, at: float, steps: int, fork: int = 0, upload_s: float = 0.2) -> StoredEvent:
    begun = lease_started(round_no, at, fork).event
    data = {**begun.data, "steps": steps, "upload_s": upload_s, "nominal_rate": 100.0}
    return StoredEvent(sequence=1, at=at, event=replace(begun, what="lease_ended", data=data))


def a_page(round_no: int, count: int = 1) -> RoundPage:
    gang = (GangMember(node=NODE, type="V100", count=count),)
    fork = ForkPlan(job_id="j1", fork=0, gang=gang, quota=500, rate=100.0, price=0.0, payoff=1.0)
    return RoundPage(round=round_no, epoch=1, page=0, pages=1, forks=(fork,))


def an_evidence(**changes: Any) -> Evidence:
    """Job j1 was trained for 300 steps in round 1 and for 200 in round 2, and is completed."""
    fields: dict[str, Any] = {
        "promises": [Promise("j1", "digits", "digits-1")],
        "progress": {"j1": a_progress()},
        "manifests": {
            ("j1", 0): a_manifest(0, 0),
            ("j1", 1): a_manifest(1, 300, a_parent(1, 300)),
            ("j1", 2): a_manifest(2, 500, a_parent(2, 200)),
        },
        "job_events": [
            job_event("consolidated", version=1, round=1),
            job_event("consolidated", version=2, round=2),
            job_event("completed"),
        ],
        "node_events": [
            lease_started(1, 10.0),
            lease_ended(1, 13.2, 300),
            lease_started(2, 13.1),
            lease_ended(2, 15.2, 200),
        ],
        "round_events": [],
        "pages": [a_page(1), a_page(2)],
        "devices": {(NODE, "V100"): 1},
        "lives": [Life(NODE, 42, 5.0)],
        "epochs": {("j1.1.0.0", NODE): 1, ("j1.2.0.0", NODE): 1},
        "reported": {"j1.1.0.0": (NODE, 290), "j1.2.0.0": (NODE, 150)},
    }
    return Evidence(**(fields | changes))
