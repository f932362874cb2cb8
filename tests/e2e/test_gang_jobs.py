"""Jobs whose devices train in lockstep, on a whole cluster: three unequal emulated devices of two node agents."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hadare.model.events import StoredEvent
from local_clusters import LocalCluster, digits, local_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

ROUND_S = 20.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    yield from local_cluster(tmp_path_factory.mktemp("gangs"))


@pytest.fixture(scope="module")
def started(cluster: LocalCluster) -> Any:
    return cluster.up("--cluster", "1x1:V100,1x2:K80", "--round", str(ROUND_S))


async def history(cluster: LocalCluster, job: str, until: str = "") -> list[StoredEvent]:
    """What has happened to the job, up to the first event of that name, or to its end."""
    told: list[StoredEvent] = []
    async with cluster.client() as client, asyncio.timeout(120):
        async for news in client.watch(job):
            if isinstance(news, StoredEvent):
                told.append(news)
                if news.event.what == until:
                    return told
    return told


def named(told: list[StoredEvent], what: str) -> list[dict[str, Any]]:
    return [stored.event.data for stored in told if stored.event.what == what]


async def test_a_gang_over_two_nodes_counts_each_step_once(cluster: LocalCluster, started: Any) -> None:
    spec = {**digits("lockstep", 500), "mode": "gang"}
    job = cluster.json("submit", cluster.write_job(spec), "--wait")
    assert (job["state"], job["steps"], job["failures"]) == ("completed", 500, 0)
    assert job["samples"] == 500 * 16
    assert set(job["throughput"]) == {"V100", "K80"}  # each rank's own
    assert job["throughput"]["V100"] > 2 * job["throughput"]["K80"]
    told = await history(cluster, "lockstep")
    assert named(told, "mode")[0]["chosen"] == "gang"
    made = named(told, "consolidated")
    assert {version["forks"] for version in made} == {1}
    assert {version["devices"] for version in made} == {3}
    assert sum(version["round_steps"] for version in made) == 500


async def test_an_agent_that_is_killed_ends_the_gang_at_once_and_the_job_goes_on(
    cluster: LocalCluster, started: Any
) -> None:
    spec = {**digits("struck", 900), "mode": "gang"}
    cluster.hadare("submit", cluster.write_job(spec))
    await until_it_trains(cluster, "struck")
    killed_at = time.time()
    os.kill(cluster.pid_of("k80-1"), signal.SIGKILL)
    told = await history(cluster, "struck", until="round_lost")
    assert told[-1].at - killed_at < 3.0
    assert "rank" in told[-1].event.data["why"]
    cluster.hadare("watch", "struck")
    job = cluster.json("job", "struck")
    assert (job["state"], job["steps"], job["failures"]) == ("completed", 900, 0)
    assert job["lost_rounds"] >= 1


async def until_it_trains(cluster: LocalCluster, job: str) -> None:
    """Until the gang has made steps, as the running fork reports them."""
    async with cluster.client() as client, asyncio.timeout(60):
        while True:
            status = await client.get(job)
            if any(fork.steps for fork in status.forks):
                return
            await asyncio.sleep(0.2)


async def test_a_job_in_mode_auto_says_what_was_chosen_and_by_which_numbers(
    cluster: LocalCluster, started: Any
) -> None:
    spec = {**digits("automatic", 300), "mode": "auto"}
    job = cluster.json("submit", cluster.write_job(spec), "--wait")
    assert (job["state"], job["steps"]) == ("completed", 300)
    first = named(await history(cluster, "automatic"), "mode")[0]
    assert first["chosen"] in ("gang", "forks")
    assert "to exchange gradients" in first["why"]
    assert "a gain of" in first["why"]


def test_under_hadar_a_job_gets_its_gang_over_nodes_and_types_and_does_exactly_its_steps(tmp_path: Path) -> None:
    clusters = local_cluster(tmp_path)
    hadar = next(clusters)
    hadar.up("--cluster", "1x1:V100,1x2:K80", "--round", "4", "--policy", "hadar")
    job = hadar.json("submit", hadar.write_job({**digits("three", 601), "gang": 3}), "--wait")
    assert (job["state"], job["steps"], job["lost_rounds"]) == ("completed", 601, 0)
    assert job["updates"] < 601 / 2  # three steps an update, but for the last
    assert set(job["throughput"]) == {"V100", "K80"}
    assert next(clusters, None) is None
