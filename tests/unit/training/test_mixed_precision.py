"""Loss scaling, as on devices that have float16 alone; on the CPU, where torch can do it too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hadare.training import trainer as module
from hadare.training.granted import Grant
from hadare.training.tensorfile import Reader
from hadare.training.trainer import Trainer
from hadare.training.weights import FileMeta, read_meta
from hadare.training.workloads import BUILTIN


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """A trainer on a device that computes in float16 and has to scale its losses."""
    monkeypatch.setattr(module, "mixed_precision", lambda _: (torch.float16, True))
    return Trainer(BUILTIN[0], {"hidden": 8, "precision": "amp"}, 8, 0)


def test_a_scaled_loss_trains_and_leaves_full_weights(scaled: Trainer) -> None:
    before = next(scaled.model.parameters()).detach().clone()
    trained = scaled.train(Grant(quota=10, data_seed=1))
    assert trained.updates > 0
    assert next(scaled.model.parameters()).dtype == torch.float32
    assert not torch.equal(before, next(scaled.model.parameters()))


def test_updates_that_overflow_are_steps_but_no_updates(scaled: Trainer) -> None:
    scaled.scaler.load_state_dict({**scaled.scaler.state_dict(), "scale": 2.0**40})
    trained = scaled.train(Grant(quota=4, data_seed=1))
    assert trained.steps == 4
    assert trained.updates < 4
    assert all(bool(torch.isfinite(p).all()) for p in scaled.model.parameters())


def test_the_scale_goes_with_the_weights(scaled: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scaled.scaler.load_state_dict({**scaled.scaler.state_dict(), "scale": 512.0})
    scaled.train(Grant(quota=2, data_seed=1))
    scaled.save(tmp_path / "v", FileMeta())
    assert read_meta(Reader(tmp_path / "v")).scaler == 512.0
    other = Trainer(BUILTIN[0], {"hidden": 8, "precision": "amp"}, 8, 1)
    other.load(tmp_path / "v")
    assert other.scaler.get_scale() == 512.0
