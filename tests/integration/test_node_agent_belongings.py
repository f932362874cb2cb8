"""A real node agent on a real NATS with jobs that bring code, secrets and first weights along."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from builders_leases import a_lease, a_spec
from hadare.client import HadareClient
from hadare.model.jobs import JobSpec, ObjectRef
from hadare.model.leases import ForkResult, Lease, ResultAnswer
from hadare.runtime.bus import Identity, Route
from hadare.runtime.nats_connection import NatsBackplane
from hadare.wire.subjects import CODE, GRANT, NODES, RESULT, WEIGHTS
from nats_fixtures import Connect

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.timeout(120)]

NODE = "north"
SECRET = "correct horse battery"
SOURCE = """
import os
import torch
from hadare.training.task import Task

class Mine(Task):
    def build_model(self):
        print("my token is", os.environ["TOKEN"])
        if self.config.get("raises"):
            raise RuntimeError("bad token " + os.environ["TOKEN"])
        return torch.nn.Linear(2, 1)
    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)
    def batches(self, data_seed):
        while True:
            yield torch.ones(self.batch_size, 2)
    def loss(self, model, batch):
        return model(batch).square().mean()
    def evaluate(self, model):
        return {}
"""


class Asker:
    """A tracker that takes every result, and the process of one agent."""

    def __init__(self, backplane: NatsBackplane) -> None:
        self.backplane = backplane
        self.results: asyncio.Queue[ForkResult] = asyncio.Queue()

    async def serve(self) -> None:
        async def take(result: ForkResult) -> ResultAnswer:
            await self.results.put(result)
            return ResultAnswer(counted=True)

        identity = Identity(name="tracker", version="1.0.0", description="a fake")
        await self.backplane.bus.serve(identity, [Route(RESULT, take)])
        async with asyncio.timeout(60):
            async for change in self.backplane.table(NODES).watch():
                if change.entry is not None:
                    return

    async def run(self, lease: Lease) -> ForkResult:
        answer = await self.backplane.bus.ask(GRANT, lease, timeout_s=10.0, node=NODE)
        assert answer.accepted, answer.reason
        return await asyncio.wait_for(self.results.get(), 60)

    async def printed(self, job: str, text: str) -> str:
        """Everything that the job's forks printed, once ``text`` is part of it."""
        async with asyncio.timeout(30):
            while True:
                found = "\n".join(line.text for _, line in await self.backplane.journal.logs(job))
                if text in found:
                    return found
                await asyncio.sleep(0.1)  # the log's writer sets no event of ours


@pytest.fixture
async def asker(connect: Connect, nats_url: str, prefix: str, tmp_path: Path) -> AsyncIterator[Asker]:
    asker = Asker(await connect("test"))
    environment = {
        **os.environ,
        "HADARE_NATS_URL": nats_url,
        "HADARE_PREFIX": prefix,
        "HADARE_NODE": NODE,
        "HADARE_DEVICES": "1:V100",
        "HADARE_WORK_DIR": str(tmp_path / "work"),
        "HADARE_WORKLOADS": "hadare.training.workloads.digits:Digits",
        "HADARE_CAPACITY_GB": "1",
        "HADARE_PYTHON": sys.executable,
    }
    process = _started(environment, tmp_path)
    await asker.serve()
    yield asker
    process.kill()
    process.wait(10)


def _started(environment: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "hadare_node_agent"], env=environment, cwd=folder)


async def a_job(asker: Asker, folder: Path, **more: Any) -> JobSpec:
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (source / "mine.py").write_text(SOURCE)
    code = await HadareClient(asker.backplane).send_code(source)
    return a_spec(workload="mine:Mine", code=code, batch_size=2, env={"TOKEN": SECRET}, **more)


async def init(asker: Asker, job: str, spec: JobSpec) -> ForkResult:
    return await asker.run(a_lease(job, kind="init", node=NODE, spec=spec, duration_s=60.0))


async def test_a_job_trains_with_code_that_is_installed_nowhere(asker: Asker, tmp_path: Path) -> None:
    spec = await a_job(asker, tmp_path)
    base = (await init(asker, "one", spec)).object
    assert base is not None
    result = await asker.run(a_lease("one", 1, node=NODE, spec=spec, base=base, duration_s=30.0, quota=20))
    assert (result.reason, result.steps, result.failure) == ("quota", 20, None)


async def test_what_forks_say_leaves_the_node_without_secrets(asker: Asker, tmp_path: Path) -> None:
    spec = await a_job(asker, tmp_path, config={"raises": True})
    result = await init(asker, "two", spec)
    assert result.failure is not None
    assert "bad token ***TOKEN***" in result.failure.message
    assert SECRET not in repr(result)
    assert SECRET not in await asker.printed("two", "my token is ***TOKEN***")
    assert SECRET not in repr(await asker.backplane.journal.read("node"))


async def test_requirements_that_are_not_met_are_a_fault_of_the_node(asker: Asker, tmp_path: Path) -> None:
    spec = await a_job(asker, tmp_path, requirements=("torch>=1", "msgspec>=999"))
    failure = (await init(asker, "three", spec)).failure
    assert failure is not None
    assert (failure.kind, failure.node_specific) == ("import", True)
    assert "msgspec>=999 (installed: " in failure.message
    assert "torch" not in failure.message


async def sent(asker: Asker, path: Path) -> dict[str, Any]:
    named = await HadareClient(asker.backplane).send_weights(path)
    found = await asker.backplane.objects(CODE).find(f"weights.{named.removeprefix('sha256:')}")
    assert found is not None
    return {"start_from": named, "start_object": found}


async def test_version_0_is_the_weights_that_were_sent(asker: Asker, tmp_path: Path) -> None:
    wanted = {"weight": torch.tensor([[3.0, 4.0]]), "bias": torch.tensor([5.0])}
    save_file(wanted, tmp_path / "mine.safetensors")
    spec = await a_job(asker, tmp_path, **await sent(asker, tmp_path / "mine.safetensors"))
    result = await init(asker, "four", spec)
    assert isinstance(result.object, ObjectRef), result.failure
    await asker.backplane.objects(WEIGHTS).get(result.object, tmp_path / "v0")
    found = load_file(tmp_path / "v0")
    assert all(torch.equal(found[f"model.{name}"], value) for name, value in wanted.items())


async def test_weights_of_another_model_fail_the_init_with_the_tensors_name(asker: Asker, tmp_path: Path) -> None:
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    spec = await a_job(asker, tmp_path, **await sent(asker, tmp_path / "other.safetensors"))
    failure = (await init(asker, "five", spec)).failure
    assert failure is not None
    assert not failure.node_specific
    assert "these are not the model's weights" in failure.message
