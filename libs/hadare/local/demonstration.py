"""The demonstration: a cluster of unequal emulated devices trains three real jobs, and is judged for it."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rich.console import Console

from hadare.client import HadareClient
from hadare.local import lifecycle
from hadare.local.directory import LocalCluster
from hadare.local.evidence import collect, write_evidence
from hadare.local.programs import spans_directory
from hadare.local.report import Facts, Report
from hadare.local.targets import JOBS, job_file
from hadare.local.watching import Watcher
from hadare.runtime import telemetry
from hadare.runtime.nats_connection import NatsBackplane, NatsConfig, connect_nats

LIMIT_S = 160.0
"""The demonstration stops after this time, so that it ends, whatever happens, within three minutes."""


class Demonstration:
    """One run in one directory. ``stop`` may be set at any moment; the cluster is gone when ``run`` returns."""

    def __init__(self, directory: Path, cluster: LocalCluster, console: Console, stop: asyncio.Event) -> None:
        self._directory = directory
        self._cluster = cluster
        self._console = console
        self._stop = stop
        self._began = time.monotonic()

    async def run(self, plain: bool) -> Report | None:
        """The verdict; None if it was stopped. Raises ``Broken`` if the cluster does not start or does not end."""
        facts: Facts | None = None
        supervisor = lifecycle.launch(self._directory, detached=False)
        working = asyncio.create_task(self._work(supervisor, plain))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            facts = await working if working.done() else None
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)
            self._console.print("ending the cluster", style="dim")
            await asyncio.to_thread(lifecycle.stop, self._directory)
            supervisor.wait()
            telemetry.shutdown()
        if facts is None:
            return None
        return write_evidence(facts, self._directory, time.monotonic() - self._began)

    async def _work(self, supervisor: subprocess.Popen[bytes], plain: bool) -> Facts:
        def alive() -> bool:
            return supervisor.poll() is None

        def going_on() -> bool:
            return alive() and time.monotonic() - self._began < LIMIT_S

        nodes = len(self._cluster.spec.nodes)
        self._console.print(f"starting NATS, four control services and {nodes} node agents in {self._directory}")
        async with connected(self._cluster, lifecycle.READY_LIMIT_S) as (backplane, client):
            await lifecycle.until_ready(self._cluster, client.status, alive)
            jobs = [(await client.submit(job_file(name), request_id=f"demo-{name}")).job_id for name in JOBS]
            watcher = Watcher(client, self._directory, self._console, plain)
            states = await watcher.until_ended(jobs, "HadarE", going_on)
            return await collect(backplane, client, states)


@asynccontextmanager
async def connected(cluster: LocalCluster, timeout_s: float) -> AsyncIterator[tuple[NatsBackplane, HadareClient]]:
    """A connection to the bus of a local cluster and a client over it. Raises ``Unavailable``."""
    config = NatsConfig(url=cluster.nats_url, prefix=cluster.prefix, name="local", declare=False)
    backplane = await connect_nats(config, timeout_s)
    try:
        yield backplane, HadareClient(backplane, timeout_s=3.0, patience_s=5.0)
    finally:
        await backplane.close()


def trace_client(directory: Path) -> None:
    """This process records its spans where the cluster's processes do: a job's trace begins with its submission."""
    telemetry.configure("client", "demo", f"file:{spans_directory(directory)}")
