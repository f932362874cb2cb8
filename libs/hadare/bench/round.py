"""Measures what the boundary between two rounds costs: a real cluster on this machine, real processes, a real model."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from hadare.bench.boundaries import Boundary, Work, boundaries, consolidations, medians, result_bytes, works
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
from hadare.runtime.bus import Objects
from hadare.runtime.nats_connection import NatsBackplane
from hadare.wire.subjects import WEIGHTS

Say = Callable[[str], None]

WORKLOAD = "hadare.bench.boundary_task:Mlp"
RATE = 50.0
"""Steps/s of the emulated devices: slow, so that training does not take the processor from what is measured."""

_BATCH = 8
_ASK_S = 0.5
_SLACK_S = 120.0
_MOST_S = 3.0
_SLOW_BYTES_PER_S = 30e6


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOptions:
    """``rounds`` boundaries are measured, after ``warm_up``. ``average``: the job keeps an average of its versions;
    ``bf16``: forks hand in what they changed. ``frozen``: nearly all parameters stay as they are. ``raw``: the same
    bytes, had none stayed, are put and fetched afterwards by nobody but a client of the store."""

    params: int = 1_000_000
    forks: int = 3
    rounds: int = 15
    round_s: float = 2.0
    optimizer: str = "sgd"
    average: bool = False
    bf16: bool = False
    frozen: bool = False
    raw: bool = False
    warm_up: int = 3
    directory: Path | None = None

    @property
    def fork_bytes(self) -> int:
        """About what a fork hands in: float32, and two states a parameter with AdamW."""
        return self._state_bytes // (2 if self.bf16 else 1)

    @property
    def version_bytes(self) -> int:
        """About what a version is: a fork's tensors, and the average of versions."""
        return self._state_bytes + 4 * self.params * self.average

    @property
    def _state_bytes(self) -> int:
        return 4 * self.params * (3 if self.optimizer == "adamw" else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCost:
    """``boundary_ms_median``: from a fork's last step to its next first step, over all forks and boundaries.

    ``phases_ms`` are medians of the parts (``boundaries.PHASES``). ``load``: how many processes wanted one of the
    ``cores``, the mean of the last minute: above their number everything takes longer than it would.

    ``result_bytes``: what a fork sent. ``raw_ms``: what a boundary's transfers take by themselves (``_raw``), 0 if that
    was not measured.
    """

    params: int
    forks: int
    optimizer: str
    round_s: float
    boundaries: int
    boundary_ms_median: float
    boundary_ms_p90: float
    phases_ms: dict[str, float] = field(default_factory=dict)
    average: bool = False
    bf16: bool = False
    frozen: bool = False
    result_bytes: int = 0
    raw_ms: float = 0.0
    load: float = 0.0
    cores: int = 1

    @property
    def raw_ratio(self) -> float | None:
        return self.boundary_ms_median / self.raw_ms if self.raw_ms else None


def measure(options: RoundOptions, say: Say) -> RoundCost:
    """Starts a cluster, trains, ends it. Raises ``Broken`` if it does not come up or too little was measured."""
    directory = options.directory or Path(tempfile.mkdtemp(prefix="hadare-round-"))
    nodes = tuple(NodeSpec(name=f"node-{i}", devices=(DeviceGroup(type="V100"),)) for i in range(options.forks))
    spec = ClusterSpec(nodes=nodes, emulation=Emulation(base_rate=RATE))
    cluster = lifecycle.prepare(directory.resolve(), spec, options.round_s, "hadare")
    say(f"starting a cluster of {options.forks} nodes in {directory}")
    # Results of large models on a slow disk come in late; here they are waited for.
    os.environ.setdefault("HADARE_GRACE_S", str(_patience_s(options)))
    os.environ.setdefault("HADARE_SETTLE_S", str(30.0 + _patience_s(options)))
    supervisor = lifecycle.launch(directory.resolve(), detached=False)
    try:
        job_id, found, raw_s = asyncio.run(_train(cluster, options, supervisor, say))
        load = os.getloadavg()[0]
    finally:
        lifecycle.stop(directory)
        supervisor.wait()
    spans = read_spans(spans_directory(directory.resolve()))
    if options.directory is None:
        shutil.rmtree(directory, ignore_errors=True)
    offset_s = time.time() - time.monotonic()
    measured = boundaries(found, consolidations(spans, job_id, offset_s))
    cost = summary(options, [one for one in measured if one.round > options.warm_up], load, raw_s)
    return replace(cost, result_bytes=result_bytes(spans, job_id))


def summary(options: RoundOptions, found: list[Boundary], load: float = 0.0, raw_s: float = 0.0) -> RoundCost:
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
        average=options.average,
        bf16=options.bf16,
        frozen=options.frozen,
        raw_ms=round(raw_s * 1e3, 1),
        load=round(load, 1),
        cores=os.cpu_count() or 1,
    )


