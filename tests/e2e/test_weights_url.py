"""A whole cluster whose weights are files in a shared folder, and a job that brings its own code and first weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hadare.client import HadareClient
from hadare.model.jobs import JobState
from nats_fixtures import Connect

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.timeout(180)]

SERVICES = ("gateway", "pricing", "allocator", "jobtracker", "node_agent")
SOURCE = """
import torch
from hadare.training.task import Task

class Mine(Task):
    def build_model(self):
        return torch.nn.Linear(2, 1)
    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)
    def batches(self, data_seed):
        while True:
            yield torch.ones(self.batch_size, 2)
    def loss(self, model, batch):
        return model(batch).square().mean()
    def evaluate(self, model):
        return {"bias": float(model.bias.detach())}
"""


@pytest.fixture
async def client(connect: Connect, nats_url: str, prefix: str, tmp_path: Path) -> AsyncIterator[HadareClient]:
    backplane = await connect("test")
    environment = {
        **os.environ,
        "HADARE_NATS_URL": nats_url,
        "HADARE_PREFIX": prefix,
        "HADARE_NODE": "north",
        "HADARE_DEVICES": "1:V100",
        "HADARE_ROUND_S": "2",
        "HADARE_CAPACITY_GB": "1",
        "HADARE_WEIGHTS_URL": f"file://{tmp_path}/shared",
        "HADARE_BANDWIDTH_MB_S": "100",
        "OMP_NUM_THREADS": "1",
    }
    running = [_started(name, environment, tmp_path) for name in SERVICES]
    yield HadareClient(backplane, timeout_s=5.0, patience_s=60.0)
    for process in running:
        process.send_signal(signal.SIGTERM)
    for process in running:
        process.wait(30)


def _started(name: str, environment: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    own = {**environment, "HADARE_WORK_DIR": str(folder / name), "HADARE_INSTANCE": name.replace("_", "-")}
    return subprocess.Popen([sys.executable, "-m", f"hadare_{name}"], env=own, cwd=folder)


async def test_a_job_with_its_own_code_trains_and_its_weights_are_files(client: HadareClient, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "mine.py").write_text(SOURCE)
    save_file({"weight": torch.zeros(1, 2), "bias": torch.tensor([7.0])}, tmp_path / "first.safetensors")
    job = await client.submit(
        {
            "workload": "mine:Mine",
            "code": await client.send_code(source),
            "start_from": await client.send_weights(tmp_path / "first.safetensors"),
            "requirements": ["torch>=2"],
            "total_steps": 40,
            "batch_size": 2,
        }
    )
    status = await client.wait(job.job_id, timeout_s=120)
    assert (status.state, status.reason) == (JobState.COMPLETED, "all steps are done")
    assert 0 < abs(status.metrics["bias"]) < 7.0

    first = await client.weights_get(job.job_id, tmp_path / "v0", version=0)
    assert first.url == f"file://{tmp_path}/shared/{first.bucket}"
    assert (tmp_path / "shared" / first.bucket / first.weights.name).is_file()
    assert torch.equal(load_file(tmp_path / "v0")["model.bias"], torch.tensor([7.0]))
    told = [point.version async for point in client.history(job.job_id)]
    assert told[0] == 0
    assert told[-1] == status.version
