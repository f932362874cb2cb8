"""How long a fork takes to start: in a fresh interpreter, by part, and from the fork server of a node."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from hadare.model.errors import Broken
from hadare.training.forkclient import ForkServer
from hadare.training.protocol import ForkSpec, Ready

WORKLOAD = "hadare.training.workloads.digits:Digits"
_BATCH = 16
_LIMIT_S = 120.0

# Marks of a fresh interpreter, on the machine's monotonic clock, one at the end of each part. The first optimiser of a
# process makes torch import what it had put off.
_COLD = """
import json, sys, time
marks = [time.monotonic()]
import torch
marks.append(time.monotonic())
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
marks.append(time.monotonic())
import importlib
from hadare.training.worker import build_worker
importlib.import_module(sys.argv[1].partition(":")[0])
marks.append(time.monotonic())
torch.set_num_threads(1)
build_worker(sys.argv[1], {}, int(sys.argv[2]), 0)
marks.append(time.monotonic())
print(json.dumps(marks))
"""
PARTS = ("interpreter", "import torch", "torch's first optimiser", "import workload", "build model and optimiser")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCost:
    """Medians in ms. ``cold_ms``: from nothing to a fork that can train, ``parts_ms`` of it by part (``PARTS``).
    ``server_ms``: the same from the fork server, whose own start took ``server_start_ms``, once a node.

    ``load``: processes that wanted one of the ``cores``, the mean of the last minute.
    """

    workload: str
    turns: int
    cold_ms: float
    parts_ms: dict[str, float] = field(default_factory=dict)
    server_start_ms: float
    server_ms: float
    server_worst_ms: float
    load: float
    cores: int


def measure(workload: str = WORKLOAD, turns: int = 5) -> StartCost:
    """Raises ``Broken`` if a fork does not start."""
    cold = [_cold(workload) for _ in range(turns)]
    started_ms, forked = asyncio.run(_from_server(workload, turns))
    return StartCost(
        workload=workload,
        turns=turns,
        cold_ms=median(sum(parts) for parts in cold),
        parts_ms={name: median(parts[i] for parts in cold) for i, name in enumerate(PARTS)},
        server_start_ms=started_ms,
        server_ms=median(forked),
        server_worst_ms=max(forked),
        load=os.getloadavg()[0],
        cores=os.cpu_count() or 1,
    )


def _cold(workload: str) -> list[float]:
    begun = time.monotonic()
    command = [sys.executable, "-c", _COLD, workload, str(_BATCH)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode:
        raise Broken(f"{workload} does not start: {done.stderr.strip()[-1000:]}")
    marks = [begun, *json.loads(done.stdout.splitlines()[-1])]
    return [(after - before) * 1e3 for before, after in pairwise(marks)]


async def _from_server(workload: str, turns: int) -> tuple[float, list[float]]:
    begun = time.monotonic()
    server = await ForkServer.start([workload.partition(":")[0]], timeout_s=_LIMIT_S)
    started = time.monotonic() - begun
    try:
        return started * 1e3, [await _fork(server, workload, turn) for turn in range(turns)]
    finally:
        await server.close()


async def _fork(server: ForkServer, workload: str, turn: int) -> float:
    """From the wish to a fork that has built its task."""
    spec = ForkSpec(workload=workload, config={}, batch_size=_BATCH, seed=0, device="cpu", threads=1)
    begun = time.monotonic()
    process = await server.spawn(f"bench-{os.getpid()}-{turn}", spec, on_output=lambda _: None)
    try:
        async for report in process:
            if isinstance(report, Ready):
                return (time.monotonic() - begun) * 1e3
            break
    finally:
        await process.kill()
    raise Broken(f"{workload} does not start from the fork server")
