"""What ``hadare up``, ``hadare down`` and ``hadare demo`` do. Each returns the exit status of the command.

Refusals and failures are raised as ``HadareError``: the command line says them and chooses the status.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import yaml
from rich.console import Console

from hadare.local import lifecycle, supervisor
from hadare.local.demonstration import Demonstration, connected, trace_client
from hadare.local.directory import LocalCluster, write_json
from hadare.local.options import DemoOptions, UpOptions
from hadare.local.report import Report
from hadare.local.spec import ClusterSpec, cluster_from, parse_cluster, unknown_types
from hadare.local.summary import summary
from hadare.local.targets import demo_file
from hadare.model.devices import NodeState
from hadare.model.errors import HadareError
from hadare.wire import codec
from hadare.wire.api_cluster import ClusterStatus

DEMO_ROUND_S = 5.0

OK, FAILED, INTERRUPTED = 0, 1, 130


def up(options: UpOptions) -> int:
    """Brings the cluster up, as it was if the directory knows one; returns at its end, detached when it is ready."""
    directory = options.directory.resolve()
    spec = None if options.cluster is None else parse_cluster(options.cluster)
    for line in unknown_types(spec) if spec else ():
        print(f"note: {line}", file=sys.stderr)
    cluster = lifecycle.prepare(directory, spec, options.round_s, options.policy)
    return _up_detached(directory, cluster, options) if options.detach else _up(directory, cluster, options)


def down(directory: Path) -> bool:
    """Ends the cluster in a directory and whatever a crash left of it; false if there was nothing to end."""
    return lifecycle.stop(directory.resolve())


def demo(options: DemoOptions) -> int:
    """Runs the demonstration and prints its report; 0 only if every job reached its steps and its target."""
    directory = demo_directory(options.directory)
    os.environ.pop("HADARE_OTLP_ENDPOINT", None)  # the demonstration judges its own traces, so they go to its files
    cluster = lifecycle.prepare(directory, _demo_spec(options.cluster), options.round_s or DEMO_ROUND_S, "hadare")
    trace_client(directory)
    console = Console(soft_wrap=True)  # paths stay whole, to be copied and grepped
    report = asyncio.run(_demonstrate(directory, cluster, console, options.plain))
    if report is None:
        console.print("stopped; no process is left")
        return INTERRUPTED
    console.print(summary(report))
    if options.json_file is not None:
        write_json(options.json_file, codec.to_plain(report))
    return OK if report.ok else FAILED


def demo_directory(wanted: Path | None) -> Path:
    """Where a demonstration keeps its files, so that its traces can be read later: ``.hadare/demo-<time>``."""
    if wanted is not None:
        return wanted.resolve()
    moment = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return (Path(".hadare") / f"demo-{moment}").resolve()


def _demo_spec(text: str | None) -> ClusterSpec:
    if text is not None:
        return parse_cluster(text)
    file = demo_file("cluster.yaml")
    return cluster_from(yaml.safe_load(file.read_text(encoding="utf-8")), "cluster.yaml")


async def _demonstrate(directory: Path, cluster: LocalCluster, console: Console, plain: bool) -> Report | None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    return await Demonstration(directory, cluster, console, stop).run(plain)


def _up(directory: Path, cluster: LocalCluster, options: UpOptions) -> int:
    """In the foreground: this process is the supervisor."""
    return asyncio.run(_serve(directory, cluster, options))


async def _serve(directory: Path, cluster: LocalCluster, options: UpOptions) -> int:
    stop = asyncio.Event()
    serving = asyncio.create_task(supervisor.serve(directory, supervisor.log_line, stop))
    readying = asyncio.create_task(_ready(cluster, lambda: not serving.done()))
    await asyncio.wait({serving, readying}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if readying.done() and not serving.done():
            _tell(options, directory, cluster, readying.result())
            await serving
    finally:
        stop.set()
        readying.cancel()
        await asyncio.gather(readying, return_exceptions=True)
        await serving
    return OK


def _up_detached(directory: Path, cluster: LocalCluster, options: UpOptions) -> int:
    process = lifecycle.launch(directory, detached=True)
    try:
        status = asyncio.run(_ready(cluster, lambda: process.poll() is None))
    except (HadareError, KeyboardInterrupt):
        lifecycle.take_back(process, directory)
        raise
    _tell(options, directory, cluster, status)
    return OK


async def _ready(cluster: LocalCluster, alive: Callable[[], bool]) -> ClusterStatus:
    async def ask() -> ClusterStatus:
        async with connected(cluster, lifecycle.READY_LIMIT_S) as (_, client):
            return await lifecycle.until_ready(cluster, client.status, alive)

    return await lifecycle.while_alive(ask(), alive)


def _tell(options: UpOptions, directory: Path, cluster: LocalCluster, status: ClusterStatus) -> None:
    wanted = {node.name for node in cluster.spec.nodes}  # not those of an earlier cluster in this directory
    nodes = [node for node in status.nodes if node.node in wanted]
    document = {
        "nats_url": cluster.nats_url,
        "http_url": None,
        "services": codec.to_plain(status.services),
        "nodes": codec.to_plain(nodes),
        "ok": status.ok,
        "directory": str(directory),
        "prefix": cluster.prefix,
    }
    if options.json:
        print(json.dumps(document, indent=2), flush=True)
        return
    listed = ", ".join(f"{node.node} ({', '.join(device.type for device in node.devices)})" for node in nodes)
    print(f"HadarE is up at {cluster.nats_url}, in {directory}\nnodes: {listed}", flush=True)
    for node in nodes:
        if node.state is not NodeState.READY:
            print(f"{node.node} gets no work: {node.reason}; `hadare undrain {node.node}` ends that", flush=True)
    if not options.detach:
        print("Ctrl-C ends it; `hadare up` in the same directory resumes it", flush=True)
