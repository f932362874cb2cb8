"""A version and the average of versions are evaluated side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hadare.training.averaging import ForkFile, Options, consolidate
from hadare.training.evaluation import evaluate_version
from hadare.training.granted import Grant
from hadare.training.trainer import Trainer
from hadare.training.weights import WeightsError, load_average
from hadare.training.workloads import BUILTIN


@pytest.fixture
def trainer() -> Trainer:
    return Trainer(BUILTIN[0], {}, 16, 0)


def two_versions(trainer: Trainer, folder: Path, half_life: float | None) -> Path:
    """The second version of a job with one fork, loaded into the trainer."""
    base = folder / "v0"
    trainer.save(base)
    for number in (1, 2):
        trainer.load(base)
        trainer.train(Grant(quota=8, data_seed=number))
        trainer.save(folder / "fork")
        made = folder / f"v{number}"
        consolidate(base, [ForkFile(fork=0, path=folder / "fork", steps=8)], made, Options(ema_half_life=half_life))
        base = made
    trainer.load(base)
    return base


def test_the_average_has_metrics_of_its_own_beside_the_versions(trainer: Trainer, tmp_path: Path) -> None:
    found = evaluate_version(trainer, two_versions(trainer, tmp_path, 8))
    assert found["ema.accuracy"] != found["accuracy"]
    assert found["ema.is_better"] == float(found["ema.accuracy"] > found["accuracy"])


def test_evaluating_the_average_leaves_the_model_as_it_was(trainer: Trainer, tmp_path: Path) -> None:
    version = two_versions(trainer, tmp_path, 8)
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    evaluate_version(trainer, version)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.model.state_dict().items())


def test_a_job_without_an_average_is_evaluated_as_ever(trainer: Trainer, tmp_path: Path) -> None:
    version = two_versions(trainer, tmp_path, None)
    assert evaluate_version(trainer, version) == trainer.evaluate()


def test_the_average_of_another_model_is_refused(trainer: Trainer, tmp_path: Path) -> None:
    version = two_versions(trainer, tmp_path, 8)
    with pytest.raises(WeightsError, match="not of this model"):
        load_average(version, torch.nn.Linear(2, 2))
