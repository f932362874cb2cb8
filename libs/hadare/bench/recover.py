"""How long a control service takes from its connection until it is ready, with the state of record of a large cluster.

The services are the real ones, each alone in this process on a real NATS server; the start of the interpreter is not
counted. Every job is in a round, so that each service has to read whatever it ever reads.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from hadare.machines.job_book import TrackerSettings
from hadare.machines.round_phases import RoundSettings
from hadare.model.devices import Device, NodeInventory
from hadare.model.errors import Unavailable
from hadare.model.jobs import (
    JobProgress,
    JobRecord,
    JobSpec,
    JobState,
    LedgerEntry,
    ObjectRef,
    OpenRound,
    Parent,
    VersionManifest,
)
from hadare.model.rounds import QuoteRequest, RoundHead
from hadare.runtime.bus import Backplane
from hadare.runtime.embedded import EmbeddedNats
from hadare.runtime.nats_connection import NatsBackplane, NatsConfig, connect_nats
from hadare.wire import subjects

SERVICES = ("gateway", "pricing", "allocator", "jobtracker")
_NODES, _PER_NODE = 100, 4
_AT_ONCE = 64
_LIMIT_S = 120.0
_POLL_S = 0.02

Said = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Seconds from connection to ready; ``cpu_s``: the CPU time of the service in them, which other processes do not
    stretch. ``load``: the last minute's load of the ``cores``.
    """

    service: str
    jobs: int
    turns: int
    median_s: float
    worst_s: float
    cpu_s: float
    load: float
    cores: int


def measure(jobs: int, turns: int, said: Said = lambda _line: None) -> tuple[Recovery, ...]:
    """Fills a server of its own, and starts each service ``turns`` times on it."""
    with tempfile.TemporaryDirectory(prefix="hadare-recover-") as folder:
        return asyncio.run(_measure(Path(folder), jobs, turns, said))


async def _measure(folder: Path, jobs: int, turns: int, said: Said) -> tuple[Recovery, ...]:
    server = EmbeddedNats(folder, sync_always=False)
    await server.start()
    try:
        said(f"storing {jobs} jobs")
        filler = await _connect(server)
        await _fill(filler, jobs)
        found = []
        for service in SERVICES:
            starts = []
            for _ in range(turns):
                starts.append(await _start(service, server))
                await _forget_leaders(filler)
            found.append(_recovery(service, jobs, starts))
            said(f"{service}: {found[-1].median_s:.2f} s, {found[-1].cpu_s:.2f} s of CPU")
        await filler.close()
        return tuple(found)
    finally:
        server.stop()


def _recovery(service: str, jobs: int, starts: list[tuple[float, float]]) -> Recovery:
    taken = [seconds for seconds, _ in starts]
    return Recovery(
        service=service,
        jobs=jobs,
        turns=len(taken),
        median_s=round(median(taken), 3),
        worst_s=round(max(taken), 3),
        cpu_s=round(median(cpu_s for _, cpu_s in starts), 3),
        load=round(os.getloadavg()[0], 1),
        cores=os.cpu_count() or 1,
    )


async def _connect(server: EmbeddedNats) -> NatsBackplane:
    return await connect_nats(NatsConfig(url=server.url, name="recover", capacity_bytes=2**30), timeout_s=20.0)


async def _start(service: str, server: EmbeddedNats) -> tuple[float, float]:
    """Seconds, and seconds of CPU."""
    began, cpu_began = time.monotonic(), time.process_time()
    backplane = await _connect(server)
    ready = asyncio.Event()
    work, watch = _service(service, backplane, ready)
    tasks = [asyncio.create_task(work), asyncio.create_task(watch)]
    try:
        async with asyncio.timeout(_LIMIT_S):
            done, _ = await asyncio.wait(
                [asyncio.create_task(ready.wait()), tasks[0]], return_when=asyncio.FIRST_COMPLETED
            )
        for task in done:
            task.result()
        return time.monotonic() - began, time.process_time() - cpu_began
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await backplane.close()


def _service(
    name: str, backplane: Backplane, ready: asyncio.Event
) -> tuple[Coroutine[Any, Any, Any], Coroutine[Any, Any, None]]:
    """Its run, and what finds out that it is ready. By module names: the library imports no service."""
    module = import_module(f"hadare_{name}.service")
    match name:
        case "gateway":
            gateway = module.GatewayService(backplane, _nobody, sweep_s=3600.0)
            return gateway.run(ready.set), _nothing()
        case "pricing":
            return module.Pricing(backplane).run(), _until_quoted(backplane, ready)
        case "allocator":
            allocator = module.Allocator(backplane, RoundSettings(epoch=0), "allocator-bench")
            return allocator.run(), _until_judged(backplane, ready)
        case _:
            tracker = module.JobTracker(backplane, None, TrackerSettings(), "jobtracker-bench")
            return tracker.run(), _forward(tracker.ready.wait(), ready)


