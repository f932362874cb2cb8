"""Evaluates a version as a user will see it: the model itself, and the average of versions that is kept with it."""

from __future__ import annotations

from pathlib import Path

from hadare.training.exporting import AVERAGE_IS_BETTER
from hadare.training.trainer import Trainer
from hadare.training.weights import EMA_PREFIX, load_average, load_model
from hadare.training.worker import Worker


def evaluate_version(worker: Worker, path: Path) -> dict[str, float]:
    """Metrics of the version that ``worker`` has loaded from ``path``, and beside each ``ema.<metric>`` of its average.

    ``ema.is_better`` is by the task's own metric; a script names none. The worker's model is afterwards what it was
    before. Raises ``WeightsError``.
    """
    metrics = worker.evaluate()
    if not metrics or not load_average(path, worker.model):
        return metrics
    try:
        smooth = worker.evaluate()
    finally:
        load_model(path, worker.model)
    found = {**metrics, **{EMA_PREFIX + name: value for name, value in smooth.items()}}
    if isinstance(worker, Trainer) and (judged := worker.task.metric) in metrics:
        gain = smooth[judged] - metrics[judged]
        found[AVERAGE_IS_BETTER] = float(gain > 0 if worker.task.better == "higher" else gain < 0)
    return found
