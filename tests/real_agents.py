"""A real node agent process on a real NATS, as tests start it, with the tracker's side played by the test."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from builders_leases import a_lease, a_spec
from hadare.model.devices import NodeInventory
from hadare.model.jobs import ObjectRef
from hadare.model.leases import ForkResult, Lease, LeaseAnswer, ResultAnswer, Revoke, Revoked
from hadare.runtime.bus import Identity, Route
from hadare.runtime.nats_connection import NatsBackplane
from hadare.training.processes import marker_of, process_table
from hadare.wire.subjects import GRANT, NODES, RESULT, REVOKE
from hadare_node_agent.leftovers import WorkDirectory
from nats_fixtures import Connect

TESTS = Path(__file__).parent
NODE = "north"
TINY = "node_agent_workloads:Tiny"
WORKLOADS = (
    *(
        "Tiny",
        "Littering",
        "Raising",
        "Sleeping",
        "Leaving",
        "Chattering",
        "Multiplying",
        "Swelling",
        "Clinging",
        "Spoiling",
    ),
)
COMMAND = [sys.executable, "-m", "hadare_node_agent"]
PATIENCE_S = 60.0


@dataclass
class Agent:
    """One agent process, and the tracker and asker that it talks to."""

    backplane: NatsBackplane
    folder: Path
    environment: dict[str, str]
    results: asyncio.Queue[ForkResult] = field(default_factory=asyncio.Queue)
    process: subprocess.Popen[bytes] | None = None
    deaf: bool = False

    async def serve_tracker(self) -> None:
        async def on_result(result: ForkResult) -> ResultAnswer:
            if self.deaf:
                await asyncio.sleep(3600)
            await self.results.put(result)
            return ResultAnswer(counted=True)

        identity = Identity(name="tracker", version="1.0.0", description="a fake")
        await self.backplane.bus.serve(identity, [Route(RESULT, on_result)])

    async def start(self) -> NodeInventory:
        """Starts the process and waits for its inventory."""
        before = await self.backplane.table(NODES).get(NODE)
        known = before.record.incarnation if before else ""
        self.process = self._execute()
        async with asyncio.timeout(PATIENCE_S):
            async for change in self.backplane.table(NODES).watch():
                if change.entry is not None and change.entry.record.incarnation != known:
                    return change.entry.record
        raise AssertionError("the watch ended")

    def _execute(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(COMMAND, env=self.environment, cwd=self.folder)

    async def grant(self, lease: Lease) -> LeaseAnswer:
        return await self.backplane.bus.ask(GRANT, lease, timeout_s=10.0, node=NODE)

    async def revoke(self, job: str) -> Revoked:
        return await self.backplane.bus.ask(REVOKE, Revoke(job_id=job), timeout_s=30.0, node=NODE)

    async def result(self) -> ForkResult:
        return await asyncio.wait_for(self.results.get(), PATIENCE_S)

    async def version_zero(self, **spec: Any) -> ObjectRef:
        lease = a_lease(kind="init", node=NODE, spec=a_spec(**{"workload": TINY, **spec}), duration_s=60.0)
        assert (await self.grant(lease)).accepted
        result = await self.result()
        assert result.object is not None, result.failure
        return result.object

    async def signal(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, 30)

    def forks(self) -> list[int]:
        """Living processes that carry a marker of this agent's folder."""
        place = WorkDirectory(self.folder / "work", NODE).marker_prefix("")[:-1]
        return [pid for pid in process_table() if marker_of(pid).startswith(place)]


@pytest.fixture
async def agent(connect: Connect, nats_url: str, prefix: str, tmp_path: Path) -> AsyncIterator[Agent]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH")))),
        "HADARE_NATS_URL": nats_url,
        "HADARE_PREFIX": prefix,
        "HADARE_NODE": NODE,
        "HADARE_DEVICES": "1:V100,1:T4",
        "HADARE_WORK_DIR": str(tmp_path / "work"),
        "HADARE_WORKLOADS": ",".join(f"node_agent_workloads:{name}" for name in WORKLOADS),
        "HADARE_BASE_RATE": "50",
        "HADARE_STOP_GRACE_S": "2",
        "HADARE_CAPACITY_GB": "1",
    }
    agent = Agent(await connect("test"), tmp_path, environment)
    await agent.serve_tracker()
    yield agent
    if agent.process is not None:
        agent.process.kill()
        agent.process.wait(10)
    await until(lambda: not agent.forks())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - other processes set no event of ours
            await asyncio.sleep(0.05)
