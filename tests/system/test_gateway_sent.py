"""Code and weights that users send along, and how metrics are told again: through the client, in memory."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from builders_gateway import Others, a_client, a_gateway, a_spec, a_weights_file
from hadare.client import HadareClient
from hadare.model.errors import Rejected
from hadare.model.events import Event
from hadare.model.jobs import JobSpec, JobState, ObjectRef
from hadare.runtime.memory import MemoryHub
from hadare.wire import bundles, subjects
from hadare_gateway.service import GatewayService

KEEP_S = 0.05


@pytest.fixture
def hub() -> MemoryHub:
    return MemoryHub()


@pytest.fixture
async def gateway(hub: MemoryHub) -> AsyncIterator[GatewayService]:
    async with a_gateway(hub, keep_code_s=KEEP_S) as gateway:
        yield gateway
    assert hub.failures == []


@pytest.fixture
async def client(hub: MemoryHub, gateway: GatewayService) -> AsyncIterator[HadareClient]:
    async with a_client(hub) as client:
        yield client


@pytest.fixture
def others(hub: MemoryHub, client: HadareClient) -> Others:
    return Others(hub)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text("A = 1\n")
    return code


async def refused(act: Any) -> Rejected:
    with pytest.raises(Rejected) as refusal:
        await act
    return refusal.value


async def spec_of(others: Others, job_id: str) -> JobSpec:
    entry = await others.backplane.table(subjects.JOBS).get(job_id)
    assert entry is not None
    return entry.record.spec


async def sent_names(others: Others) -> list[str]:
    return await others.backplane.objects(subjects.CODE).names()


async def sweep_late(gateway: GatewayService) -> None:
    """Two sweeps with more time between them than unnamed things are kept."""
    await gateway.sweep()
    await asyncio.sleep(KEEP_S * 1.2)
    await gateway.sweep()


# Code


async def test_a_job_names_the_code_that_was_sent(client: HadareClient, others: Others, folder: Path) -> None:
    code = await client.send_code(folder)
    job = await client.submit(a_spec(code=code))
    assert (await spec_of(others, job.job_id)).code == code == bundles.pack(folder).sha256
    assert await sent_names(others) == [f"code.{code}"]


async def test_code_that_was_not_sent_is_refused_by_name(client: HadareClient, others: Others) -> None:
    refusal = await refused(client.submit(a_spec(code="a" * 64)))
    assert (refusal.code, refusal.details["faults"][0]["path"]) == (400, "spec.code")
    assert [job async for job in client.list()] == []


async def test_code_is_kept_as_long_as_a_job_names_it(
    client: HadareClient, gateway: GatewayService, others: Others, folder: Path
) -> None:
    await client.submit(a_spec(code=await client.send_code(folder)))
    await others.settle()
    await sweep_late(gateway)
    assert len(await sent_names(others)) == 1


async def test_code_of_no_job_is_deleted_after_a_while_and_not_before(
    client: HadareClient, gateway: GatewayService, others: Others, folder: Path
) -> None:
    job = await client.submit(a_spec(code=await client.send_code(folder)))
    await others.progress(job.job_id, JobState.COMPLETED)
    await client.delete(job.job_id)
    await others.settle()
    await gateway.sweep()
    assert len(await sent_names(others)) == 1
    await sweep_late(gateway)
    assert await sent_names(others) == []


async def test_a_repeated_request_is_answered_although_its_code_is_gone(
    client: HadareClient, others: Others, folder: Path
) -> None:
    code = await client.send_code(folder)
    first = await client.submit(a_spec(code=code), "r")
    await others.backplane.objects(subjects.CODE).delete(f"code.{code}")
    again = await client.submit(a_spec(code=code), "r")
    assert (again.job_id, again.created) == (first.job_id, False)


# First weights


async def a_trained_job(client: HadareClient, others: Others, versions: int = 3) -> tuple[str, list[ObjectRef]]:
    job = await client.submit(a_spec(name="teacher"))
    refs = [ObjectRef(name=f"{job.job_id}.v{n}", sha256=f"{n}" * 64, bytes=n) for n in range(1, versions + 1)]
    for number, ref in enumerate(refs):
        await others.version(job.job_id, number, ref)
    await others.progress(job.job_id, JobState.COMPLETED, version=versions - 1)
    return job.job_id, refs


@pytest.mark.parametrize(("named", "index"), [("teacher@1", 1), ("teacher", 2)])
async def test_a_job_starts_from_a_version_of_another(
    client: HadareClient, others: Others, named: str, index: int
) -> None:
    _, refs = await a_trained_job(client, others)
    job = await client.submit(a_spec(start_from=named))
    assert (await spec_of(others, job.job_id)).start_object == refs[index]


@pytest.mark.parametrize("named", ["teacher@9", "nobody@1", "sha256:" + "a" * 64])
async def test_weights_that_are_not_there_are_refused(client: HadareClient, others: Others, named: str) -> None:
    await a_trained_job(client, others)
    refusal = await refused(client.submit(a_spec(start_from=named)))
    assert (refusal.code, refusal.details["faults"][0]["path"]) == (400, "spec.start_from")


async def test_weights_that_are_no_longer_kept_are_refused(client: HadareClient, others: Others) -> None:
    job_id, refs = await a_trained_job(client, others)
    await others.version(job_id, 0, refs[0], weights_deleted=True)
    refusal = await refused(client.submit(a_spec(start_from="teacher@0")))
    assert "no longer kept" in refusal.message


async def test_a_repeated_request_keeps_the_weights_that_it_first_meant(client: HadareClient, others: Others) -> None:
    job_id, refs = await a_trained_job(client, others)
    job = await client.submit(a_spec(start_from="teacher"), "r")
    await others.version(job_id, 3, ObjectRef(name="newer", sha256="f" * 64, bytes=9))
    await others.progress(job_id, JobState.COMPLETED, version=3)
    assert not (await client.submit(a_spec(start_from="teacher"), "r")).created
    assert (await spec_of(others, job.job_id)).start_object == refs[2]


async def test_a_job_starts_from_a_file_that_was_sent_and_keeps_it(
    client: HadareClient, gateway: GatewayService, others: Others, tmp_path: Path
) -> None:
    file = tmp_path / "w.safetensors"
    file.write_bytes(a_weights_file())
    named = await client.send_weights(file)
    job = await client.submit(a_spec(start_from=named))
    digest = hashlib.sha256(a_weights_file()).hexdigest()
    assert named == f"sha256:{digest}"
    start = (await spec_of(others, job.job_id)).start_object
    assert start == ObjectRef(name=f"weights.{digest}", sha256=digest, bytes=len(a_weights_file()))
    await others.settle()
    await sweep_late(gateway)
    assert await sent_names(others) == [f"weights.{digest}"]


# History


async def test_the_history_tells_of_every_version_and_its_evaluation(client: HadareClient, others: Others) -> None:
    job = await client.submit(a_spec())
    happened: list[tuple[str, dict[str, Any]]] = [
        ("queued", {}),
        ("initialised", {"version": 0}),
        ("consolidated", {"version": 1, "steps": 40, "forks": 2, "loss": 0.5}),
        ("evaluated", {"version": 1, "metrics": {"accuracy": 0.75}}),
    ]
    for number, (what, data) in enumerate(happened):
        event = Event(kind="job", id=job.job_id, what=what, data=data)
        await others.backplane.journal.append(event, f"{job.job_id}.{number}")
    points = [point async for point in client.history(job.job_id)]
    assert [(p.version, p.steps, p.forks, p.loss, p.metrics) for p in points] == [
        (0, None, None, None, {}),
        (1, 40, 2, 0.5, {}),
        (1, None, None, None, {"accuracy": 0.75}),
    ]


async def test_a_job_is_answered_without_the_values_of_its_environment(client: HadareClient) -> None:
    job = await client.submit(a_spec(env={"TOKEN": "s3cret-value"}))
    status = await client.get(job.job_id)
    events = [news async for news in client.watch(job.job_id) if news is not None] if status.state.ended else []
    assert "s3cret-value" not in repr((status, events))
