"""Measures what the boundary between two rounds costs: a real cluster on this machine, real processes, a real model."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from hadare.bench.boundaries import Boundary, Work, boundaries, consolidations, medians, works
from hadare.client import HadareClient
from hadare.local import lifecycle
from hadare.local.demonstration import connected
from hadare.local.directory import LocalCluster
from hadare.local.evidence import whole_history
from hadare.local.programs import spans_directory
from hadare.local.spec import ClusterSpec, DeviceGroup, Emulation, NodeSpec
from hadare.local.traces import read_spans
from hadare.model.errors import Broken
from hadare.model.events import StoredEvent
from hadare.runtime.nats_connection import NatsBackplane

Say = Callable[[str], None]

WORKLOAD = "hadare.bench.boundary_task:Mlp"
RATE = 50.0
"""Steps/s of the emulated devices: slow, so that training does not take the processor from what is measured."""

_BATCH = 8
_WARM_UP = 3
_ASK_S = 0.5
_SLACK_S = 120.0
_MOST_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOptions:
    """``rounds`` boundaries are measured, after a few to warm up."""

    params: int = 1_000_000
    forks: int = 3
    rounds: int = 15
    round_s: float = 2.0
    optimizer: str = "sgd"
    directory: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCost:
    """``boundary_ms_median``: from a fork's last step to its next first step, over all forks and boundaries.

    ``phases_ms`` are medians of the parts (``boundaries.PHASES``). ``load``: how many processes wanted one of the
    ``cores``, the mean of the last minute: above their number everything takes longer than it would.
    """

    params: int
    forks: int
    optimizer: str
    round_s: float
    boundaries: int
    boundary_ms_median: float
    boundary_ms_p90: float
    phases_ms: dict[str, float] = field(default_factory=dict)
    load: float = 0.0
    cores: int = 1


def measure(options: RoundOptions, say: Say) -> RoundCost:
    """Starts a cluster, trains, ends it. Raises ``Broken`` if it does not come up or too little was measured."""
    directory = options.directory or Path(tempfile.mkdtemp(prefix="hadare-round-"))
    nodes = tuple(NodeSpec(name=f"node-{i}", devices=(DeviceGroup(type="V100"),)) for i in range(options.forks))
    spec = ClusterSpec(nodes=nodes, emulation=Emulation(base_rate=RATE))
    cluster = lifecycle.prepare(directory.resolve(), spec, options.round_s, "hadare")
    say(f"starting a cluster of {options.forks} nodes in {directory}")
    supervisor = lifecycle.launch(directory.resolve(), detached=False)
    try:
        job_id, found = asyncio.run(_train(cluster, options, supervisor, say))
        load = os.getloadavg()[0]
    finally:
        lifecycle.stop(directory)
        supervisor.wait()
    spans = read_spans(spans_directory(directory.resolve()))
    if options.directory is None:
        shutil.rmtree(directory, ignore_errors=True)
    offset_s = time.time() - time.monotonic()
    measured = boundaries(found, consolidations(spans, job_id, offset_s))
    return summary(options, [one for one in measured if one.round > _WARM_UP], load)


def summary(options: RoundOptions, found: list[Boundary], load: float = 0.0) -> RoundCost:
    """Raises ``Broken`` if nothing was measured."""
    if not found:
        raise Broken("no fork stayed on its node from one round to the next: nothing was measured")
    totals = sorted(one.total_ms for one in found)
    return RoundCost(
        params=options.params,
        forks=options.forks,
        optimizer=options.optimizer,
        round_s=options.round_s,
        boundaries=len(found),
        boundary_ms_median=round(median(totals), 1),
        boundary_ms_p90=round(totals[int(0.9 * (len(totals) - 1))], 1),
        phases_ms={phase: round(value, 1) for phase, value in medians(found).items()},
        load=round(load, 1),
        cores=os.cpu_count() or 1,
    )


async def _train(
    cluster: LocalCluster, options: RoundOptions, supervisor: subprocess.Popen[bytes], say: Say
) -> tuple[str, list[Work]]:
    def alive() -> bool:
        return supervisor.poll() is None

    async with connected(cluster, lifecycle.READY_LIMIT_S) as (backplane, client):
        await lifecycle.until_ready(cluster, client.status, alive)
        job = await client.submit(_job(options))
        say(f"training {options.rounds + _WARM_UP} rounds of {options.round_s:g} s with {options.optimizer}")
        await _until_round(client, job.job_id, options)
        return job.job_id, works(await _events(backplane, client, job.job_id), job.job_id)


def _job(options: RoundOptions) -> dict[str, object]:
    return {
        "name": "boundary",
        "workload": WORKLOAD,
        "config": {"params": options.params, "optimizer": options.optimizer},
        "total_steps": 10**9,
        "batch_size": _BATCH,
        "max_forks": options.forks,
        "evaluate_every_rounds": 10**6,
    }


async def _until_round(client: HadareClient, job_id: str, options: RoundOptions) -> None:
    """Raises ``Broken`` if the rounds do not come or the job ends."""
    wanted = options.rounds + _WARM_UP + 1
    deadline = time.monotonic() + wanted * (options.round_s + _MOST_S) + _SLACK_S
    while True:
        status = await client.get(job_id)
        if status.version >= wanted:
            return
        if status.state.ended or time.monotonic() > deadline:
            raise Broken(f"the job is at version {status.version}: {status.state.value}, {status.reason}")
        await asyncio.sleep(_ASK_S)


async def _events(backplane: NatsBackplane, client: HadareClient, job_id: str) -> list[StoredEvent]:
    await client.cancel(job_id)
    await client.wait(job_id, timeout_s=_SLACK_S)
    return await whole_history(backplane.journal, "node")
