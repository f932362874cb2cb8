from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from builders_training import Tied, trained
from full_disks import no_file_over
from hadare.training.tensorfile import Reader, TensorSpec, Writer
from hadare.training.weights import FileMeta, load_state, read_meta, save_state, spec_hash


def a_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def an_adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)


def test_a_saved_state_comes_back_in_a_fresh_model_and_optimiser(tmp_path: Path) -> None:
    model, inputs = a_model(), torch.randn(8, 3)
    optimizer = an_adam(model)
    trained(model, optimizer, inputs)
    save_state(tmp_path / "v", model, optimizer)
    other = a_model(seed=1)
    fresh = an_adam(other)
    load_state(tmp_path / "v", other, fresh)
    trained(model, optimizer, inputs)
    trained(other, fresh, inputs)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_loading_a_younger_version_forgets_the_older_optimiser_state(tmp_path: Path) -> None:
    model = a_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    save_state(tmp_path / "v0", model, optimizer)
    trained(model, optimizer, torch.randn(8, 3))
    load_state(tmp_path / "v0", model, optimizer)
    assert not optimizer.state


def test_the_file_is_plain_safetensors_with_a_name_for_every_tensor(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trained(model, optimizer, torch.ones(1, 2))
    save_state(tmp_path / "v", model, optimizer)
    found = load_file(tmp_path / "v")
    names = ["model.bias", "model.weight", "optim.bias.momentum_buffer", "optim.weight.momentum_buffer"]
    assert sorted(found) == names
    assert torch.equal(found["model.weight"], model.weight)


def test_a_tied_tensor_is_stored_once_and_stays_tied(tmp_path: Path) -> None:
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters())
    save_state(tmp_path / "v", model, optimizer)
    reader = Reader(tmp_path / "v")
    assert list(reader.specs) == ["model.embed.weight"]
    assert read_meta(reader).aliases == {"model.head.weight": "model.embed.weight"}
    other = Tied()
    load_state(tmp_path / "v", other, None)
    assert torch.equal(other.head.weight, model.embed.weight)
    assert other.head.weight is other.embed.weight


def test_an_untied_model_does_not_take_a_tied_file(tmp_path: Path) -> None:
    save_state(tmp_path / "v", Tied(), None)
    loose = Tied()
    loose.head.weight = nn.Parameter(torch.zeros(5, 3))
    with pytest.raises(ValueError, match=r"head\.weight"):
        load_state(tmp_path / "v", loose, None)


def test_a_transposed_parameter_is_written_in_row_major_order(tmp_path: Path) -> None:
    model = nn.Linear(2, 3, bias=False)
    values = torch.arange(6.0).reshape(2, 3)
    model.weight = nn.Parameter(values.t())
    save_state(tmp_path / "v", model, None)
    assert load_file(tmp_path / "v")["model.weight"].tolist() == values.t().tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128])
def test_every_dtype_comes_back_as_it_was(tmp_path: Path, dtype: torch.dtype) -> None:
    model = nn.Module()
    model.register_buffer(
        "values", torch.randn(2, 3, dtype=torch.complex128).real.to(dtype) + torch.ones(3, dtype=dtype)
    )
    kept = model.values.clone()
    save_state(tmp_path / "v", model, None)
    model.values.zero_()
    load_state(tmp_path / "v", model, None)
    assert torch.equal(model.values, kept)


def test_buffers_are_told_from_parameters(tmp_path: Path) -> None:
    save_state(tmp_path / "v", a_model(), None)
    names = {"model.1.running_mean", "model.1.running_var", "model.1.num_batches_tracked"}
    assert set(read_meta(Reader(tmp_path / "v")).buffers) == names


def test_a_wrapped_model_has_the_names_of_the_model_inside(tmp_path: Path) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 1)

    save_state(tmp_path / "v", Wrapper(), None)
    bare = nn.Linear(2, 1)
    load_state(tmp_path / "v", bare, None)


def test_numbers_of_an_optimiser_that_are_not_tensors_are_kept(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight]["step"] = 7
    save_state(tmp_path / "v", model, optimizer)
    fresh = torch.optim.SGD(model.parameters(), lr=0.1)
    load_state(tmp_path / "v", model, fresh)
    assert fresh.state[model.weight]["step"] == 7


@pytest.mark.parametrize("value", [torch.tensor(2**24 + 1), torch.tensor([1 + 2**-20])], ids=["integer", "float32"])
def test_optimiser_states_keep_their_type_whatever_their_parameters(tmp_path: Path, value: torch.Tensor) -> None:
    model = nn.Linear(2, 1).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.bias]["own"] = value.clone()
    save_state(tmp_path / "v", model, optimizer)
    fresh = torch.optim.SGD(model.parameters(), lr=0.1)
    load_state(tmp_path / "v", model, fresh)
    loaded = fresh.state[model.bias]["own"]
    assert loaded.dtype == value.dtype
    assert torch.equal(loaded, value)


