"""The demonstration's verdict: what each job reached against its target, what each device did, and what is at fault.

Pure: facts in, report out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hadare.local.history import DeviceUse, Span, Training, mean_completion, total_duration, use_of_devices, utilisation
from hadare.local.targets import Calibration
from hadare.model.events import StoredEvent
from hadare.wire.api import JobStatus

LEAST_REACHED = 0.95
"""A device that trains slower than this part of its nominal rate makes the emulation a lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """``forks`` counts the forks whose steps were counted, over all rounds; ``most_forks`` those of one round."""

    name: str
    job_id: str
    state: str
    steps: int
    target_steps: int
    metric_name: str
    metric: float | None
    target: float
    one_worker: float
    better: str
    reached: bool
    forks: int
    most_forks: int
    rounds: int
    versions: int
    jct_s: float | None
    trace_id: str = ""
    trace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """Rates in steps/s of training time. ``reached`` is reached over nominal rate."""

    node: str
    device: int
    type: str
    nominal_rate: float
    reached_rate: float
    reached: float
    leases: int
    steps: int
    trained_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What ``hadare demo --json`` writes. ``faults`` is empty if and only if ``ok``."""

    ok: bool
    ttd_s: float
    mean_jct_s: float
    cru: float
    jobs: tuple[JobReport, ...]
    devices: tuple[DeviceReport, ...]
    faults: tuple[str, ...]
    directory: str = ""
    timeline: str = ""
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a run left behind. ``devices`` are (node, index, type), also of those that never trained."""

    jobs: Sequence[JobStatus]
    spans: Mapping[str, Span]
    job_events: Sequence[StoredEvent]
    round_events: Sequence[StoredEvent]
    trainings: Sequence[Training]
    devices: Sequence[tuple[str, int, str]]
    targets: Mapping[str, Calibration]


def judge(facts: Facts, traces: Mapping[str, str], trace_faults: Sequence[str]) -> Report:
    """The whole report; ``traces`` maps a job to the file of its trace."""
    jobs = tuple(_job(facts, job, traces.get(job.job_id, "")) for job in facts.jobs)
    devices = tuple(_device(use) for use in use_of_devices(facts.trainings))
    known = [facts.spans[job.job_id] for job in facts.jobs if job.job_id in facts.spans]
    ttd = total_duration(known)
    faults = (*_faults_of_jobs(jobs), *_faults_of_devices(facts, devices), *trace_faults)
    return Report(
        ok=not faults,
        ttd_s=round(ttd, 3),
        mean_jct_s=round(mean_completion(known), 3),
        cru=round(utilisation(facts.trainings, len(facts.devices), ttd), 4),
        jobs=jobs,
        devices=devices,
        faults=faults,
    )


def _job(facts: Facts, job: JobStatus, trace: str) -> JobReport:
    target = facts.targets[job.name]
    span = facts.spans.get(job.job_id)
    metric = job.metrics.get(target.metric) if job.metrics_version == job.version else None
    forks = _forks(facts.job_events, job.job_id)
    done = job.state == "completed" and job.steps >= job.total_steps
    return JobReport(
        name=job.name,
        job_id=job.job_id,
        state=job.state.value,
        steps=job.steps,
        target_steps=job.total_steps,
        metric_name=target.metric,
        metric=metric,
        target=round(target.target, 6),
        one_worker=round(target.mean, 6),
        better=target.better,
        reached=done and target.reached_by(metric),
        forks=sum(forks),
        most_forks=max(forks, default=0),
        rounds=job.rounds,
        versions=job.version + 1,
        jct_s=round(span.ended - span.arrived, 3) if span and span.ended is not None else None,
        trace_id=job.trace_id,
        trace=trace,
    )


def _forks(events: Iterable[StoredEvent], job_id: str) -> list[int]:
    """How many forks went into each version."""
    return [
        int(stored.event.data.get("forks", 0))
        for stored in events
        if stored.event.id == job_id and stored.event.what == "consolidated"
    ]


def _device(use: DeviceUse) -> DeviceReport:
    return DeviceReport(
        node=use.node,
        device=use.device,
        type=use.type,
        nominal_rate=round(use.nominal_rate, 3),
        reached_rate=round(use.reached_rate, 3),
        reached=round(use.reached, 4),
        leases=use.leases,
        steps=use.steps,
        trained_s=round(use.trained_s, 3),
    )


def _faults_of_jobs(jobs: Sequence[JobReport]) -> Iterable[str]:
    for job in jobs:
        if job.state != "completed":
            yield f"{job.name} is {job.state}, not completed"
        elif job.steps < job.target_steps:
            yield f"{job.name} ended with {job.steps} of {job.target_steps} steps"
        elif job.metric is None:
            yield f"{job.name} has no metrics of its last version"
        elif not job.reached:
            relation = "below" if job.better == "higher" else "above"
            yield f"{job.name}: {job.metric_name} {job.metric:.4f} is {relation} its target {job.target:.4f}"


def _faults_of_devices(facts: Facts, devices: Sequence[DeviceReport]) -> Iterable[str]:
    trained = {(device.node, device.device) for device in devices}
    for node, index, kind in facts.devices:
        if (node, index) not in trained:
            yield f"{node}/{index} ({kind}) never trained"
    for device in devices:
        if device.nominal_rate and device.reached < LEAST_REACHED:
            yield (
                f"{device.node}/{device.device} ({device.type}) reached {device.reached:.1%} of its nominal rate: "
                "this machine is too slow or too busy to emulate it"
            )
