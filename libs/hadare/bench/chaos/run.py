"""One run: a cluster, its users, the faults, the rest afterwards, and the verdict."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hadare.bench.chaos.checks import judge
from hadare.bench.chaos.cluster import NODES, ChaosCluster, Setting
from hadare.bench.chaos.evidence import collect, left_over, unfinished_uploads
from hadare.bench.chaos.faults import Injector
from hadare.bench.chaos.plan import Kind, draw_faults
from hadare.bench.chaos.report import Outcome, Report, summarise
from hadare.bench.chaos.users import Users, asked
from hadare.bench.chaos.witness import Violation, Witness
from hadare.client import HadareClient
from hadare.local import lifecycle
from hadare.local.directory import LocalCluster
from hadare.local.targets import load_targets
from hadare.model.errors import Broken
from hadare.runtime.nats_connection import NatsBackplane, NatsConfig, connect_nats

FAULTS, MINUTES = 210, 12.0

_START_S = 120.0
_LOOK_S = 1.0
_DISKS = (Kind.DISK_FULL_AGENT, Kind.DISK_FULL_TRACKER, Kind.DISK_FULL_STORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``minutes``: over which the faults are spread. ``keep``: a folder for everything that the run leaves.

    ``steps`` of each job (None: as calibrated), ``jobs`` at once. ``extra``: more environment for programs, by kind.
    ``kinds``: of faults; those that need disks of their own are left out where none can be mounted.
    ``end_s``: how long the jobs have to end once the faults are over; ``rest_s``: and then the cluster, to tidy up.
    """

    seed: int = 1
    faults: int = FAULTS
    minutes: float = MINUTES
    round_s: float = 3.0
    nodes: str = NODES
    steps: int | None = None
    jobs: int = 3
    keep: Path | None = None
    extra: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    kinds: tuple[Kind, ...] = tuple(Kind)
    end_s: float = 120.0
    rest_s: float = 60.0


def run_chaos(options: Options, say: Callable[[str], None]) -> Report:
    """The verdict. Raises ``Broken`` if the cluster does not start or does not end."""
    directory = (options.keep or Path(tempfile.mkdtemp(prefix="hadare-chaos-"))).resolve()
    try:
        return asyncio.run(_run(options, directory, say))
    finally:
        if options.keep is None:
            shutil.rmtree(directory, ignore_errors=True)


async def _run(options: Options, directory: Path, say: Callable[[str], None]) -> Report:
    began = time.monotonic()
    setting = Setting(directory=directory, nodes=options.nodes, round_s=options.round_s, extra=options.extra)
    heard: list[str] = []

    def tell(line: str) -> None:
        heard.append(line)
        say(f"{time.monotonic() - began:6.1f} s  {line}")

    async with ChaosCluster(setting, tell) as cluster:
        outcome = await _suffer(options, cluster, tell)
    left = [f"process {pid}" for pid in cluster.processes_left()]
    evidence = replace(outcome.evidence, left=[*outcome.evidence.left, *left])
    violations = list(dict.fromkeys([*outcome.violations, *judge(evidence, load_targets())]))
    outcome = replace(outcome, evidence=evidence, violations=violations, seconds=time.monotonic() - began)
    return summarise(outcome, options.seed)


async def _suffer(options: Options, cluster: ChaosCluster, tell: Callable[[str], None]) -> Outcome:
    async with _connection(cluster.local, "chaos") as backplane, _connection(cluster.local, "users") as other:
        client = HadareClient(other, timeout_s=3.0, patience_s=10.0)
        await lifecycle.until_ready(cluster.local, client.status, lambda: not cluster.crashed(), _START_S)
        witness, users = Witness(backplane), Users(client, options.jobs, options.steps, tell)
        watching, ready = _started(witness)
        await ready
        try:
            injector = await _play(options, cluster, witness, users, tell)
            faults_over = time.monotonic()
            await _until_ended(users, options.end_s, tell)
            left = await _until_at_rest(cluster, backplane, client, options.rest_s)
            left += await unfinished_uploads(backplane)
            evidence = await collect(cluster, backplane, client, witness, users.promises)
        finally:
            watching.cancel()
        if watching.done() and not watching.cancelled() and watching.exception():
            raise Broken(f"the witness failed: {watching.exception()}")
        faults = [Violation("a request that is repeated is one", fault) for fault in users.faults]
        return Outcome(
            evidence=replace(evidence, left=left),
            violations=[*witness.violations, *faults],
            struck=injector.struck,
            missed=injector.missed,
            failovers=witness.failovers,
            replayed=witness.replayed,
            doubled=sum(proxy.doubled for proxy in cluster.proxies.values()),
            held_back=sum(proxy.held_back for proxy in cluster.proxies.values()),
            wall_offset=time.time() - time.monotonic(),
            faults_over=faults_over,
            seconds=0.0,
        )


def _started(witness: Witness) -> tuple[asyncio.Task[None], asyncio.Future[object]]:
    ready = asyncio.Event()
    watching = asyncio.create_task(witness.run(ready))
    return watching, asyncio.ensure_future(
        asyncio.wait({watching, asyncio.ensure_future(ready.wait())}, return_when=asyncio.FIRST_COMPLETED)
    )


async def _play(
    options: Options, cluster: ChaosCluster, witness: Witness, users: Users, tell: Callable[[str], None]
) -> Injector:
    kinds = tuple(kind for kind in options.kinds if cluster.has_own_disks or kind not in _DISKS)
    schedule = draw_faults(options.seed, options.faults, options.minutes * 60, kinds)
    injector = Injector(cluster, witness, options.seed, tell)
    enough = asyncio.Event()
    async with asyncio.TaskGroup() as playing:
        playing.create_task(users.keep_busy(enough))
        try:
            await injector.play(schedule)
        finally:
            enough.set()
    tell(f"{len(injector.struck)} faults have struck; {len(users.promises)} jobs")
    return injector


async def _until_ended(users: Users, limit_s: float, tell: Callable[[str], None]) -> None:
    deadline = time.monotonic() + limit_s
    while left := await users.open_jobs():
        if time.monotonic() > deadline:
            tell(f"{len(left)} jobs have not ended {limit_s:.0f} s after the last fault")
            return
        await asyncio.sleep(_LOOK_S)
    tell("every job has ended")


async def _until_at_rest(
    cluster: ChaosCluster, backplane: NatsBackplane, client: HadareClient, limit_s: float
) -> list[str]:
    """What is left after ``limit_s`` at most."""
    deadline = time.monotonic() + limit_s
    while True:
        left = await asked(lambda: left_over(cluster, backplane, client))
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(_LOOK_S)


@asynccontextmanager
async def _connection(cluster: LocalCluster, name: str) -> AsyncIterator[NatsBackplane]:
    config = NatsConfig(url=cluster.nats_url, prefix=cluster.prefix, name=name, declare=False)
    backplane = await connect_nats(config, _START_S)
    try:
        yield backplane
    finally:
        await backplane.close()
