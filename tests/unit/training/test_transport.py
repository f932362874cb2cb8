"""Fork results that travel as changes in bf16: what comes of them, what that costs, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from hadare.training.averaging import Consolidation, ForkFile, Options, consolidate
from hadare.training.tensorfile import Reader, WeightsError
from hadare.training.transport import pack
from hadare.training.weights import FileMeta, load_state, read_meta, save_state

BASE = "b" * 64


class Job:
    """A model with BatchNorm and a counter, its base, and forks that have trained from it."""

    def __init__(self, folder: Path, forks: int = 2) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model, self.optimizer = a_model()
        self.base = folder / "base"
        save_state(self.base, self.model, self.optimizer)
        self.files = [self._fork(number) for number in range(forks)]

    def _fork(self, number: int) -> ForkFile:
        load_state(self.base, self.model, self.optimizer)
        torch.manual_seed(number)
        for _ in range(3 + number):
            self.optimizer.zero_grad()
            self.model(torch.randn(8, 64)).square().mean().backward()
            self.optimizer.step()
        path = self.folder / f"fork{number}"
        save_state(path, self.model, self.optimizer, FileMeta(base=BASE))
        return ForkFile(fork=number, path=path, steps=3 + number)

    def version(self, name: str, base_sha256: str = BASE) -> Consolidation:
        return consolidate(self.base, self.files, self.folder / name, Options(base_sha256=base_sha256))


def a_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 8))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def changes(job: Job, version: Path) -> torch.Tensor:
    after, before = Reader(version), Reader(job.base)
    names = [name for name in sorted(before.specs) if name.startswith("model.") and before.specs[name].dtype == "F32"]
    return torch.cat([after.flat(name) - before.flat(name) for name in names])


def test_a_result_takes_half_the_bytes(job: Job) -> None:
    before = job.files[0].path.stat().st_size
    packed = pack(job.files[0].path, job.base)
    assert packed.bytes == job.files[0].path.stat().st_size
    assert packed.bytes < 0.56 * before


def test_the_version_is_the_same_but_for_the_rounding_of_the_changes(job: Job, tmp_path: Path) -> None:
    job.version("whole")
    errors = [pack(file.path, job.base).error for file in job.files]
    job.version("rounded")
    whole, rounded = changes(job, tmp_path / "whole"), changes(job, tmp_path / "rounded")
    assert 0 < float((whole - rounded).norm() / whole.norm()) <= max(errors) < 2**-8


def test_the_version_has_the_types_of_its_model_again(job: Job, tmp_path: Path) -> None:
    job.version("whole")
    for file in job.files:
        pack(file.path, job.base)
    job.version("rounded")
    assert Reader(tmp_path / "rounded").specs == Reader(tmp_path / "whole").specs
    load_state(tmp_path / "rounded", *a_model())


def test_the_error_that_was_measured_is_recorded_with_the_version(job: Job) -> None:
    error = pack(job.files[0].path, job.base).error
    assert [fork.transport_error for fork in job.version("rounded").accepted] == [pytest.approx(error), 0.0]


def test_counters_and_step_numbers_travel_as_they_are(job: Job, tmp_path: Path) -> None:
    for file in job.files:
        pack(file.path, job.base)
    job.version("rounded")
    version = Reader(tmp_path / "rounded")
    assert version.tensor("model.1.num_batches_tracked").item() == 3 + 4
    assert version.tensor("optim.0.weight.step").item() == 4


def test_a_tensor_that_nobody_changed_keeps_every_bit(tmp_path: Path) -> None:
    job = Job(tmp_path, forks=1)
    frozen = Reader(job.base).tensor("model.0.weight").clone()
    with torch.no_grad():
        job.model[0].weight.copy_(frozen)  # type: ignore[index]
    save_state(job.files[0].path, job.model, job.optimizer, FileMeta(base=BASE))
    pack(job.files[0].path, job.base)
    job.version("rounded")
    assert torch.equal(Reader(tmp_path / "rounded").tensor("model.0.weight"), frozen)


def test_changes_of_another_base_are_refused(job: Job) -> None:
    pack(job.files[0].path, job.base)
    assert job.version("rounded", base_sha256="c" * 64).rejected[0] == "trained from another base"


def test_a_fork_with_nan_is_dropped_on_this_way_too(job: Job) -> None:
    with torch.no_grad():
        job.model[0].weight[0, 0] = float("nan")  # type: ignore[index]
    save_state(job.files[1].path, job.model, job.optimizer, FileMeta(base=BASE))
    for file in job.files:
        pack(file.path, job.base)
    assert job.version("rounded").rejected == {1: "not finite"}


@pytest.mark.parametrize(
    ("deltas", "why"),
    [(("model.0.weight",), "said to be rounded"), (("model.nothing",), "said to be rounded"), ((1,), "bad metadata")],
)
def test_a_file_that_says_what_is_not_so_rejects_its_fork_only(job: Job, deltas: tuple[str, ...], why: str) -> None:
    save_state(job.files[1].path, job.model, job.optimizer, FileMeta(base=BASE, deltas=deltas))
    found = job.version("rounded")
    assert why in found.rejected[1]
    assert [fork.fork for fork in found.accepted] == [0]


def test_a_result_of_another_model_is_not_packed(job: Job, tmp_path: Path) -> None:
    save_state(tmp_path / "other", nn.Linear(2, 2), None)
    with pytest.raises(WeightsError, match="not in the base"):
        pack(tmp_path / "other", job.base)


def test_packing_says_what_it_did_in_the_file(job: Job) -> None:
    pack(job.files[0].path, job.base)
    meta = read_meta(Reader(job.files[0].path))
    assert "model.0.weight" in meta.deltas
    assert "optim.0.weight.exp_avg" in meta.rounded
    assert meta.transport_error > 0
