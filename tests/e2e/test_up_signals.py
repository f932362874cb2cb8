"""However a cluster ends, nothing of it is left."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hadare.local.directory import holder
from local_clusters import LocalCluster, digits, local_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

SMALL = ("--cluster", "1x1:V100,1x1:T4", "--round", "2")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    yield from local_cluster(tmp_path)


async def test_ctrl_c_ends_a_cluster_in_the_foreground_while_it_trains(cluster: LocalCluster) -> None:
    process = cluster.command("up", *SMALL)
    assert process.stdout is not None
    while "HadarE is up" not in process.stdout.readline():
        assert process.poll() is None
    cluster.hadare("submit", cluster.write_job(digits("endless", 1_000_000)))
    await cluster.until_event("endless", "initialised")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    cluster.assert_gone()


async def test_a_killed_supervisor_takes_everything_with_it(cluster: LocalCluster) -> None:
    cluster.up(*SMALL)
    cluster.hadare("submit", cluster.write_job(digits("endless", 1_000_000)))
    await cluster.until_event("endless", "consolidated")
    everything = cluster.processes()
    supervisor = holder(cluster.directory)
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    _, alive = await asyncio.to_thread(psutil.wait_procs, everything, 30)
    assert alive == []
    cluster.assert_gone()
