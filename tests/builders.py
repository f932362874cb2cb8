"""Small builders: every test states only what matters to it."""

from __future__ import annotations

from typing import Any

from hadare.model.devices import Device, NodeInventory
from hadare.model.jobs import Desired, JobProgress, JobRecord, JobSpec, JobState, LedgerEntry, ObjectRef
from hadare.model.leases import ForkResult, LeaseKey

WORKLOAD = "hadare.training.workloads.digits:Digits"


def a_spec(**changes: Any) -> JobSpec:
    return JobSpec(**{"workload": WORKLOAD, "total_steps": 1000, "batch_size": 32, **changes})


def a_job(job_id: str = "job-a", *, desired: Desired = Desired.RUN, **spec: Any) -> JobRecord:
    return JobRecord(
        job_id=job_id,
        name=job_id,
        spec=a_spec(**spec),
        desired=desired,
        request_id=f"request-{job_id}",
        digest="0" * 64,
        traceparent="",
    )


def an_object(name: str = "weights") -> ObjectRef:
    return ObjectRef(name=name, sha256=(name.encode().hex() + "0" * 64)[:64], bytes=10)


def a_node(node: str = "n1", *types: str, **changes: Any) -> NodeInventory:
    devices = tuple(
        Device(index=index, type=kind, memory_gb=16.0, emulated=True) for index, kind in enumerate(types or ("V100",))
    )
    known = {"node": node, "incarnation": "i1", "devices": devices, "workloads": (WORKLOAD,)}
    ports = tuple(range(29400, 29400 + len(devices)))
    return NodeInventory(**{**known, "gang_address": f"host-of-{node}", "gang_ports": ports, **changes})


def some_progress(job_id: str = "job-a", **changes: Any) -> JobProgress:
    return JobProgress(
        **{
            "job_id": job_id,
            "name": job_id,
            "state": JobState.WAITING,
            "total_steps": 1000,
            "version": 0,
            "weights": an_object(f"{job_id}-v0"),
            **changes,
        }
    )


def an_entry(fork: int = 0, node: str = "n1", **changes: Any) -> LedgerEntry:
    return LedgerEntry(**{"fork": fork, "node": node, "device_type": "V100", "quota": 500, **changes})


def a_result(job_id: str = "job-a", round: int = 1, fork: int = 0, **changes: Any) -> ForkResult:  # noqa: A002
    return ForkResult(
        **{
            "kind": "train",
            "key": LeaseKey(job_id=job_id, round=round, fork=fork),
            "epoch": 1,
            "node": "n1",
            "device_type": "V100",
            "base_version": -1 if changes.get("kind") == "init" else 0,
            "steps": 100,
            "samples": 3200,
            "updates": 100,
            "object": an_object(f"{job_id}-r{round}-f{fork}"),
            "throughput": 20.0,
            "trained_s": 5.0,
            "reason": "clock",
            **changes,
        }
    )
