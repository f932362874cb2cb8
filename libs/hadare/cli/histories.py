"""How a job's metrics went, version by version: what ``hadare job`` shows beside the job's status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from rich.table import Table

from hadare.cli import tables
from hadare.model.jobs import Guarded
from hadare.wire import api


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionTold:
    """A version as the events tell of it; ``metrics`` once it was evaluated, ``guard`` if one chose it."""

    version: int
    at: float = 0.0
    steps: int = 0
    forks: int = 0
    devices: int = 0
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    fork_gain: float | None = None
    guard: Guarded | None = None


def by_version(points: Iterable[api.HistoryPoint]) -> list[VersionTold]:
    """One entry a version, oldest first: its making and its evaluation are two events."""
    told: dict[int, VersionTold] = {}
    for point in points:
        known = told.get(point.version) or VersionTold(version=point.version, at=point.at)
        if point.steps is not None:
            known = replace(known, steps=point.steps, forks=point.forks or 0, loss=point.loss, at=point.at)
            known = replace(known, devices=point.devices or 0)
            known = replace(known, fork_gain=point.fork_gain)
        told[point.version] = replace(known, metrics=point.metrics or known.metrics, guard=point.guard or known.guard)
    return [told[version] for version in sorted(told)]


def of_history(versions: Sequence[VersionTold]) -> Table:
    """A column for each metric, the forks' devices if a gang has trained, and what a guard chose, if there is one."""
    gangs = any(one.devices > one.forks for one in versions)
    guarded = any(one.guard for one in versions)
    names = sorted({name for one in versions for name in one.metrics})
    rows = [
        (
            one.version,
            one.steps,
            one.forks or "",
            *([one.devices or ""] if gangs else []),
            tables.number(one.fork_gain),
            tables.number(one.loss),
            *(tables.number(one.metrics.get(name)) for name in names),
            *([_choice(one.guard)] if guarded else []),
        )
        for one in versions
    ]
    columns = ("VERSION", "STEPS", "FORKS", *(["DEVICES"] if gangs else []), "FORK GAIN", "TRAINING LOSS")
    columns += tuple(name.upper() for name in names)
    return tables.table((*columns, "CHOSEN") if guarded else columns, rows, right=columns)


def _choice(guard: Guarded | None) -> str:
    if guard is None:
        return ""
    return f"{guard.chosen}: {guard.reason}" if guard.reason else guard.chosen
