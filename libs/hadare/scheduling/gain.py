"""What several forks of a job are worth together: the fork gain, the restart of cold forks, the consolidation.

``g_j(k)`` is the progress with k forks over that of the best of them alone. Until it is measured it is the paper's
``Σx / max x``: summed steps count like sequential ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from hadare.model.plans import JobView
from hadare.scheduling.utility import F

LEAST_TRAINING = 0.05
"""A fork is counted with at least this part of the round, however long its start or the consolidation takes."""


def training_part(cost_s: float, round_s: float) -> float:
    """Part of a round that is left for training when a cost is paid."""
    return max(1.0 - cost_s / round_s, LEAST_TRAINING)


def fork_rates(job: JobView, cells: Sequence[tuple[str, str]], round_s: float) -> list[float]:
    """Steps/s over a whole round of a fork on each (node, type): a cold one first pays the job's restart cost."""
    warm: dict[tuple[str, str], int] = {}
    for member in (member for gang in job.placed for member in gang):
        warm[member.node, member.type] = warm.get((member.node, member.type), 0) + member.count
    rates = []
    for node, device_type in cells:
        stays = warm.get((node, device_type), 0) > 0
        if stays:
            warm[node, device_type] -= 1
        cold = 1.0 if stays else training_part(job.restart_cost_s, round_s)
        rates.append(job.throughput[device_type].steps_per_s * cold)
    return rates


def joint_rate(job: JobView, rates: Sequence[float], round_s: float) -> float:
    """Steps/s of a job's forks together, at what their steps are worth: ``g(k) · max x``, less the consolidation."""
    return joint(job, sum(rates), max(rates, default=0.0), len(rates), round_s)


def joint(job: JobView, total: F, fastest: F, forks: int, round_s: float) -> F:
    """The same from the sum of the rates, the fastest of them and their number; of one set of forks or of many."""
    gain = job.fork_gain
    if gain and forks:
        total = cast(F, np.minimum(total, gain[min(forks, len(gain)) - 1] * fastest))
    return total * training_part(job.consolidation_cost_s, round_s) if forks > 1 else total
