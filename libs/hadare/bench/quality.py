"""What forking is worth: five unequal workers on each workload, against one; at equal steps, equal time, to a target.

What the numbers mean and which were found: docs/explanation/quality.md.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from hadare.bench.quality_runs import TOGETHER, Case, Curve, Merge, Point, alone, forked, guarded, with_outer
from hadare.forking.outer import DILOCO, Outer
from hadare.training.task import load_task_class

_HERE = "hadare.training.workloads."
FULL: Mapping[str, Case] = {
    "digits": Case(workload=f"{_HERE}digits:Digits", batch_size=16, budget=2400, round_steps=150),
    "weather": Case(workload=f"{_HERE}weather:Weather", batch_size=64, budget=2400, round_steps=150),
    "charlm": Case(workload=f"{_HERE}charlm:CharLM", batch_size=64, budget=2400, round_steps=150),
    "translation": Case(workload=f"{_HERE}translation:Translation", batch_size=16, budget=600, round_steps=50),
    "recommendation": Case(
        workload=f"{_HERE}recommendation:Recommendation", batch_size=64, budget=3200, round_steps=200
    ),
}
NAMES = tuple(FULL)
# What --quick leaves of a case's time.
_QUICK = {"digits": 600, "weather": 600, "charlm": 600, "translation": 150, "recommendation": 1600}

SHARED_RATE, TUNED_RATE = "same", "tuned"
_RATES = (0.5, 1.0, 2.0)
# Seeds that learning rates are chosen by; results are of others.
_TUNING_SEED = 1000

ONE, ONE_EMA, FORKS, NESTEROV, GUARD, GANG = (
    *("one worker", "one worker, EMA", "forks, average", "forks, Nesterov 0.7/0.5", "forks, guard", "balanced gang"),
)
_MERGES: Mapping[str, Merge] = {FORKS: with_outer(Outer()), NESTEROV: with_outer(DILOCO), GUARD: guarded}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of the seeds that have a value (a target may not be reached): how many, mean, standard deviation."""

    count: int
    mean: float
    deviation: float

    def text(self) -> str:
        return f"{self.mean:.4f} ± {self.deviation:.4f}" if self.count else "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One setting on one workload. ``to_target`` is time as a fraction of the budget; ``rate`` says whether all
    settings have the workload's learning rate, or each its best of three (``factor``)."""

    workload: str
    metric: str
    better: Literal["higher", "lower"]
    setting: str
    rate: str
    factor: float
    equal_steps: Spread
    equal_wall: Spread
    to_target: Spread
    seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    cells: tuple[Cell, ...]
    quick: bool
    speeds_together: float = TOGETHER


def measure(
    names: Iterable[str], *, quick: bool = False, seeds: int | None = None, said: Callable[[str], None] = lambda _: None
) -> Quality:
    """All settings on the named workloads. In full (about 45 minutes) also with a tuned learning rate."""
    torch.set_num_threads(1)
    cells: list[Cell] = []
    numbers = range(seeds or (3 if quick else 5))
    for name in names:
        case = _quick(name) if quick else FULL[name]
        curves = {seed: _curves(case, seed) for seed in numbers}
        rows = _cells(name, case, curves, SHARED_RATE, dict.fromkeys(_settings(curves), 1.0))
        cells.extend(rows)
        if not quick:
            cells.extend(_tuned(name, case, curves))
        for row in rows:
            said(f"{name}: {row.setting}: {row.equal_wall.text()} at equal time")
    return Quality(cells=tuple(cells), quick=quick)


def _quick(name: str) -> Case:
    return replace(FULL[name], budget=_QUICK[name], round_steps=_QUICK[name] // 10)


Curves = Mapping[str, Curve]


def _settings(curves: Mapping[int, Curves]) -> list[str]:
    return list(next(iter(curves.values())))


def _curves(case: Case, seed: int) -> dict[str, Curve]:
    """The curve of each setting. A balanced gang trains as one worker does, at the sum of the speeds."""
    one, smooth = alone(case, seed)
    gang = tuple(replace(point, time=point.time / TOGETHER) for point in one)
    found = {ONE: one, ONE_EMA: smooth, GANG: gang}
    for setting, merge in _MERGES.items():
        with tempfile.TemporaryDirectory(prefix="hadare-", dir=_memory()) as folder:
            found[setting] = forked(case, seed, Path(folder), merge)
    return found


def _memory() -> str | None:
    """Where files need not reach a disk, if there is such a place."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a private folder is made in it


def _tuned(name: str, case: Case, shared: Mapping[int, Curves]) -> list[Cell]:
    """Each setting at the best of three learning rates, chosen by a seed that is not reported."""
    better = load_task_class(case.workload).better
    tried = {rate: _curves(replace(case, rate=rate), _TUNING_SEED) for rate in _RATES}
    sign = 1 if better == "higher" else -1
    best = {
        setting: max(_RATES, key=lambda rate: sign * at_time(tried[rate][setting], case.budget))
        for setting in _settings(shared)
    }
    needed = {rate for rate in best.values() if rate != 1.0}
    again = {rate: {seed: _curves(replace(case, rate=rate), seed) for seed in shared} for rate in needed}
    again[1.0] = {seed: dict(found) for seed, found in shared.items()}
    curves = {seed: {setting: again[rate][seed][setting] for setting, rate in best.items()} for seed in shared}
    return _cells(name, case, curves, TUNED_RATE, best)


def _cells(name: str, case: Case, curves: Mapping[int, Curves], rate: str, factors: Mapping[str, float]) -> list[Cell]:
    task = load_task_class(case.workload)
    target = statistics.mean(at_time(found[ONE], case.budget / 2) for found in curves.values())
    rows = []
    for setting in _settings(curves):
        own = [found[setting] for found in curves.values()]
        reached = [time_to(curve, target, task.better) for curve in own]
        rows.append(
            Cell(
                workload=name,
                metric=task.metric,
                better=task.better,
                setting=setting,
                rate=rate,
                factor=factors[setting],
                equal_steps=spread([at_steps(curve, case.budget) for curve in own]),
                equal_wall=spread([at_time(curve, case.budget) for curve in own]),
                to_target=spread([time / case.budget for time in reached if time is not None]),
                seeds=len(own),
            )
        )
    return rows


def at_time(curve: Curve, time: float) -> float:
    """The metric of the last version that is there by then (of the first, if there is none yet)."""
    return _last(curve, [p for p in curve if p.time <= time * (1 + 1e-9)])


def at_steps(curve: Curve, steps: int) -> float:
    """The metric of the last version of at most so many counted steps (of the first, if there is none)."""
    return _last(curve, [p for p in curve if p.steps <= steps])


def _last(curve: Curve, there: Sequence[Point]) -> float:
    return (there[-1] if there else curve[0]).metric


def time_to(curve: Curve, target: float, better: Literal["higher", "lower"]) -> float | None:
    """When a version first reached the target; ``None`` if none did."""
    reached = [p.time for p in curve if (p.metric >= target if better == "higher" else p.metric <= target)]
    return reached[0] if reached else None


def spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread(count=0, mean=0.0, deviation=0.0)
    return Spread(count=len(values), mean=statistics.mean(values), deviation=statistics.pstdev(values))
