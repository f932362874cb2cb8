"""``hadare run`` with code from a folder and first weights, and what ``hadare weights`` makes of versions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from builders_cli import JOB, Cli
from builders_gateway import Others
from hadare.model.jobs import JobState
from hadare.training.weights import save_state
from hadare.wire import subjects

SOURCE = """
import os
import torch
from hadare.training.task import Task

class Mine(Task):
    def build_model(self):
        assert os.environ["HADARE_TEST_TOKEN"] == "s3cret"
        return torch.nn.Linear(2, 1)
    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.0)
    def batches(self, data_seed):
        while True:
            yield torch.ones(self.batch_size, 2)
    def loss(self, model, batch):
        return model(batch).square().mean()
    def evaluate(self, model):
        return {"bias": float(model.bias.detach())}
"""
RUN = """
workload: mine_of_the_tests:Mine
code: src
env: {HADARE_TEST_TOKEN: s3cret}
total_steps: 3
batch_size: 2
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HADARE_TEST_TOKEN", "")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "mine_of_the_tests.py").write_text(SOURCE)
    yield Cli(tmp_path)
    sys.modules.pop("mine_of_the_tests", None)


def weights_of(bias: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.zeros(1, 2), "bias": torch.tensor([bias])}


def test_run_imports_the_workload_from_the_folder_and_starts_from_the_file(cli: Cli) -> None:
    save_file(weights_of(5.0), cli.folder / "first.safetensors")
    document = cli.json("run", cli.file(RUN + "start_from: first.safetensors\n"))
    assert (document["steps"], document["metrics"]) == (3, {"bias": 5.0})


def test_run_refuses_weights_that_only_a_cluster_knows(cli: Cli) -> None:
    result = cli("run", cli.file(RUN + "start_from: teacher@3\n"))
    assert result.exit_code == 2
    assert "known to a cluster only" in result.stderr


def test_run_names_requirements_that_are_not_met(cli: Cli) -> None:
    result = cli("run", cli.file(RUN + "requirements: ['no-such-thing>=2']\n"))
    assert result.exit_code == 1
    assert "no-such-thing>=2 (not installed)" in result.stderr


def test_run_names_data_that_is_missing_and_leaves_labels_to_clusters(cli: Cli) -> None:
    result = cli("run", cli.file(RUN + "data: [fast-disk, /no/such/folder]\n"))
    assert result.exit_code == 1
    assert "/no/such/folder (no such path)" in result.stderr
    assert "fast-disk" not in result.stderr


# Versions


def a_job_with_versions(cli: Cli, *biases: float) -> None:
    job = cli.json("submit", cli.file(JOB + "name: mine\n"))["job_id"]

    async def store(others: Others) -> None:
        for number, bias in enumerate(biases):
            model = nn.Linear(2, 1)
            model.load_state_dict(weights_of(bias))
            save_state(cli.folder / "stored", model, None)
            ref = await others.backplane.objects(subjects.WEIGHTS).put(cli.folder / "stored", f"{job}.v{number}")
            await others.version(job, number, ref)
        await others.progress(job, JobState.COMPLETED, version=len(biases) - 1)

    cli.others(store)


@pytest.mark.parametrize(("arguments", "bias"), [((), 2.0), (("--version", "0"), 1.0)])
def test_an_export_is_a_plain_state_dict(cli: Cli, arguments: tuple[str, ...], bias: float) -> None:
    a_job_with_versions(cli, 1.0, 2.0)
    document: dict[str, Any] = cli.json("weights", "export", "mine", *arguments)
    state = load_file(document["path"])
    assert document["tensors"] == 2
    assert torch.equal(state["bias"], torch.tensor([bias]))
    assert set(state) == {"weight", "bias"}


def test_an_export_for_torch_needs_no_pickle(cli: Cli) -> None:
    a_job_with_versions(cli, 1.0)
    cli.json("weights", "export", "mine", "--format", "torch", "-o", "m.pt")
    assert torch.load("m.pt", weights_only=True)["bias"].item() == 1.0


def test_an_average_that_the_job_does_not_keep_is_refused(cli: Cli) -> None:
    a_job_with_versions(cli, 1.0)
    result = cli("weights", "export", "mine", "--ema")
    assert result.exit_code == 2
    assert "'mine' keeps no average" in result.stderr


def test_a_diff_says_how_far_each_tensor_moved(cli: Cli) -> None:
    a_job_with_versions(cli, 1.0, 1.5, 4.0)
    document = cli.json("weights", "diff", "mine", "0", "1")
    assert (document["old"], document["new"]) == (0, 1)
    assert {one["name"]: one["change"] for one in document["tensors"]} == {"bias": 0.5, "weight": 0.0}
    assert cli.json("weights", "diff", "mine", "0")["new"] == 2
    assert "RELATIVE" in cli("weights", "diff", "mine", "0").stdout
