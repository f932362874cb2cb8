"""Jobs of a simulation: what a trace says of them, and what is true of them, which only the world knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hadare.model.jobs import Constraints, JobRecord, JobSpec
from hadare.scheduling.throughput import GFLOP_KEY

WORKLOAD = "simulated.workloads:Of_{kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """A job as its trace has it. ``gpu_hours``: of a V100, where the trace has a duration and no steps."""

    job_id: str
    arrival_s: float
    model: str
    batch_size: int
    gang: int = 1
    total_steps: int = 0
    gpu_hours: float = 0.0
    priority: float = 1.0
    deadline_s: float | None = None
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """A job with its true rates by device type, in steps/s.

    ``fork_rates``: one device on its own. ``gang_rates``: one rank of a gang of the job's size. A type that is missing
    cannot run the job. ``spread``: what is left of a gang's rate on a type when it spans nodes. ``restart_s``: from
    the lease to the first step of a process that is not there yet. ``flags``: what was assumed for want of data.
    """

    job_id: str
    arrival_s: float
    model: str
    batch_size: int
    total_steps: int
    gang: int = 1
    fork_rates: Mapping[str, float]
    gang_rates: Mapping[str, float]
    spread: Mapping[str, float] = field(default_factory=dict)
    gflop_per_sample: float = 1.0
    model_bytes: int = 0
    restart_s: float = 0.0
    priority: float = 1.0
    deadline_s: float | None = None
    mode: Literal["forks", "gang", "auto"] = "forks"
    flags: tuple[str, ...] = ()

    def rates(self, forking: bool) -> Mapping[str, float]:
        """Steps/s of one rank by type: of a fork on one device, or of a rank of the job's gang."""
        return self.fork_rates if forking else self.gang_rates


def record_of(job: SimJob, forking: bool) -> JobRecord:
    """The job as its user would submit it: he knows which types can hold it, and how much work a sample is.

    A rank's rate depends on the size of its gang, so jobs of other sizes do not share what they measure; forks do.
    """
    config: dict[str, float] = {GFLOP_KEY: job.gflop_per_sample}
    if not forking:
        config["gang"] = job.gang
    spec = JobSpec(
        name=job.job_id,
        workload=WORKLOAD.format(kind="".join(c if c.isalnum() else "_" for c in job.model)),
        config=config,
        total_steps=job.total_steps,
        batch_size=max(1, job.batch_size),
        gang=job.gang,
        mode=job.mode,
        priority=job.priority,
        deadline=job.deadline_s,
        constraints=Constraints(types=tuple(sorted(job.rates(forking)))),
    )
    return JobRecord(job_id=job.job_id, name=job.job_id, spec=spec, request_id=job.job_id, digest="0" * 64)