async def _until_quoted(backplane: Backplane, ready: asyncio.Event) -> None:
    while not ready.is_set():
        with suppress(Unavailable):
            question = QuoteRequest(round=2, epoch=1, round_s=360.0)
            await backplane.bus.ask(subjects.QUOTE, question, timeout_s=_LIMIT_S)
            ready.set()
        await asyncio.sleep(_POLL_S)


async def _until_judged(backplane: Backplane, ready: asyncio.Event) -> None:
    """The allocator's first act after its recovery is to say what it thinks of the nodes."""
    states = backplane.table(subjects.NODE_STATES)
    known = await states.get("n0")
    while (found := await states.get("n0")) is None or (known is not None and found.revision == known.revision):  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
    ready.set()


async def _forward(happened: Awaitable[Any], ready: asyncio.Event) -> None:
    await happened
    ready.set()


async def _nothing() -> None:
    await asyncio.sleep(0)


async def _nobody() -> list[Any]:
    await asyncio.sleep(0)
    return []


async def _forget_leaders(filler: NatsBackplane) -> None:
    """Else a successor would wait for the predecessor's lease to end: that is failover, and another measurement."""
    for leaders in (subjects.ALLOCATOR_LEADER, subjects.TRACKER_LEADER):
        await filler.table(leaders).delete("")


async def _fill(backplane: NatsBackplane, jobs: int) -> None:
    slots = asyncio.Semaphore(_AT_ONCE)

    async def put(records: subjects.Records[Any], name: str, record: Any) -> None:
        async with slots:
            await backplane.table(records).put(name, record)

    async with asyncio.TaskGroup() as writes:
        for number in range(_NODES):
            writes.create_task(put(subjects.NODES, f"n{number}", _node(number)))
        for number in range(jobs):
            job_id = f"job-{number}"
            writes.create_task(put(subjects.JOBS, job_id, _record(job_id)))
            writes.create_task(put(subjects.PROGRESS, job_id, _progress(job_id, number)))
            for version in (0, 1):
                writes.create_task(put(subjects.VERSIONS, f"{job_id}.{version}", _manifest(job_id, version)))
    head = RoundHead(round=2, epoch=1, state="closed", clock_s=720.0, round_s=360.0, policy="hadare")
    await put(subjects.ROUND_HEAD, "", head)


def _node(number: int) -> NodeInventory:
    devices = tuple(Device(index=index, type="V100", memory_gb=16.0, emulated=True) for index in range(_PER_NODE))
    return NodeInventory(node=f"n{number}", incarnation="i1", devices=devices)


def _record(job_id: str) -> JobRecord:
    spec = JobSpec(workload="hadare.training.workloads.digits:Digits", total_steps=100_000, batch_size=32)
    return JobRecord(job_id=job_id, name=job_id, spec=spec, request_id=job_id, digest="0" * 64)


def _weights(name: str) -> ObjectRef:
    return ObjectRef(name=name, sha256="0" * 64, bytes=10**8)


def _progress(job_id: str, number: int) -> JobProgress:
    forks = tuple(
        LedgerEntry(fork=fork, node=f"n{(number + fork) % _NODES}", device_type="V100", quota=1000) for fork in range(2)
    )
    return JobProgress(
        job_id=job_id,
        name=job_id,
        state=JobState.RUNNING,
        steps=2000,
        total_steps=100_000,
        version=1,
        weights=_weights(f"{job_id}.v1"),
        rounds=1,
        closed_round=1,
        open=OpenRound(round=2, epoch=1, base_version=1, forks=forks),
    )


def _manifest(job_id: str, version: int) -> VersionManifest:
    parents = tuple(
        Parent(round=1, fork=fork, attempt=0, node="n0", device_type="V100", steps=1000, weight=0.5, sha256="0" * 64)
        for fork in range(2 * version)
    )
    return VersionManifest(
        job_id=job_id,
        version=version,
        base_version=version - 1,
        steps=2000 * version,
        weights=_weights(f"{job_id}.v{version}"),
        parents=parents,
    )
