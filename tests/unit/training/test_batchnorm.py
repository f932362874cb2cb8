"""Statistics of BatchNorm layers, measured anew when a version is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from hadare.training.averaging import ForkFile, consolidate
from hadare.training.batchnorm import reestimate
from hadare.training.granted import Grant
from hadare.training.task import build_task
from hadare.training.trainer import Trainer
from hadare.training.workloads import BUILTIN

CONFIG = {"hidden": 16, "batch_norm": True}


def norm_of(model: nn.Module) -> nn.BatchNorm1d:
    return next(m for m in model.modules() if isinstance(m, nn.BatchNorm1d))


def test_statistics_become_the_mean_over_the_batches() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3))
    batches = [torch.randn(8, 3) + 5 for _ in range(4)]
    assert reestimate(model, model, batches) == 1
    assert torch.allclose(norm_of(model).running_mean, torch.stack(batches).mean(dim=(0, 1)), atol=1e-5)


def test_everything_else_stays_as_it_was() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3, momentum=0.3), nn.Dropout(0.5)).eval()
    norm_of(model).num_batches_tracked.fill_(17)
    random = torch.get_rng_state()
    reestimate(model, model, [torch.ones(8, 3), torch.zeros(8, 3)])
    assert (norm_of(model).momentum, norm_of(model).num_batches_tracked.item(), model.training) == (0.3, 17, False)
    assert torch.equal(random, torch.get_rng_state())


def test_a_model_without_such_layers_costs_no_batch() -> None:
    assert reestimate(nn.Linear(2, 1), pytest.fail, [torch.ones(1, 2)]) == 0


def test_a_job_may_have_them_measured_whenever_a_version_is_loaded(tmp_path: Path) -> None:
    averaged, measured = (Trainer(BUILTIN[0], {**CONFIG, "batch_norm_batches": n}, 32, 0) for n in (0, 20))
    averaged.save(tmp_path / "v0")
    files = []
    for fork in range(2):
        averaged.load(tmp_path / "v0")
        averaged.train(Grant(quota=20, data_seed=fork))
        files.append(ForkFile(fork=fork, path=tmp_path / f"fork{fork}", steps=20))
        averaged.save(files[-1].path)
    consolidate(tmp_path / "v0", files, tmp_path / "v1")
    averaged.load(tmp_path / "v1")
    measured.load(tmp_path / "v1")
    both = [norm_of(trainer.model).running_mean for trainer in (averaged, measured)]
    assert not torch.allclose(*both, atol=1e-4)
    assert torch.allclose(*both, atol=0.5)
    again = Trainer(BUILTIN[0], {**CONFIG, "batch_norm_batches": 20}, 32, 0)
    again.load(tmp_path / "v1")
    assert torch.equal(norm_of(again.model).running_mean, both[1])


def test_a_negative_number_of_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_norm_batches"):
        build_task(BUILTIN[0], {"batch_norm_batches": -1}, 8, 0)
