"""What the journal tells of a run: who trained where and when, on one clock (the bus server's).

Pure: events in, facts out. An agent's ``lease_ended`` carries how long before it the last step was made, so that
the place on the stream's clock of the first and the last step follows from the event's own time stamp.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hadare.model.events import StoredEvent

ENDS = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One device training one fork of a job in one round. Times are seconds on the stream's clock."""

    node: str
    device: int
    device_type: str
    job_id: str
    round: int
    fork: int
    attempt: int
    began: float
    ended: float
    steps: int
    nominal_rate: float
    reason: str

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From a job's arrival to its end; ``ended`` is None while it goes on."""

    job_id: str
    arrived: float
    ended: float | None
    end: str = ""


def trainings(node_events: Iterable[StoredEvent]) -> list[Training]:
    """Every training lease that made a step, one entry a device, by node, device and time."""
    found: list[Training] = []
    for stored in node_events:
        data = stored.event.data
        if stored.event.what != "lease_ended" or data.get("kind") != "train" or not data.get("steps"):
            continue
        found.extend(_training(stored, data, device) for device in data.get("devices", ()))
    return sorted(found, key=lambda t: (t.node, t.device, t.began))


def _training(stored: StoredEvent, data: dict[str, Any], device: int) -> Training:
    last = stored.at - float(data["since_last_s"])
    return Training(
        node=stored.event.id,
        device=int(device),
        device_type=str(data["device_type"]),
        job_id=str(data["job"]),
        round=int(data["round"]),
        fork=int(data["fork"]),
        attempt=int(data["attempt"]),
        began=last - float(data["trained_s"]),
        ended=last,
        steps=int(data["steps"]),
        nominal_rate=float(data["nominal_rate"]),
        reason=str(data["reason"]),
    )


def spans(job_events: Iterable[StoredEvent]) -> dict[str, Span]:
    """When each job arrived and ended, by job: its first event and the one that says its end."""
    found: dict[str, Span] = {}
    for stored in sorted(job_events, key=lambda e: e.sequence):
        job = stored.event.id
        span = found.get(job) or Span(job_id=job, arrived=stored.at, ended=None)
        if stored.event.what in ENDS and span.ended is None:
            span = Span(job_id=job, arrived=span.arrived, ended=stored.at, end=stored.event.what)
        found[job] = span
    return found


def total_duration(jobs: Iterable[Span]) -> float:
    """TTD: first arrival to last end, in seconds; 0 if no job has ended."""
    known = list(jobs)
    ends = [span.ended for span in known if span.ended is not None]
    return max(ends) - min(span.arrived for span in known) if ends else 0.0


def mean_completion(jobs: Iterable[Span]) -> float:
    """Mean JCT of the jobs that have ended, in seconds; 0 if none has."""
    times = [span.ended - span.arrived for span in jobs if span.ended is not None]
    return sum(times) / len(times) if times else 0.0


def utilisation(found: Sequence[Training], devices: int, duration_s: float) -> float:
    """CRU (DESIGN §1): device-seconds between first and last steps over device-seconds that exist within TTD."""
    return sum(t.seconds for t in found) / (devices * duration_s) if devices and duration_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """What a device did. Rates are steps per second of training time, over all its leases."""

    node: str
    device: int
    type: str
    leases: int
    steps: int
    trained_s: float
    nominal_rate: float
    reached_rate: float

    @property
    def reached(self) -> float:
        """Reached over nominal rate; 1 for a device that is not emulated."""
        return self.reached_rate / self.nominal_rate if self.nominal_rate else 1.0


def use_of_devices(found: Sequence[Training]) -> list[DeviceUse]:
    """Every device that trained, by node and index."""
    by_device: dict[tuple[str, int], list[Training]] = {}
    for training in found:
        by_device.setdefault((training.node, training.device), []).append(training)
    return [_use(own) for _, own in sorted(by_device.items())]


def _use(own: Sequence[Training]) -> DeviceUse:
    seconds = sum(t.seconds for t in own)
    steps = sum(t.steps for t in own)
    return DeviceUse(
        node=own[0].node,
        device=own[0].device,
        type=own[0].device_type,
        leases=len(own),
        steps=steps,
        trained_s=seconds,
        nominal_rate=sum(t.nominal_rate * t.seconds for t in own) / seconds if seconds else 0.0,
        reached_rate=steps / seconds if seconds else 0.0,
    )
