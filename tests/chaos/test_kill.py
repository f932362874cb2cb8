"""``kill -9`` in mid-run: the job still finishes, and every step is counted exactly once."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hadare.client import HadareClient
from local_clusters import LocalCluster, digits, local_cluster

pytestmark = [pytest.mark.chaos, pytest.mark.e2e, pytest.mark.timeout(300)]

STEPS = 2500


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    yield from local_cluster(tmp_path)


async def start(cluster: LocalCluster) -> None:
    """A job that trains on three nodes and has its first version."""
    cluster.up("--cluster", "1x1:V100,1x1:P100,1x1:T4", "--round", "3")
    cluster.hadare("submit", cluster.write_job(digits("struck", STEPS)))
    await cluster.until_event("struck", "consolidated")


def strike(cluster: LocalCluster, program: str) -> None:
    os.kill(cluster.pid_of(program), signal.SIGKILL)


async def assert_exactly_once(client: HadareClient) -> None:
    """The job's steps are those of the forks that its versions name, each fork of a round once."""
    job = await client.wait("struck", timeout_s=180)
    assert (job.state, job.steps) == ("completed", STEPS)
    parents = [parent async for version in client.weights_list("struck") for parent in version.parents]
    assert sum(parent.steps for parent in parents) == STEPS
    assert len({(parent.round, parent.fork) for parent in parents}) == len(parents)


async def test_a_node_agent_is_killed(cluster: LocalCluster) -> None:
    await start(cluster)
    strike(cluster, "v100-1")
    async with cluster.client() as client:
        await assert_exactly_once(client)
    assert cluster.restarts_of("v100-1") == 1


async def test_the_job_tracker_is_killed(cluster: LocalCluster) -> None:
    await start(cluster)
    strike(cluster, "jobtracker")
    async with cluster.client() as client:
        await assert_exactly_once(client)
    assert cluster.restarts_of("jobtracker") == 1


@pytest.mark.parametrize("program", ["allocator", "gateway", "pricing", "nats"])
async def test_any_other_program_is_killed(cluster: LocalCluster, program: str) -> None:
    await start(cluster)
    strike(cluster, program)
    async with cluster.client() as client:
        await assert_exactly_once(client)
    assert cluster.restarts_of(program) == 1


async def test_agent_and_tracker_are_killed_one_after_the_other(cluster: LocalCluster) -> None:
    await start(cluster)
    strike(cluster, "p100-1")
    await cluster.until_event("struck", "consolidated", count=2)
    strike(cluster, "jobtracker")
    async with cluster.client() as client:
        await assert_exactly_once(client)
