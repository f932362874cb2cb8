"""What forking is worth: five unequal workers on each workload, against one; at equal steps, equal time, to a target.

What the numbers mean and which were found: docs/explanation/quality.md.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

import torch

from hadare.bench.quality_runs import (
    TOGETHER,
    Case,
    Curve,
    Merge,
    Point,
    alone,
    better_of_both,
    forked,
    guarded,
    with_outer,
)
from hadare.forking.outer import DILOCO, outer_of
from hadare.model.jobs import ConsolidationSpec, HalfLife
from hadare.training.task import load_task_class

P = ParamSpec("P")
T = TypeVar("T")

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

ONE, ONE_EMA, GANG = "one worker", "one worker, EMA", "balanced gang"
FORKS, NESTEROV, GUARD = "forks, average", "forks, Nesterov 0.7/0.5", "forks, guard"
SMOOTHED, AUTO = "forks, average, or its EMA", "forks, method auto, or its EMA"
SETTINGS = (ONE, ONE_EMA, GANG, FORKS, NESTEROV, GUARD, SMOOTHED, AUTO)
# Runs of forks, and the settings that are read off each: the versions themselves, or what `--best` hands out.
_HALF_LIFE: HalfLife = "round"
_RUNS: Mapping[tuple[str | None, str | None], Merge] = {
    (FORKS, SMOOTHED): with_outer(outer_of(ConsolidationSpec()), _HALF_LIFE),
    (NESTEROV, None): with_outer(DILOCO),
    (GUARD, None): guarded,
    (None, AUTO): with_outer(outer_of(ConsolidationSpec(method="auto")), _HALF_LIFE),
}


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
    names: Iterable[str],
    *,
    quick: bool = False,
    seeds: int = 3,
    tuned: bool | None = None,
    workers: int = 1,
    said: Callable[[str], None] = lambda _: None,
) -> Quality:
    """All settings on the named workloads; ``tuned`` (default: unless ``quick``) also at each one's best learning rate.

    ``workers`` processes share the work, which changes nothing in what is found. Raises ``ValueError`` for none.
    """
    with _Here() if workers == 1 else ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        found = _measure(list(names), quick, range(seeds), (not quick) if tuned is None else tuned, pool, said)
    return Quality(cells=tuple(found), quick=quick)


class _Here(Executor):
    """Does the work in this process, at once."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def _measure(
    names: Sequence[str], quick: bool, seeds: range, tuned: bool, pool: Executor, said: Callable[[str], None]
) -> list[Cell]:
    """Everything is begun at once, the runs that others wait for first."""
    cases = {name: _quick(name) if quick else FULL[name] for name in names}
    shared = {name: {seed: pool.submit(curves_of, cases[name], seed) for seed in seeds} for name in names}
    tried = {
        name: {r: pool.submit(curves_of, replace(cases[name], rate=r), _TUNING_SEED) for r in _RATES}
        for name in names
        if tuned
    }
    cells: list[Cell] = []
    for name in names:
        curves = {seed: run.result() for seed, run in shared[name].items()}
        rows = _cells(name, cases[name], curves, SHARED_RATE, dict.fromkeys(SETTINGS, 1.0))
        for row in rows:
            said(f"{name}: {row.setting}: {row.equal_wall.text()} at equal time")
        cells.extend(rows)
        if tuned:
            best = _best_rates(cases[name], {rate: run.result() for rate, run in tried[name].items()})
            cells.extend(_tuned(name, cases[name], curves, best, pool))
    return cells


def _quick(name: str) -> Case:
    return replace(FULL[name], budget=_QUICK[name], round_steps=_QUICK[name] // 10)


Curves = Mapping[str, Curve]


def curves_of(case: Case, seed: int, settings: Sequence[str] = SETTINGS) -> dict[str, Curve]:
    """The curve of each setting. A balanced gang trains as one worker does, at the sum of the speeds."""
    torch.set_num_threads(1)
    found: dict[str, Curve] = {}
    if {ONE, ONE_EMA, GANG} & {*settings}:
        one, smooth = alone(case, seed)
        gang = tuple(replace(point, time=point.time / TOGETHER) for point in one)
        found |= {ONE: one, ONE_EMA: smooth, GANG: gang}
    for (plain, best), merge in _RUNS.items():
        if {plain, best} & {*settings}:
            found |= _forked(case, seed, merge, plain, best)
    return {setting: found[setting] for setting in settings}


def _forked(case: Case, seed: int, merge: Merge, plain: str | None, best: str | None) -> dict[str, Curve]:
    with tempfile.TemporaryDirectory(prefix="hadare-", dir=_memory()) as folder:
        curve = forked(case, seed, Path(folder), merge)
    better = load_task_class(case.workload).better
    curves = {plain: curve, best: better_of_both(curve, better)}
    return {setting: one for setting, one in curves.items() if setting is not None}


def _memory() -> str | None:
    """Where files need not reach a disk, if there is such a place."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a private folder is made in it


def _best_rates(case: Case, tried: Mapping[float, Curves]) -> dict[str, float]:
    """Of the three rates, by a seed that is not reported."""
    sign = 1 if load_task_class(case.workload).better == "higher" else -1

    def score(setting: str, rate: float) -> float:
        return sign * at_time(tried[rate][setting], case.budget)

    return {setting: max(_RATES, key=lambda rate: score(setting, rate)) for setting in SETTINGS}


def _tuned(
    name: str, case: Case, shared: Mapping[int, Curves], best: Mapping[str, float], pool: Executor
) -> list[Cell]:
    """Each setting at its best rate; only those are run again whose best is another than the workload's own."""
    wanted = {rate: [setting for setting, own in best.items() if own == rate] for rate in set(best.values()) - {1.0}}
    runs = [
        (seed, pool.submit(curves_of, replace(case, rate=rate), seed, settings))
        for rate, settings in sorted(wanted.items())
        for seed in shared
    ]
    curves = {seed: dict(found) for seed, found in shared.items()}
    for seed, run in runs:
        curves[seed] |= run.result()
    return _cells(name, case, curves, TUNED_RATE, best)


def _cells(name: str, case: Case, curves: Mapping[int, Curves], rate: str, factors: Mapping[str, float]) -> list[Cell]:
    task = load_task_class(case.workload)
    target = statistics.mean(at_time(found[ONE], case.budget / 2) for found in curves.values())
    rows = []
    for setting in SETTINGS:
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
