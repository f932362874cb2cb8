"""Where a fork stands in its job's learning-rate schedule, and which data it draws. Pure and reproducible."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from hadare.forking.consolidation import path_steps

# The last part of the budget, in which the schedule catches up with the summed steps so that it ends with the job.
CATCH_UP = 0.25


def position(*, steps: float, path: float, total_steps: int) -> float:
    """A job's place in its schedule, 0 at the start and 1 when the budget is used up.

    ``steps`` are the summed steps of all forks so far, ``path`` the sum over the rounds of ``path_steps``. Summed steps
    alone decay a schedule too early, for an averaged model has travelled a shorter path; the path alone never reaches
    the end. So: the path's fraction of the budget, until the last quarter of the budget, which leads to 1::

        max(path / total, (steps / total - (1 - CATCH_UP)) / CATCH_UP)

    With one fork path = steps, and this is steps / total. It never falls, as neither argument does.
    """
    done = steps / total_steps
    return min(1.0, max(0.0, path / total_steps, (done - (1.0 - CATCH_UP)) / CATCH_UP))


def schedule_span(*, steps: int, path: float, planned: Sequence[int], total_steps: int) -> tuple[float, float]:
    """``(schedule_from, schedule_to)`` of the leases of one round, the same for all its forks.

    ``planned`` are the steps that each fork of the round is expected to do.
    """
    start = position(steps=steps, path=path, total_steps=total_steps)
    end = position(steps=steps + sum(planned), path=path + path_steps(planned), total_steps=total_steps)
    return start, max(start, end)


def data_seed(job_seed: int, round_number: int, fork: int) -> int:
    """The seed of a fork's data order: different for every (job seed, round, fork), the same on every machine.

    Two forks with one order gain nothing from averaging, and an order that starts again each round sees a sliver of
    the data; both were measured.
    """
    digest = sha256(f"hadare data {job_seed} {round_number} {fork}".encode()).digest()
    return int.from_bytes(digest[:8], "big") & (2**53 - 1)
