"""What a policy is, how one is found by name, and the memory of who waited that every policy may keep."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hadare.model.errors import Rejected
from hadare.model.plans import JobView, RoundPlan, Snapshot
from hadare.scheduling.eligibility import Cells, Floats, JobTable, placeable
from hadare.scheduling.utility import DEFAULT

ENTRY_POINT_GROUP = "hadare.policies"
"""Third parties publish a ``Policy`` instance under this group; whoever starts a process loads and registers it."""

Memory = dict[str, Any]
"""Plain maps, lists, numbers and strings: it is stored with the round. ``{}`` is the memory of a new cluster."""

PATIENCE_ROUNDS = 8
AHEAD_TIMES = 2.0
"""A job is overdue after so many times the rounds in which the cluster could do what was ahead of it at first."""

OVERDUE_SHARE = 0.1
"""Part of the devices that goes to jobs that waited too long: they are served, and do not turn the queue around."""

_WAITED, _CREDIT, _AHEAD = "waited", "credit", "ahead"


class Policy(Protocol):
    """Decides a round. Keeps nothing: the same snapshot and memory give the same plan.

    It may have a ``default_utility``, the name of the utility of jobs that name none; else that is ``throughput``.
    """

    @property
    def name(self) -> str: ...

    def plan(self, snapshot: Snapshot, memory: Memory) -> tuple[RoundPlan, Memory]: ...


_REGISTRY: dict[str, Policy] = {}


def register(policy: Policy) -> None:
    """Make a policy known by its name; a later one of the same name takes its place."""
    _REGISTRY[policy.name] = policy


def policy_of(name: str) -> Policy:
    """The policy of that name. Raises ``Rejected`` (400) that lists the known ones."""
    try:
        return _REGISTRY[name]
    except KeyError:
        raise Rejected(400, f"unknown policy '{name}': known are {', '.join(policy_names())}") from None


def default_utility(policy: Policy) -> str:
    """The utility of a job that names none, under this policy: a view of a job always names one."""
    return str(getattr(policy, "default_utility", DEFAULT))


def policy_names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return tuple(sorted(_REGISTRY))


@dataclass(frozen=True, slots=True)
class Overdue:
    """Rows of the jobs whose turn it is because they waited too long, the longest wait first; credit that is left."""

    rows: tuple[int, ...] = ()
    credit: float = 0.0


def overdue(table: JobTable, usable: Floats, needs: Sequence[int], memory: Memory, patience: int) -> Overdue:
    """Whose turn it is, whatever prices say.

    A job is overdue when it has waited ``patience`` rounds, and ``AHEAD_TIMES`` those that the work ahead of it takes
    (as it was when the wait began: newcomers do not make it longer). While jobs are overdue, ``OVERDUE_SHARE`` of the
    devices is credited each round, and the longest wait is served as soon as the credit is enough for it. So beyond
    that time a job waits at most 1/share rounds, plus the devices of those overdue before it over the share of the
    devices. ``usable`` are the devices that each job could use on an empty cluster, ``needs`` those it needs at once.
    """
    waited, ahead = rounds_waited(memory), _rounds_ahead(memory)

    def is_late(job: str) -> bool:
        return waited.get(job, 0) >= max(patience, AHEAD_TIMES * ahead.get(job, 0.0))

    rows = [row for row, job in enumerate(table.jobs) if is_late(job.job_id) and usable[row] >= needs[row]]
    if not rows:
        return Overdue()
    devices = float(usable.max())
    credit = min(max(devices, 1.0), float(memory.get(_CREDIT, 0.0)) + OVERDUE_SHARE * devices)
    turn: list[int] = []
    for row in sorted(rows, key=lambda row: (-waited[table.jobs[row].job_id], table.jobs[row].job_id)):
        if needs[row] > credit:
            break
        turn.append(row)
        credit -= needs[row]
    return Overdue(tuple(turn), credit)


def rounds_waited(memory: Memory) -> dict[str, int]:
    """Rounds in a row in which each job could have been placed and was not."""
    return {str(job): int(rounds) for job, rounds in memory.get(_WAITED, {}).items()}


def _rounds_ahead(memory: Memory) -> dict[str, float]:
    return {str(job): float(rounds) for job, rounds in memory.get(_AHEAD, {}).items()}


def backlog(table: JobTable, cells: Cells) -> Floats:
    """Seconds that the whole cluster needs for what is left of each job, alone on all of it; 0 where it cannot run."""
    speed = table.rates @ cells.of_type.astype(np.float64)
    return np.divide(table.steps, speed, out=np.zeros_like(speed), where=speed > 0)


def ahead_of(table: JobTable, cells: Cells, order: Sequence[int], round_s: float) -> dict[str, float]:
    """Rounds that the whole cluster needs for all that comes before each job in ``order``, each alone on all of it."""
    rounds = backlog(table, cells) / round_s
    before = np.cumsum(rounds[list(order)]) - rounds[list(order)]
    return {table.jobs[row].job_id: float(rounds) for row, rounds in zip(order, before, strict=True)}


def remember(
    memory: Memory, credit: float, jobs: Iterable[JobView], placed: Collection[str], ahead: Mapping[str, float]
) -> Memory:
    """The memory after a round. A job that got devices, is not ready, or is gone is forgotten.

    ``ahead``: rounds of work before each job now; kept for those whose wait begins.
    """
    waited, before = rounds_waited(memory), _rounds_ahead(memory)
    waiting = sorted(job.job_id for job in jobs if placeable(job) and job.job_id not in placed)
    return {
        _WAITED: {job: waited.get(job, 0) + 1 for job in waiting},
        _AHEAD: {job: before.get(job, 0.0) if job in waited else ahead.get(job, 0.0) for job in waiting},
        _CREDIT: credit,
    }
