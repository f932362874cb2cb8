"""What a policy is, how one is found by name, and the memory of who waited that every policy may keep."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Protocol

from hadare.model.errors import Rejected
from hadare.model.plans import JobView, RoundPlan, Snapshot
from hadare.scheduling.eligibility import placeable

ENTRY_POINT_GROUP = "hadare.policies"
"""Third parties publish a ``Policy`` instance under this group; whoever starts a process loads and registers it."""

Memory = dict[str, Any]
"""Plain maps, lists, numbers and strings: it is stored with the round. ``{}`` is the memory of a new cluster."""

WAITED = "waited"
PATIENCE_ROUNDS = 8


class Policy(Protocol):
    """Decides a round. Keeps nothing: the same snapshot and memory give the same plan."""

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


def policy_names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return tuple(sorted(_REGISTRY))


def rounds_waited(memory: Memory) -> dict[str, int]:
    """Rounds in a row in which each job could have been placed and was not."""
    return {str(job): int(rounds) for job, rounds in memory.get(WAITED, {}).items()}


def remember(waited: dict[str, int], jobs: Iterable[JobView], placed: Collection[str]) -> Memory:
    """The memory after a round. A job that got devices, is not ready, or is gone is forgotten."""
    waiting = sorted(job.job_id for job in jobs if placeable(job) and job.job_id not in placed)
    return {WAITED: {job: waited.get(job, 0) + 1 for job in waiting}}
