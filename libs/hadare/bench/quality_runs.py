"""Runs whose quality is compared: one worker, and unequal forks that train in turn, in virtual time.

The unit of time is one step of the fastest worker. Every run goes through the trainer, the files and the consolidation
of a cluster; nothing is skipped but the waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from hadare.forking.outer import AVERAGE, Outer, choose
from hadare.forking.schedule import data_seed
from hadare.model.jobs import GuardSpec, HalfLife
from hadare.training.averaging import ForkFile, Options, consolidate, consolidate_candidates
from hadare.training.evaluation import evaluate_version
from hadare.training.granted import Grant
from hadare.training.trainer import Trainer
from hadare.training.weights import EMA_PREFIX

SPEEDS = (10, 6, 4, 3, 1)
# Steps that the five do while the fastest does one.
TOGETHER = sum(SPEEDS) / max(SPEEDS)
_EMA_DECAY = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """``metric`` of the model after ``steps`` counted steps, at ``time`` in steps of the fastest worker; ``smooth`` of
    the average of versions, if one is kept."""

    time: float
    steps: int
    metric: float
    smooth: float | None = None


Curve = tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job to train: ``budget`` is the time, in steps of the fastest worker; ``round_steps`` are its in a round."""

    workload: str
    batch_size: int
    budget: int
    round_steps: int
    rate: float = 1.0

    def trainer(self, seed: int) -> Trainer:
        """A new model; its learning rate is the workload's default times ``rate``."""
        default = Trainer(self.workload, {}, self.batch_size, seed).task
        lr = default.settings.lr * self.rate  # type: ignore[attr-defined]  # every built-in workload has it
        return Trainer(self.workload, {"lr": lr}, self.batch_size, seed)


def alone(case: Case, seed: int) -> tuple[Curve, Curve]:
    """One worker for as many steps as the five would do together, and the moving average of its weights."""
    trainer = case.trainer(seed)
    name = trainer.task.metric
    average = _Average(trainer)
    plain, smooth = [], []
    for number in range(round(case.budget * TOGETHER / case.round_steps)):
        trainer.train(Grant(quota=case.round_steps, data_seed=data_seed(seed, number, 0)))
        steps = (number + 1) * case.round_steps
        plain.append(Point(time=steps, steps=steps, metric=trainer.evaluate()[name]))
        smooth.append(Point(time=steps, steps=steps, metric=average.evaluate()[name]))
    return tuple(plain), tuple(smooth)


class _Average:
    """An exponential moving average of a worker's parameters, over its updates."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._parameters: list[torch.Tensor] = list(trainer.model.parameters())
        self._values = [parameter.detach().clone() for parameter in self._parameters]
        trainer.optimizer.register_step_post_hook(lambda *_: self._follow())

    def evaluate(self) -> dict[str, float]:
        own = [parameter.detach().clone() for parameter in self._parameters]
        self._put(self._values)
        metrics = self._trainer.evaluate()
        self._put(own)
        return metrics

    @torch.no_grad()
    def _follow(self) -> None:
        torch._foreach_lerp_(self._values, self._parameters, 1 - _EMA_DECAY)

    @torch.no_grad()
    def _put(self, values: Sequence[torch.Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.copy_(value)


# Makes the next version of the forks of a base, in a folder, and says where it lies.
Merge = Callable[[Path, Sequence[ForkFile], Path, Trainer], Path]


def forked(case: Case, seed: int, folder: Path, merge: Merge) -> Curve:
    """Five forks at ``SPEEDS`` for the case's time, made into one model after each round."""
    trainer = case.trainer(seed)
    base = folder / "base"
    trainer.save(base)
    quotas = [max(1, case.round_steps * speed // max(SPEEDS)) for speed in SPEEDS]
    points = []
    for number in range(case.budget // case.round_steps):
        files = []
        for fork, quota in enumerate(quotas):
            trainer.load(base)
            trainer.train(Grant(quota=quota, data_seed=data_seed(seed, number, fork)))
            files.append(ForkFile(fork=fork, path=folder / f"fork{fork}", steps=quota))
            trainer.save(files[-1].path)
        merge(base, files, folder, trainer).replace(base)
        trainer.load(base)
        done = number + 1
        found, name = evaluate_version(trainer, base), trainer.task.metric
        time, steps = done * case.round_steps, done * sum(quotas)
        points.append(Point(time=time, steps=steps, metric=found[name], smooth=found.get(EMA_PREFIX + name)))
    return tuple(points)


def better_of_both(curve: Curve, better: Literal["higher", "lower"]) -> Curve:
    """The version or the average of versions, whichever is better: what `hadare weights export --best` hands out."""
    best = max if better == "higher" else min
    return tuple(replace(p, metric=p.metric if p.smooth is None else best(p.metric, p.smooth)) for p in curve)


def with_outer(outer: Outer, half_life: HalfLife = None) -> Merge:
    """The mean of the forks, by an outer step; with a half-life, and the average of versions beside it."""

    def merge(base: Path, files: Sequence[ForkFile], folder: Path, _trainer: Trainer) -> Path:
        consolidate(base, files, folder / "next", Options(outer=outer, ema_half_life=half_life))
        return folder / "next"

    return merge


def guarded(base: Path, files: Sequence[ForkFile], folder: Path, trainer: Trainer) -> Path:
    """The candidate with the best metric, by a margin."""
    task = trainer.task
    found = consolidate_candidates(base, files, folder)
    scores = {}
    for name, (path, _) in found.items():
        trainer.load(path)
        scores[name] = trainer.evaluate()[task.metric]
    chosen = choose(scores, GuardSpec(metric=task.metric, better=task.better))
    return found[chosen if chosen in found else AVERAGE][0]