async def _train(
    cluster: LocalCluster, options: RoundOptions, supervisor: subprocess.Popen[bytes], say: Say
) -> tuple[str, list[Work], float]:
    def alive() -> bool:
        return supervisor.poll() is None

    async with connected(cluster, lifecycle.READY_LIMIT_S) as (backplane, client):
        await lifecycle.until_ready(cluster, client.status, alive)
        job = await client.submit(_job(options))
        say(f"training {options.rounds + options.warm_up} rounds of {options.round_s:g} s with {options.optimizer}")
        await _until_round(client, job.job_id, options)
        found = works(await _events(backplane, client, job.job_id), job.job_id)
        raw_s = 0.0
        if options.raw:
            say("putting and fetching the same bytes by themselves")
            with tempfile.TemporaryDirectory(prefix="hadare-") as folder:
                raw_s = await _raw(backplane.objects(WEIGHTS), Path(folder), options)
        return job.job_id, found, raw_s


async def _raw(objects: Objects, folder: Path, options: RoundOptions) -> float:
    """Seconds for the transfers of a boundary and nothing else, by one client: every fork's result into the store at
    once, and out of it; the version into it, and out of it for every fork."""
    fork, version = folder / "fork", folder / "version"
    for path, size in ((fork, options.fork_bytes), (version, options.version_bytes)):
        await asyncio.to_thread(_fill, path, size)
    numbers = range(options.forks)
    begun = time.monotonic()
    results = await asyncio.gather(*(objects.put(fork, f"raw.{n}") for n in numbers))
    await asyncio.gather(*(objects.get(ref, folder / f"in{n}") for n, ref in enumerate(results)))
    made = await objects.put(version, "raw.version")
    await asyncio.gather(*(objects.get(made, folder / f"out{n}") for n in numbers))
    return time.monotonic() - begun


def _fill(path: Path, size: int) -> None:
    with path.open("wb") as file:
        for start in range(0, size, 2**24):
            file.write(os.urandom(min(2**24, size - start)))


def _patience_s(options: RoundOptions) -> float:
    """What the transfers of a boundary may take on a slow machine."""
    return 10.0 + (options.fork_bytes + options.version_bytes) * options.forks / _SLOW_BYTES_PER_S


def _job(options: RoundOptions) -> dict[str, object]:
    return {
        "name": "boundary",
        "workload": WORKLOAD,
        "config": {"params": options.params, "optimizer": options.optimizer, "frozen": options.frozen},
        "total_steps": 10**9,
        "batch_size": _BATCH,
        "max_forks": options.forks,
        "evaluate_every_rounds": 10**6,
        "consolidation": {
            **({"ema_half_life": "round"} if options.average else {}),
            "transport": "bf16" if options.bf16 else "full",
        },
    }


async def _until_round(client: HadareClient, job_id: str, options: RoundOptions) -> None:
    """Raises ``Broken`` if the rounds do not come or the job ends."""
    wanted = options.rounds + options.warm_up + 1
    deadline = time.monotonic() + wanted * (options.round_s + _MOST_S + _patience_s(options)) + _SLACK_S
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
