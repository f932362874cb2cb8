"""A job without a cluster: one worker, in this process, by the same loop as a fork."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hadare.forking.schedule import data_seed
from hadare.model.jobs import JobSpec
from hadare.training.granted import Grant, Standing, silent
from hadare.training.starting import start_model
from hadare.training.weights import FileMeta
from hadare.training.worker import build_worker


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalResult:
    """What one worker reached. ``loss`` is the training loss of the last report interval."""

    steps: int
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    loss: float = 0.0
    steps_per_s: float = 0.0


def run_local(
    spec: JobSpec,
    *,
    seed: int | None = None,
    steps: int | None = None,
    progress: Callable[[Standing], None] = silent,
    out: Path | None = None,
    device: str = "cpu",
    start: Path | None = None,
) -> LocalResult:
    """Trains ``spec`` for ``steps`` (default: all of its budget), evaluates it, and writes its weights to ``out``.

    ``start``: a file with the first weights, see ``starting``.

    Raises ``WorkloadError`` if workload or data are missing, ``NotFinite`` if the training diverges.
    """
    begun = time.monotonic()
    seed = spec.seed if seed is None else seed
    total = spec.total_steps if steps is None else steps
    worker = build_worker(spec.workload, spec.config, spec.batch_size, seed, device)
    if start is not None:
        start_model(start, worker.model)
    grant = Grant(quota=total, data_seed=data_seed(seed, 0, 0), schedule_to=1.0)
    trained = worker.train(grant, report=progress)
    metrics = worker.evaluate()
    if out is not None:
        worker.save(out, FileMeta(user={"steps": trained.steps}))
    return LocalResult(
        steps=trained.steps,
        metrics=metrics,
        seconds=time.monotonic() - begun,
        loss=trained.loss,
        steps_per_s=trained.steps_per_s,
    )
