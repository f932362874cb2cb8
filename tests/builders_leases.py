"""Leases, devices and a machine to hand them to; every test states only what matters to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from hadare.machines import lease_commands as do
from hadare.machines import lease_events as ev
from hadare.machines.lease_state import LeaseLimits
from hadare.machines.leases import LeaseMachine
from hadare.model.devices import Device
from hadare.model.jobs import JobSpec, ObjectRef
from hadare.model.leases import Failure, Lease, LeaseAnswer, LeaseKey, LeaseKind, Revoked

NODE = "north"
C = TypeVar("C")


def a_ref(letter: str = "a") -> ObjectRef:
    return ObjectRef(name=f"object-{letter}", sha256=letter * 64, bytes=10)


def a_spec(**changes: Any) -> JobSpec:
    return replace(
        JobSpec(workload="hadare.training.workloads.digits:Digits", total_steps=1000, batch_size=32), **changes
    )


def a_device(index: int = 0, kind: str = "V100", **changes: Any) -> Device:
    return replace(Device(index=index, type=kind, memory_gb=16.0, emulated=True), **changes)


def a_lease(job: str = "apple", round_: int = 1, *, fork: int = 0, attempt: int = 0, **changes: Any) -> Lease:
    kind: LeaseKind = changes.pop("kind", "train")
    lease = Lease(
        kind=kind,
        key=LeaseKey(job_id=job, round=round_, fork=fork, attempt=attempt, kind=kind),
        epoch=1,
        node=NODE,
        spec=a_spec(),
        devices=(0,) if kind == "train" else (),
        device_type="V100" if kind == "train" else "CPU",
        base_version=-1 if kind == "init" else round_ - 1,
        base=None if kind == "init" else a_ref(),
        quota=500,
        duration_s=10.0,
    )
    return replace(lease, **changes)


class Bench:
    """A machine with its commands kept, and the events of an obliging world in one line each."""

    def __init__(self, *devices: Device, limits: LeaseLimits | None = None) -> None:
        self.machine = LeaseMachine(NODE, devices or (a_device(0), a_device(1)), limits)
        self.said: list[do.Command] = []
        self.news: list[do.Command] = []
        self._tickets = 0

    def give(self, event: ev.Event) -> list[do.Command]:
        self.news = self.machine.handle(event)
        self.said += self.news
        self.machine.check_invariants()
        return self.news

    def lease(self, lease: Lease, at: float = 0.0) -> LeaseAnswer:
        self._tickets += 1
        self.give(ev.LeaseArrived(at=at, ticket=self._tickets, lease=lease))
        return self.only(do.AnswerLease).answer

    def revoke(
        self, job: str = "apple", at: float = 0.0, *, leases: tuple[str, ...] = (), epoch: int = 1
    ) -> Revoked | None:
        """The answer, if it comes at once."""
        self._tickets += 1
        self.give(ev.RevokeArrived(at=at, ticket=self._tickets, job_id=job, leases=leases, epoch=epoch))
        return self.only(do.AnswerRevoke).answer if self.some(do.AnswerRevoke) else None

    def fetched(self, lease: Lease, at: float = 0.0) -> None:
        self.give(ev.BaseFetched(at=at, lease=str(lease.key), path="base"))

    def ready(self, process: str, at: float = 0.0) -> None:
        self.give(ev.ProcessReady(at=at, process=process))

    def progressed(self, process: str, lease: Lease, at: float, progress: ev.Progress) -> None:
        self.give(ev.WorkProgressed(at=at, process=process, lease=str(lease.key), progress=progress))

    def done(self, process: str, lease: Lease, at: float = 0.0, **outcome: Any) -> None:
        given = {"reason": "clock", "steps": 100, "path": "weights", "trained_s": 9.0, **outcome}
        self.give(ev.WorkDone(at=at, process=process, lease=str(lease.key), outcome=ev.Outcome(**given)))

    def uploaded(self, lease: Lease, at: float = 0.0) -> None:
        self.give(ev.ResultUploaded(at=at, lease=str(lease.key), object=a_ref("b")))

    def failed(self, process: str, at: float = 0.0, fault: Failure | None = None) -> None:
        fault = fault or Failure(kind="killed", message="exit status -9")
        self.give(ev.ProcessFailed(at=at, process=process, failure=fault))

    def gone(self, process: str, at: float = 0.0, *, free: bool = True) -> None:
        self.give(ev.ProcessEnded(at=at, process=process, free=free, reason="" if free else "pid 7 will not die"))

    def tick(self, at: float) -> None:
        self.give(ev.Ticked(at=at))

    def training(self, lease: Lease, at: float = 0.0) -> str:
        """Grants the lease and brings it to work; returns its process."""
        assert self.lease(lease, at).accepted
        start = self.only(do.StartProcess)
        self.fetched(lease, at)
        self.ready(start.process, at)
        assert self.only(do.Assign).lease == lease
        return start.process

    def some(self, kind: type[C]) -> list[C]:
        """Commands of that kind that followed from the last event."""
        return [command for command in self.news if isinstance(command, kind)]

    def only(self, kind: type[C]) -> C:
        found = self.some(kind)
        assert len(found) == 1, f"{len(found)} {kind.__name__} in {self.news}"
        return found[0]

    def ever(self, kind: type[C]) -> list[C]:
        return [command for command in self.said if isinstance(command, kind)]

    def results(self, lease: Lease) -> list[do.Deliver]:
        return [deliver for deliver in self.ever(do.Deliver) if deliver.lease == str(lease.key)]
