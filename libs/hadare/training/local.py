"""A job without a cluster: one worker, in this process, by the same loop as a fork."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hadare.forking.schedule import data_seed
from hadare.model.jobs import JobSpec
from hadare.training.gang import Alone
from hadare.training.granted import Grant, OnStanding, Revoked, Standing, Trained, never, silent
from hadare.training.guarding import GuardedRun, train_guarded
from hadare.training.starting import start_model
from hadare.training.trainer import Trainer
from hadare.training.weights import FileMeta
from hadare.training.worker import Worker, build_worker

GUARDED_ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalResult:
    """What one worker reached. ``loss`` is the training loss of the last report interval; ``chosen`` how often a guard
    kept which candidate."""

    steps: int
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    loss: float = 0.0
    steps_per_s: float = 0.0
    chosen: dict[str, int] = field(default_factory=dict)


def run_local(
    spec: JobSpec,
    *,
    seed: int | None = None,
    steps: int | None = None,
    progress: Callable[[Standing], None] = silent,
    out: Path | None = None,
    device: str = "cpu",
    start: Path | None = None,
    round_steps: int | None = None,
) -> LocalResult:
    """Trains ``spec`` for ``steps`` (default: all of its budget), evaluates it, and writes its weights to ``out``.

    ``start``: a file with the first weights, see ``starting``. ``round_steps``: how many steps a guard, if the job has
    one, lets pass between two choices; by default there are ``GUARDED_ROUNDS`` of them.

    Raises ``WorkloadError`` if workload or data are missing, ``NotFinite`` if the training diverges.
    """
    begun = time.monotonic()
    seed = spec.seed if seed is None else seed
    total = spec.total_steps if steps is None else steps
    worker = _worker(spec, seed, device)
    if start is not None:
        start_model(start, worker.model)
    guard = spec.consolidation.guard
    if guard is None:
        grant = Grant(quota=total, data_seed=data_seed(seed, 0, 0), schedule_to=1.0)
        made = GuardedRun(trained=worker.train(grant, report=progress))
    else:
        length = round_steps or max(1, total // GUARDED_ROUNDS)
        made = train_guarded(worker, guard, steps=total, round_steps=length, seed=seed, report=progress)
    trained = made.trained
    metrics = worker.evaluate()
    if out is not None:
        worker.save(out, FileMeta(user={"steps": trained.steps}))
    return LocalResult(
        steps=trained.steps,
        metrics=metrics,
        seconds=time.monotonic() - begun,
        loss=trained.loss,
        steps_per_s=trained.steps_per_s,
        chosen=made.chosen,
    )


class _GangOfOne(Trainer):
    """A job that asks for a gang of W: this one device does what W would, so that an update counts W steps."""

    gang = 1

    def train(self, grant: Grant, revoked: Revoked = never, report: OnStanding = silent) -> Trained:
        return self.train_in_gang(grant, Alone(self.gang * self.task.batch_size, self.device), revoked, report)


def _worker(spec: JobSpec, seed: int, device: str) -> Worker:
    if spec.gang == 1:
        return build_worker(spec.workload, spec.config, spec.batch_size, seed, device)
    trainer = _GangOfOne(spec.workload, spec.config, spec.batch_size, seed, device)
    trainer.gang = spec.gang
    return trainer
