"""The bounds of a run: no schedule of these jobs on this cluster can be better than these figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hadare.scheduling.bounds import Workload, best_pooled_mean_jct, indexed_mean_jct, shortest_duration
from hadare.simulator.jobs import SimJob

MOST_JOBS_INDEXED = 600
"""Beyond, the time-indexed programme takes too long to be worth it."""


def limits_of(jobs: Sequence[SimJob], devices: Mapping[str, int], *, gangs: bool = True) -> dict[str, float]:
    """Seconds. ``fluid_ttd_s``, ``mean_jct_s``: any forks; ``…_gangs_s``: one gang a job, of mixed types."""
    forks = _workload(jobs, devices, forking=True)
    found = {"fluid_ttd_s": shortest_duration(forks), "mean_jct_s": best_pooled_mean_jct(forks).mean_jct_s}
    if gangs:
        work = _workload(jobs, devices, forking=False)
        found["fluid_ttd_gangs_s"] = shortest_duration(work)
        if len(jobs) <= MOST_JOBS_INDEXED:
            found["mean_jct_gangs_s"] = indexed_mean_jct(work)
    return found


def _workload(jobs: Sequence[SimJob], devices: Mapping[str, int], *, forking: bool) -> Workload:
    types = sorted(devices)
    return Workload(
        steps=np.array([float(job.total_steps) for job in jobs]),
        rates=np.array([[job.rates(forking).get(name, 0.0) for name in types] for job in jobs]),
        devices=np.array([float(devices[name]) for name in types]),
        arrival_s=np.array([job.arrival_s for job in jobs]),
        width=None if forking else np.array([float(job.gang) for job in jobs]),
    )