def test_hyperparameters_are_the_jobs_not_the_files(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    save_state(tmp_path / "v", model, torch.optim.SGD(model.parameters(), lr=0.1))
    other = torch.optim.SGD(model.parameters(), lr=0.7)
    load_state(tmp_path / "v", model, other)
    assert other.param_groups[0]["lr"] == 0.7


def test_a_sparse_tensor_is_refused_by_name(tmp_path: Path) -> None:
    model = nn.Module()
    model.register_buffer("odd", torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match=r"model\.odd is sparse"):
        save_state(tmp_path / "v", model, None)


def test_an_optimiser_state_that_is_an_object_is_refused_not_pickled(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight]["history"] = [1, 2]
    with pytest.raises(ValueError, match="history"):
        save_state(tmp_path / "v", model, optimizer)


@pytest.mark.parametrize(
    "other", [nn.Linear(2, 2), nn.Linear(3, 1), nn.Linear(2, 1, bias=False), nn.Linear(2, 1).double()]
)
def test_a_file_of_another_model_changes_nothing_silently(tmp_path: Path, other: nn.Module) -> None:
    save_state(tmp_path / "v", nn.Linear(2, 1), None)
    with pytest.raises(ValueError, match="model"):
        load_state(tmp_path / "v", other, None)


def test_the_spec_depends_on_names_dtypes_shapes_and_ties() -> None:
    base = {"model.w": TensorSpec("F32", (2,))}
    variants = [
        ({"model.v": TensorSpec("F32", (2,))}, {}),
        ({"model.w": TensorSpec("F64", (2,))}, {}),
        ({"model.w": TensorSpec("F32", (2, 1))}, {}),
        (base, {"model.b": "model.w"}),
    ]
    assert len({spec_hash(base, {}), *(spec_hash(s, a) for s, a in variants)}) == 5


def test_the_spec_does_not_depend_on_the_optimiser() -> None:
    base = {"model.w": TensorSpec("F32", (2,))}
    assert spec_hash({**base, "optim.w.step": TensorSpec("F32", ())}, {}) == spec_hash(base, {})


def test_the_length_is_that_of_the_file(tmp_path: Path) -> None:
    assert save_state(tmp_path / "v", nn.Linear(2, 1), None) == (tmp_path / "v").stat().st_size


def test_the_same_state_is_the_same_file(tmp_path: Path) -> None:
    for name in "ab":
        save_state(tmp_path / name, a_model(), None, FileMeta(user={"v": 1}))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    save_state(tmp_path / "v", nn.Linear(2, 1), None)
    before = (tmp_path / "v").read_bytes()
    with pytest.raises(ZeroDivisionError), Writer(tmp_path / "v", {"model.w": TensorSpec("F32", (4,))}, {}) as writer:
        writer.append(torch.zeros(2) + 1 // 0)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("v", before)]


def test_a_file_that_is_shorter_than_its_header_says_is_not_published(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="promises"),
        Writer(tmp_path / "v", {"w": TensorSpec("F32", (4,))}, {}) as writer,
    ):
        writer.append(torch.zeros(2))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("room", [10, 200, 1000])
def test_a_full_disk_is_an_error_and_leaves_nothing_that_fills_it(tmp_path: Path, room: int) -> None:
    """In the header, in what is buffered until the file is closed, and in a tensor."""
    with no_file_over(room), pytest.raises(OSError, match="File too large"):
        save_state(tmp_path / "v", nn.Linear(16, 16 if room > 200 else 1), None)
    assert list(tmp_path.iterdir()) == []


def test_wide_tensors_come_first_so_that_all_are_aligned(tmp_path: Path) -> None:
    specs = {"a": TensorSpec("BOOL", (3,)), "b": TensorSpec("F64", (1,)), "c": TensorSpec("F16", (1,))}
    with Writer(tmp_path / "v", specs, {}) as writer:
        for piece in (torch.ones(1).double(), torch.ones(1).half(), torch.ones(3).bool()):
            writer.append(piece)
    content = (tmp_path / "v").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert {n: header[n]["data_offsets"] for n in specs} == {"b": [0, 8], "c": [8, 10], "a": [10, 13]}


def test_metadata_of_the_wrong_type_is_an_error_that_names_it(tmp_path: Path) -> None:
    with Writer(tmp_path / "v", {}, {"aliases": 3}):
        pass
    with pytest.raises(ValueError, match="aliases"):
        read_meta(Reader(tmp_path / "v"))
