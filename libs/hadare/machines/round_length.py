"""How long a round lasts: the full interval, unless ending it with a job that ends leaves fewer devices idle."""

from __future__ import annotations

from collections.abc import Mapping

from hadare.machines.round_phases import RoundSettings
from hadare.model.jobs import JobProgress
from hadare.model.plans import RoundPlan

_SHORTEST = 0.1
"""Of the full round: below that, what a round's boundary costs is not known well enough."""

_RATE_ERROR = 0.025
"""A measured rate is off by so much in the median after two rounds (docs/explanation/figures.md)."""


def length_of(plan: RoundPlan, progress: Mapping[str, JobProgress], settings: RoundSettings) -> float:
    """Seconds for which the plan's leases are granted; always ``round_s`` if no ``boundary_s`` is set.

    A round that ends with a job is a little longer than the job should need, unless rates are ``exact``: a step short,
    it would need another round. Its forks end by their quotas, and the others train on meanwhile.
    """
    if settings.boundary_s is None:
        return settings.round_s
    steps_left = {job_id: known.total_steps - known.steps for job_id, known in progress.items()}
    best = round_length(plan, steps_left, settings.round_s, settings.boundary_s)
    spare_s = 0.0 if settings.exact else best * _RATE_ERROR + settings.boundary_s
    return min(settings.round_s, best + spare_s)


def round_length(plan: RoundPlan, steps_left: Mapping[str, int], round_s: float, boundary_s: float) -> float:
    """Seconds until the round's leases end: of all the times at which a job of the plan ends, and the full round, the
    one with the least share of device time lost.

    With D devices in use, k_j of them on job j, which ends after t_j seconds, a round of r seconds loses
    ``D·boundary_s`` at its boundary and ``Σ_{t_j < r} k_j·(r − t_j)`` on devices whose job has ended: together as a
    share of ``D·r``. ``boundary_s`` is what a round's boundary takes. Ties go to the longer round.
    """
    devices: dict[str, int] = {}
    rates: dict[str, float] = {}
    for fork in plan.forks:
        devices[fork.job_id] = devices.get(fork.job_id, 0) + sum(member.count for member in fork.gang)
        rates[fork.job_id] = rates.get(fork.job_id, 0.0) + fork.rate
    ends = {job: steps_left[job] / rate for job, rate in rates.items() if rate > 0 and job in steps_left}
    total = sum(devices.values())
    best, best_loss = round_s, _loss(round_s, ends, devices, total * boundary_s)
    for end in sorted({end for end in ends.values() if _SHORTEST * round_s <= end < round_s}, reverse=True):
        loss = _loss(end, ends, devices, total * boundary_s)
        if loss < best_loss * (1 - 1e-9):
            best, best_loss = end, loss
    return best


def _loss(length: float, ends: Mapping[str, float], devices: Mapping[str, int], boundary: float) -> float:
    """Device time lost per second of a round of this length (to be compared, so the number of devices is left out)."""
    idle = sum(devices[job] * max(0.0, length - end) for job, end in sorted(ends.items()))
    return (boundary + idle) / length
