"""Weights files and the world outside: plain state dicts out and in, and how far two versions are apart."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from hadare.training.exporting import diff, export, state_dict_of
from hadare.training.failures import failure_of
from hadare.training.starting import start_model
from hadare.training.tensorfile import WeightsError
from hadare.training.weights import save_state


class Tied(nn.Module):
    """An output layer that shares its weight with the embedding, a buffer, and a half-precision parameter."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5)
        self.out.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(3)
        self.coarse = nn.Parameter(torch.randn(2).to(torch.bfloat16))


def a_version(folder: Path, model: nn.Module, name: str = "version") -> Path:
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    path = folder / name
    save_state(path, model, optimizer)
    return path


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_an_export_is_what_the_model_loads_strictly(tmp_path: Path, form: str) -> None:
    model = Tied(1)
    target = tmp_path / "out"
    count = export(a_version(tmp_path, model), target, form)  # type: ignore[arg-type]
    state = load_file(target) if form == "safetensors" else torch.load(target, weights_only=True)
    other = Tied(2)
    other.load_state_dict(state, strict=True)
    assert count == len(model.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_a_version_starts_another_model_with_the_same_tensors(tmp_path: Path) -> None:
    model, other = Tied(1), Tied(2)
    start_model(a_version(tmp_path, model), other)
    assert torch.equal(model.out.weight, other.out.weight)
    assert other.out.weight is other.embed.weight


def test_a_plain_state_dict_starts_a_model(tmp_path: Path) -> None:
    model, other = Tied(1), Tied(2)
    export(a_version(tmp_path, model), tmp_path / "plain", "safetensors")
    start_model(tmp_path / "plain", other)
    assert torch.equal(model.embed.weight, other.embed.weight)
    assert torch.equal(model.coarse, other.coarse)


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ({"weight": torch.zeros(1, 2)}, "the file lacks bias"),
        ({"weight": torch.zeros(1, 2), "bias": torch.zeros(1), "more": torch.zeros(1)}, "the model lacks more"),
        ({"weight": torch.zeros(1, 3), "bias": torch.zeros(1)}, "weight is torch.float32 \\(1, 3\\)"),
        ({"weight": torch.zeros(1, 2).half(), "bias": torch.zeros(1)}, "weight is torch.float16"),
    ],
)
def test_weights_of_another_model_are_refused_by_name(
    tmp_path: Path, state: dict[str, torch.Tensor], complaint: str
) -> None:
    save_file(state, tmp_path / "plain")
    with pytest.raises(WeightsError, match=complaint):
        start_model(tmp_path / "plain", nn.Linear(2, 1))


def test_a_version_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError):
        start_model(a_version(tmp_path, Tied(1)), nn.Linear(2, 1))


def test_what_is_no_weights_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"junk" * 100)
    with pytest.raises(WeightsError):
        start_model(tmp_path / "junk", nn.Linear(2, 1))


def test_a_difference_is_a_norm_for_each_tensor(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 4.0]]))
        model.bias.zero_()
    save_state(tmp_path / "old", model, None)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 4.5]]))
        model.bias.fill_(1.0)
    save_state(tmp_path / "new", model, None)
    bias, weight = diff(tmp_path / "old", tmp_path / "new")
    assert (weight.name, weight.norm, weight.change, weight.relative) == ("weight", 5.0, 0.5, 0.1)
    assert (bias.change, bias.relative) == (1.0, math.inf)


def test_versions_of_two_models_have_no_difference(tmp_path: Path) -> None:
    save_state(tmp_path / "one", nn.Linear(2, 1), None)
    save_state(tmp_path / "other", nn.Linear(3, 1), None)
    save_state(tmp_path / "third", nn.Linear(2, 1, bias=False), None)
    for other in ("other", "third"):
        with pytest.raises(WeightsError, match="not versions of one model"):
            diff(tmp_path / "one", tmp_path / other)


def test_integers_and_buffers_are_part_of_a_state_dict(tmp_path: Path) -> None:
    state = state_dict_of(a_version(tmp_path, Tied(1)))
    assert state["norm.num_batches_tracked"].dtype == torch.int64
    assert set(state) == set(Tied(2).state_dict())


def test_weights_that_are_not_the_models_are_the_jobs_own_fault_and_not_called_by_their_hash(tmp_path: Path) -> None:
    junk = tmp_path / "0a1b2c.safetensors"
    for content in (b"", b"\xff" * 100):
        junk.write_bytes(content)
        with pytest.raises(WeightsError) as raised:
            start_model(junk, Tied(1))
        failure = failure_of(raised.value)
        assert (failure.kind, failure.node_specific) == ("exception", False)
        assert failure.message.startswith("start_from: the file is not a weights file")
