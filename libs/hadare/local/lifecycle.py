"""Brings a local cluster up and down: prepares its directory, starts its supervisor, waits for what is asked."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import psutil

from hadare.local import processes
from hadare.local.directory import LocalCluster, free_port, holder, listening, remember, remembered
from hadare.local.processes import MARK
from hadare.local.programs import replicas
from hadare.local.spec import ClusterSpec, default_cluster
from hadare.model.devices import NodeState
from hadare.model.errors import Broken, HadareError, Rejected, Unavailable
from hadare.scheduling.policies import policy_of
from hadare.wire.api_cluster import ClusterStatus

READY_LIMIT_S = 120.0
STOP_LIMIT_S = 60.0
_THERE = frozenset({NodeState.READY, NodeState.DRAINING, NodeState.QUARANTINED})
_ASK_EVERY_S = 0.25

T = TypeVar("T")
AskStatus = Callable[[], Awaitable[ClusterStatus]]


def prepare(
    directory: Path, spec: ClusterSpec | None = None, round_s: float | None = None, policy: str | None = None
) -> LocalCluster:
    """Writes ``cluster.json``: what is given, else as at the last start, else the defaults. The port stays.

    Raises ``Rejected``: 409 if a cluster is running there, 400 if there is no such policy, the round has no length, or
    ``HADARE_REPLICAS`` is no number that can run.
    """
    replicas()
    if policy is not None:
        policy_of(policy)
    if round_s is not None and not isfinite(round_s):
        raise Rejected(400, f"--round: {round_s} is no length of a round; expected seconds, such as 360")
    pid = holder(directory)
    if pid is not None:
        raise Rejected(409, f"a cluster is already running in {directory} (process {pid}); `hadare down` ends it")
    known = remembered(directory) or LocalCluster(port=free_port(), spec=spec or default_cluster())
    if processes.marked(directory) == [] and listening(known.port):
        known = replace(known, port=free_port())  # another program has taken it meanwhile
    cluster = replace(known, spec=spec or known.spec, round_s=round_s or known.round_s, policy=policy or known.policy)
    remember(directory, cluster)
    return cluster


def launch(directory: Path, detached: bool) -> subprocess.Popen[bytes]:
    """Starts the supervisor of a prepared directory; detached it outlives this process, else it ends with it."""
    log = directory / "logs" / "supervisor.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    processes.rotate(log)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "hadare.local.supervisor", str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**os.environ, MARK: str(directory), processes.PROGRAM: "supervisor"},
            start_new_session=True,
            preexec_fn=None if detached else processes.dies_with_parent(signal.SIGTERM),
        )


def take_back(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Ends what ``launch`` began and could not finish, but never the cluster of somebody who was faster.

    Raises ``Rejected`` (409) if there is one.
    """
    ours = process.poll() is None
    pid = None if ours else holder(directory)
    if pid is not None:
        raise Rejected(409, f"a cluster is already running in {directory} (process {pid}); `hadare down` ends it")
    stop(directory)
    process.wait()


async def until_ready(
    cluster: LocalCluster, ask: AskStatus, alive: Callable[[], bool], limit_s: float = READY_LIMIT_S
) -> ClusterStatus:
    """Until the services answer and every node has been heard. Raises ``Broken`` with what is missing.

    A node that its operator drained, or that is in quarantine, is not waited for: only a running cluster can free it.
    """
    wanted = {node.name for node in cluster.spec.nodes}
    deadline = time.monotonic() + limit_s
    missing = "nothing has answered yet"
    while time.monotonic() < deadline:
        if not alive():
            raise Broken("the cluster ended while it was starting")
        try:
            status = await ask()
            there = {node.node for node in status.nodes if node.state in _THERE}
            if all(service.ok for service in status.services) and wanted <= there:
                return status
            missing = "; ".join([*status.problems, *(f"{name} is not ready" for name in sorted(wanted - there))])
        except (Unavailable, Rejected) as error:
            missing = str(error)
        await asyncio.sleep(_ASK_EVERY_S)
    raise Broken(f"the cluster is not ready after {limit_s:.0f} s: {missing}")


async def while_alive(work: Coroutine[Any, Any, T], alive: Callable[[], bool], every_s: float = _ASK_EVERY_S) -> T:
    """What the work returns. Raises ``Broken`` once the cluster has ended meanwhile, whatever the work waits for."""
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=every_s))[0]:
            if not alive():
                raise Broken("the cluster ended while it was starting: logs/supervisor.log in its directory says why")
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def stop(directory: Path, limit_s: float = STOP_LIMIT_S) -> bool:
    """Ends the cluster in a directory and proves that nothing is left; false if none was there.

    Raises ``Broken`` if something could not be ended.
    """
    directory = directory.resolve()
    pid = holder(directory)
    found = pid is not None or bool(processes.marked(directory))
    if pid is not None:
        _end_supervisor(pid, directory, limit_s)
    left = processes.end_marked(directory)
    if left:
        raise Broken(f"these processes of {directory} could not be ended: {', '.join(map(str, left))}")
    (directory / "processes.json").unlink(missing_ok=True)
    cluster = _remembered_or_none(directory)
    if found and cluster is not None and listening(cluster.port):
        raise Broken(f"something still listens on port {cluster.port}")
    return found


def _end_supervisor(pid: int, directory: Path, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    try:
        supervisor = psutil.Process(pid)
        if supervisor.pid in {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}:
            raise Rejected(409, f"the cluster in {directory} is this very process")
        supervisor.send_signal(signal.SIGTERM)
        psutil.wait_procs([supervisor], timeout=max(0.0, deadline - time.monotonic()))
    except psutil.NoSuchProcess:
        return
    if holder(directory) == pid:
        supervisor.kill()
        psutil.wait_procs([supervisor], timeout=5.0)


def _remembered_or_none(directory: Path) -> LocalCluster | None:
    try:
        return remembered(directory)
    except HadareError:
        return None
