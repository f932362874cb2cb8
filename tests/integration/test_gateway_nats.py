"""The gateway over a real NATS server: by its own client, by the NATS protocol alone, and killed in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from builders_gateway import Others, a_spec, all_services
from hadare.client import HadareClient
from hadare.client import connect as connect_client
from hadare.model.errors import Rejected
from hadare.model.events import Event
from hadare.model.jobs import JobState
from hadare.runtime.discovery import discover
from hadare.runtime.nats_connection import NatsBackplane
from hadare.wire import api, subjects
from hadare_gateway.service import GatewayService, control_services
from nats_fixtures import Connect

pytestmark = pytest.mark.integration


@pytest.fixture
async def gateway(connect: Connect) -> AsyncIterator[NatsBackplane]:
    backplane = await connect("gateway")
    service = GatewayService(backplane, all_services, sweep_s=3600.0)
    ready = asyncio.Event()
    running = asyncio.create_task(service.run(ready.set))
    async with asyncio.timeout(20):
        await ready.wait()
    yield backplane
    running.cancel()
    await asyncio.wait({running})


@pytest.fixture
async def client(gateway: NatsBackplane, nats_url: str, prefix: str) -> AsyncIterator[HadareClient]:
    async with await connect_client(nats_url, prefix) as client:
        yield client


@pytest.fixture
async def stock(nats_url: str) -> AsyncIterator[Client]:
    """A NATS client that knows nothing of HadarE."""
    client = await nats.connect(nats_url)
    yield client
    await client.close()


async def json_request(stock: Client, subject: str, question: Any) -> tuple[Any, dict[str, str]]:
    data = json.dumps(question).encode() if question is not None else b""
    reply = await stock.request(subject, data, timeout=10)
    return json.loads(reply.data), dict(reply.headers or {})


async def test_the_whole_api_works_with_json_and_the_nats_protocol_alone(
    gateway: NatsBackplane, stock: Client, prefix: str, tmp_path: Path
) -> None:
    others = Others.over(gateway)
    made, _ = await json_request(
        stock, f"{prefix}.api.v1.jobs.submit", {"spec": a_spec(name="mine"), "request_id": "r"}
    )
    assert made["created"] is True
    events: asyncio.Queue[str] = asyncio.Queue()

    async def on_event(message: Any) -> None:
        events.put_nowait(message.subject.rsplit(".", 1)[-1])

    watching, _ = await json_request(stock, f"{prefix}.api.v1.jobs.watch", {"job_id": "mine"})
    await stock.subscribe(watching["subject"], cb=on_event)
    await stock.flush()
    path = tmp_path / "weights"
    path.write_bytes(b"some weights" * 1000)
    ref = await gateway.objects(subjects.WEIGHTS).put(path, "label")
    await others.version(made["job_id"], 1, ref)
    await others.progress(made["job_id"], JobState.COMPLETED, version=1, steps=100)
    event = Event(kind="job", id=made["job_id"], what="completed")
    await gateway.journal.append(event, "completed")
    async with asyncio.timeout(10):
        assert await events.get() == "completed"
    found, _ = await json_request(stock, f"{prefix}.api.v1.weights.get", {"job_id": "mine"})
    store = await stock.jetstream().object_store(found["bucket"])
    stored = await store.get(found["weights"]["name"])
    assert stored.data == path.read_bytes()


async def test_a_refusal_has_the_error_headers_of_nats_micro_and_a_body_with_every_fault(
    gateway: NatsBackplane, stock: Client, prefix: str
) -> None:
    body, headers = await json_request(stock, f"{prefix}.api.v1.jobs.submit", {"spec": {"workload": 1}, "nmae": 1})
    assert headers["Nats-Service-Error-Code"] == "400"
    assert {fault["path"] for fault in body["details"]["faults"]} == {
        *("nmae", "spec.workload", "spec.total_steps", "spec.batch_size")
    }


async def test_an_empty_request_is_a_question_without_fields(
    gateway: NatsBackplane, stock: Client, prefix: str
) -> None:
    body, _ = await json_request(stock, f"{prefix}.api.v1.nodes.list", None)
    assert body == {"nodes": [], "cursor": ""}


async def test_stock_tools_find_the_gateway_and_its_endpoints(
    gateway: NatsBackplane, stock: Client, prefix: str
) -> None:
    info, _ = await json_request(stock, "$SRV.INFO.hadare-gateway", None)
    subjects_served = {endpoint["subject"] for endpoint in info["endpoints"]}
    assert f"{prefix}.api.v1.jobs.submit" in subjects_served
    assert len(subjects_served) == len(api.ENDPOINTS)


async def test_discovery_finds_the_services_of_this_cluster_only(
    gateway: NatsBackplane, connect: Connect, nats_url: str
) -> None:
    assert [found.name for found in await discover(gateway)] == ["hadare-gateway"]
    seen = {service.name: service.ok for service in control_services(await discover(gateway))}
    assert seen == {"allocator": False, "gateway": True, "jobtracker": False, "pricing": False}
    stranger = await connect("stranger", prefix="another", declare=False)
    assert await discover(stranger) == []


async def test_a_job_is_followed_to_its_end(client: HadareClient, gateway: NatsBackplane) -> None:
    job = await client.submit(a_spec())
    waiting = asyncio.create_task(client.wait(job.job_id))
    await Others.over(gateway).progress(job.job_id, JobState.COMPLETED, steps=100)
    async with asyncio.timeout(20):
        assert (await waiting).steps == 100


async def test_a_job_can_be_deleted_and_submitted_anew(client: HadareClient, gateway: NatsBackplane) -> None:
    job = await client.submit(a_spec(name="mine"))
    await Others.over(gateway).progress(job.job_id, JobState.COMPLETED)
    await client.delete("mine")
    with pytest.raises(Rejected):
        await client.get("mine")
    assert (await client.submit(a_spec(name="mine"))).created


class Process:
    """A gateway as a process of its own."""

    def __init__(self, nats_url: str, prefix: str) -> None:
        self._env = {**os.environ, "HADARE_NATS_URL": nats_url, "HADARE_PREFIX": prefix, "HADARE_SWEEP_S": "0.2"}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hadare_gateway"), env=self._env, stderr=asyncio.subprocess.DEVNULL
        )

    async def end(self, how: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(how)
        async with asyncio.timeout(20):
            return await self._process.wait()


async def test_a_gateway_killed_again_and_again_loses_and_doubles_no_job(
    connect: Connect, nats_url: str, prefix: str
) -> None:
    backplane = await connect("client")
    process = Process(nats_url, prefix)
    await process.start()
    async with HadareClient(backplane, timeout_s=1.0, patience_s=40.0) as client:
        submitting = [asyncio.create_task(client.submit(a_spec(), request_id=f"r{n}")) for n in range(60)]
        for _ in range(2):
            await asyncio.wait(submitting, timeout=30, return_when=asyncio.FIRST_COMPLETED)
            await process.end(signal.SIGKILL)
            await process.start()
        made = await asyncio.gather(*submitting)
        assert len({job.job_id for job in made}) == 60
        listed = await _listed(client, 60)
        assert sorted(listed) == sorted(job.job_id for job in made)
    assert await process.end(signal.SIGTERM) == 0


async def _listed(client: HadareClient, count: int) -> list[str]:
    """Lists follow the watch: the newest job may take a moment to appear."""
    async with asyncio.timeout(20):
        while True:
            listed = [job.job_id async for job in client.list()]
            if len(listed) >= count:
                return listed
            await asyncio.sleep(0.05)
