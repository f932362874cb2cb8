"""The control services together, on the memory backplane in virtual time."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from builders import a_job, an_entry, an_object, some_progress
from builders_cluster import Cluster
from hadare.model.errors import Conflict
from hadare.model.jobs import (
    ConsolidationSpec,
    Desired,
    GuardSpec,
    JobState,
    OpenRound,
    VersionManifest,
)
from hadare.model.rounds import OpenAnswer, OpenRequest
from hadare.model.versions import VersionComing, VersionMade
from hadare.runtime import telemetry
from hadare.runtime.memory import MemoryHub
from hadare.runtime.memory_stores import MemoryObjects
from hadare.runtime.virtual import run_virtually
from hadare.wire import subjects
from hadare_jobtracker.service import JobTracker

Story = Callable[[Cluster], Awaitable[None]]


def live(story: Story) -> None:
    """Runs a story in virtual time, on a cluster that is stopped, and checked, at the end."""

    async def main() -> None:
        cluster = Cluster(MemoryHub())
        await story(cluster)
        await cluster.stop()

    run_virtually(main())


FIVE = (("n1", "V100"), ("n2", "P100"), ("n3", "T4"), ("n4", "K80"), ("n5", "T400"))


def test_a_job_alone_trains_on_every_device_and_completes_with_the_metrics_of_its_last_version() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        for node, kind in FIVE:
            cluster.start_agent(node, kind)
        await cluster.submit(a_job(total_steps=1500))
        done = await cluster.until("job-a", lambda p: p.state.ended)
        assert done.state is JobState.COMPLETED
        assert done.steps >= 1500
        assert done.metrics_version == done.version
        trained = {agent.node for agent in cluster.agents.values() if any(x.kind == "train" for x in agent.leases)}
        assert trained == {node for node, _ in FIVE}

    live(story)


def test_the_nodes_that_trained_for_a_version_are_told_of_it_and_no_others() -> None:
    async def story(cluster: Cluster) -> None:
        told: list[tuple[str, int]] = []
        bus = cluster.hub.connect("listener").bus
        for node in ("n1", "n2"):

            async def hear(made: VersionMade, node: str = node) -> None:
                told.append((node, int(made.weights.name.split(".v")[1].split(".")[0])))

            await bus.subscribe(subjects.VERSION_MADE, hear, node=node)
        cluster.start_control()
        cluster.start_agent("n1", "V100")
        await cluster.submit(a_job(total_steps=600))
        await cluster.until("job-a", lambda p: p.version == 2)
        await asyncio.sleep(0.1)
        assert told == [("n1", 1), ("n1", 2)]

    live(story)


GUARDED = ConsolidationSpec(guard=GuardSpec(metric="loss", better="lower"))


@pytest.mark.parametrize(
    ("agents", "how", "told"), [(1, ConsolidationSpec(), 0), (2, ConsolidationSpec(), 2), (2, GUARDED, 0)]
)
def test_nodes_are_told_that_a_version_comes_if_they_will_need_all_of_it(
    agents: int, how: ConsolidationSpec, told: int
) -> None:
    async def story(cluster: Cluster) -> None:
        heard: list[tuple[str, str]] = []
        bus = cluster.hub.connect("listener").bus
        for node, _ in FIVE[:agents]:

            async def hear(coming: VersionComing, node: str = node) -> None:
                heard.append((node, coming.label))

            await bus.subscribe(subjects.VERSION_COMING, hear, node=node)
        cluster.start_control()
        for node, kind in FIVE[:agents]:
            cluster.start_agent(node, kind)
        await cluster.submit(a_job(total_steps=900, consolidation=how))
        await cluster.until("job-a", lambda p: p.version == 1)
        assert [one for one in heard if one[1] == "job-a.v1"] == [(node, "job-a.v1") for node, _ in FIVE[:told]]

    live(story)


def test_what_is_kept_for_the_next_version_goes_when_the_job_has_ended() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        cluster.start_agent("n1", "V100")
        await cluster.submit(a_job(total_steps=300))
        await cluster.until("job-a", lambda p: p.version == 1)
        assert cluster.averager.forgotten == []
        await cluster.until("job-a", lambda p: p.state.ended)
        await asyncio.sleep(1.0)
        assert cluster.averager.forgotten == ["job-a"]

    live(story)


def test_a_tracker_that_dies_with_a_question_costs_the_time_of_a_failover_and_not_of_the_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = JobTracker._on_open
    lost: list[OpenRequest] = []

    async def lose_the_second(self: JobTracker, question: OpenRequest) -> OpenAnswer:
        if question.jobs and question.jobs[0].base_version == 1 and not lost:
            lost.append(question)
            await asyncio.sleep(60.0)
        return await answer(self, question)

    monkeypatch.setattr(JobTracker, "_on_open", lose_the_second)

    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        cluster.start_agent("n1", "V100")
        await cluster.submit(a_job(total_steps=1000))
        first = await cluster.until("job-a", lambda p: p.rounds == 1)
        before = asyncio.get_running_loop().time()
        await cluster.until("job-a", lambda p: p.rounds > first.rounds)
        assert lost
        assert asyncio.get_running_loop().time() - before < cluster.round_s + 6.0

    live(story)


def test_uploads_that_were_never_finished_are_collected_but_not_those_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collected: list[tuple[float, float]] = []

    async def collect(_: MemoryObjects, min_age_s: float) -> int:
        collected.append((asyncio.get_running_loop().time(), min_age_s))
        return 0

    monkeypatch.setattr(MemoryObjects, "collect_garbage", collect)

    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        await asyncio.sleep(700.0)

    live(story)
    assert len(collected) == 2
    assert all(min_age_s >= 600.0 for _, min_age_s in collected)


def test_steps_are_the_sum_of_the_parents_of_all_versions() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        for node, kind in FIVE:
            cluster.start_agent(node, kind)
        await cluster.submit(a_job(total_steps=1500))
        done = await cluster.until("job-a", lambda p: p.state.ended)
        versions = await cluster.hub.connect("user").table(subjects.VERSIONS).entries()
        assert sum(parent.steps for entry in versions for parent in entry.record.parents) == done.steps
        assert sorted(entry.record.version for entry in versions) == list(range(done.version + 1))

    live(story)


def test_rounds_follow_one_another_without_idle_time() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        cluster.start_agent("n1", "V100")
        await cluster.submit(a_job(total_steps=10_000))
        first = await cluster.until("job-a", lambda p: p.rounds == 1)
        later = await cluster.until("job-a", lambda p: p.rounds == 11)
        assert later.steps - first.steps == 10 * 100  # ten rounds of 10 s at 10 steps/s: no round was skipped
        versions = await cluster.hub.connect("user").table(subjects.VERSIONS).entries()
        rounds = sorted(entry.record.parents[0].round for entry in versions if entry.record.parents)
        assert rounds == list(range(rounds[0], rounds[0] + len(rounds)))

    live(story)


def test_several_jobs_all_complete() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        for node, kind in FIVE:
            cluster.start_agent(node, kind)
        for number in range(4):
            await cluster.submit(a_job(f"job-{number}", total_steps=400 * (number + 1)))
        for number in range(4):
            done = await cluster.until(f"job-{number}", lambda p: p.state.ended)
            assert done.state is JobState.COMPLETED

    live(story)


def test_without_any_node_a_job_waits_with_the_reason_and_goes_on_when_one_comes() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        await cluster.submit(a_job(total_steps=100))
        waiting = await cluster.until("job-a", lambda p: "no node" in p.reason)
        assert waiting.state is JobState.QUEUED
        cluster.start_agent("n1", "V100")
        assert (await cluster.until("job-a", lambda p: p.state.ended)).state is JobState.COMPLETED

    live(story)


def test_a_lost_node_costs_its_fork_and_the_job_goes_on_elsewhere() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        cluster.start_agent("n1", "V100")
        cluster.start_agent("n2", "V100")
        await cluster.submit(a_job(total_steps=2000))
        await cluster.until("job-a", lambda p: p.rounds == 2 and p.open is not None)
        await cluster.kill("n1")
        done = await cluster.until("job-a", lambda p: p.state.ended)
        assert done.state is JobState.COMPLETED
        assert done.lost_rounds == 0

    live(story)


def test_what_a_lost_node_trained_trains_elsewhere_within_two_rounds() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        cluster.start_agent("n1", "V100")
        cluster.start_agent("n2", "K80")
        await cluster.submit(a_job(total_steps=2000, max_forks=1))
        struck = await cluster.until("job-a", lambda p: p.rounds == 2 and p.open is not None)
        assert struck.open is not None
        assert [entry.node for entry in struck.open.forks] == ["n1"]
        await cluster.kill("n1")
        moved = await cluster.until("job-a", lambda p: p.open is not None and p.open.forks[0].node == "n2")
        assert moved.open is not None
        assert moved.open.round - struck.open.round <= 2

    live(story)


def test_an_agent_that_is_started_again_in_mid_round_is_not_waited_for() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.round_s = 300.0
        cluster.start_control()
        cluster.start_agent("n1", "V100")
        await cluster.submit(a_job(total_steps=10_000))
        struck = await cluster.until("job-a", lambda p: p.open is not None)
        assert struck.open is not None
        await asyncio.sleep(20.0)  # virtual: it trains
        await cluster.kill("n1")
        cluster.start_agent("n1", "V100", incarnation="i2")
        killed_at = asyncio.get_running_loop().time()
        after = await cluster.until("job-a", lambda p: p.open is not None and p.open.round > struck.open.round)
        assert asyncio.get_running_loop().time() - killed_at < 10.0
        assert after.lost_rounds == 1

    live(story)


def test_when_all_nodes_are_lost_the_job_waits_and_a_node_that_returns_is_used_again() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        agent = cluster.start_agent("n1", "V100")
        await cluster.submit(a_job(total_steps=500))
        await cluster.until("job-a", lambda p: p.rounds == 2)
        agent.beats = False
        await cluster.until("job-a", lambda p: p.open is None and p.rounds >= 3)
        states = cluster.hub.connect("user").table(subjects.NODE_STATES)
        async for change in states.watch():
            if change.entry is not None and change.entry.record.state == "lost":
                break
        assert (await cluster.plans())[-1].decisions[0].code == "no_nodes"
        agent.beats = True
        assert (await cluster.until("job-a", lambda p: p.state.ended)).state is JobState.COMPLETED

    live(story)


@pytest.mark.parametrize("service", ["tracker", "allocator", "pricing"])
def test_a_control_service_that_is_killed_in_mid_round_costs_no_step(service: str) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        for node, kind in FIVE:
            cluster.start_agent(node, kind)
        await cluster.submit(a_job(total_steps=2000))
        before = await cluster.until("job-a", lambda p: p.rounds == 2 and p.open is not None)
        await cluster.kill(service)
        {
            "tracker": cluster.start_tracker,
            "allocator": cluster.start_allocator,
            "pricing": cluster.start_pricing,
        }[service]()
        after = await cluster.until("job-a", lambda p: p.rounds == 3)
        assert before.open is not None
        assert after.closed_round == before.open.round
        assert after.steps > before.steps
        done = await cluster.until("job-a", lambda p: p.state.ended)
        assert (done.state, done.lost_rounds) == (JobState.COMPLETED, 0)

    live(story)


def test_a_job_that_is_cancelled_in_mid_round_frees_its_devices_for_the_others() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        cluster.start_agent("n1", "V100")
        await cluster.submit(a_job("job-a", total_steps=100_000))
        await cluster.until("job-a", lambda p: p.open is not None)
        await cluster.submit(a_job("job-a", total_steps=100_000, desired=Desired.CANCELLED))
        assert (await cluster.until("job-a", lambda p: p.state.ended)).state is JobState.CANCELLED
        assert not [name for name, task in cluster.agents["n1"].running.items() if not task.done()]
        await cluster.submit(a_job("job-b", total_steps=100))
        assert (await cluster.until("job-b", lambda p: p.state.ended)).state is JobState.COMPLETED

    live(story)


def test_a_paused_job_holds_no_device_and_finishes_after_it_is_resumed() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        agent = cluster.start_agent("n1", "V100")
        await cluster.submit(a_job(total_steps=500))
        await cluster.until("job-a", lambda p: p.rounds == 1)
        await cluster.submit(a_job(total_steps=500, desired=Desired.PAUSED))
        paused = await cluster.until("job-a", lambda p: p.state is JobState.PAUSED)
        leased = len(agent.leases)
        await cluster.submit(a_job("job-b", total_steps=100))
        await cluster.until("job-b", lambda p: p.state.ended)
        assert not [lease for lease in agent.leases[leased:] if lease.key.job_id == "job-a"]
        await cluster.submit(a_job(total_steps=500))
        done = await cluster.until("job-a", lambda p: p.state.ended)
        assert done.state is JobState.COMPLETED
        assert done.steps > paused.steps

    live(story)


@pytest.mark.parametrize("service", ["allocator", "tracker"])
def test_of_two_replicas_one_leads_and_when_it_is_killed_the_other_does_within_five_seconds(service: str) -> None:
    async def story(cluster: Cluster) -> None:
        table = subjects.ALLOCATOR_LEADER if service == "allocator" else subjects.TRACKER_LEADER
        leaders = cluster.hub.connect("user").table(table)
        start = cluster.start_allocator if service == "allocator" else cluster.start_tracker
        cluster.start_control()
        for node, kind in FIVE:
            cluster.start_agent(node, kind)
        await cluster.submit(a_job(total_steps=2000))
        await cluster.until("job-a", lambda p: p.rounds == 1)
        start(name=f"{service}-2")
        before = await cluster.until("job-a", lambda p: p.rounds == 3 and p.open is not None)
        first = await leaders.get("")
        assert first is not None
        assert first.record.holder == service
        await cluster.kill(service)
        killed_at = asyncio.get_running_loop().time()
        async for change in leaders.watch():
            if change.entry is not None and change.entry.record.holder == f"{service}-2":
                break
        assert asyncio.get_running_loop().time() - killed_at <= 4.0
        after = await cluster.until("job-a", lambda p: p.rounds == 4)
        assert before.open is not None
        assert (after.closed_round, after.lost_rounds) == (before.open.round, 0)
        assert (await cluster.until("job-a", lambda p: p.state.ended)).state is JobState.COMPLETED

    live(story)


@pytest.mark.parametrize("service", ["allocator", "tracker"])
def test_a_service_that_is_stopped_in_order_leaves_its_place_at_once(service: str) -> None:
    async def story(cluster: Cluster) -> None:
        table = subjects.ALLOCATOR_LEADER if service == "allocator" else subjects.TRACKER_LEADER
        leaders = cluster.hub.connect("user").table(table)
        cluster.start_control()
        cluster.start_agent("n1", "V100")
        await cluster.submit(a_job(total_steps=2000))
        await cluster.until("job-a", lambda p: p.rounds == 1)
        running = cluster.tasks.pop(service)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        left = await leaders.get("")
        assert left is not None
        assert left.record.holder == ""
        (cluster.start_allocator if service == "allocator" else cluster.start_tracker)(name=f"{service}-2")
        stopped_at = asyncio.get_running_loop().time()
        async for change in leaders.watch():
            if change.entry is not None and change.entry.record.holder == f"{service}-2":
                break
        assert asyncio.get_running_loop().time() - stopped_at < 0.1

    live(story)


def test_a_version_that_a_dead_tracker_was_about_to_publish_cannot_be_published_by_its_late_write() -> None:
    async def story(cluster: Cluster) -> None:
        user = cluster.hub.connect("user")
        received = an_entry(outcome="received", steps=5, object=an_object("fork"))
        opened = OpenRound(round=1, epoch=1, base_version=0, forks=(received,))
        between = some_progress(total_steps=100, open=opened)
        manifest = VersionManifest(job_id="job-a", version=1, base_version=0, steps=5, weights=an_object("longer"))
        revision = await user.table(subjects.PROGRESS).create("job-a", between)
        await user.table(subjects.VERSIONS).create("job-a.0", replace(manifest, version=0, base_version=-1))
        await user.table(subjects.VERSIONS).create("job-a.1", manifest)
        await cluster.submit(a_job(total_steps=100))
        cluster.start_tracker()
        async for change in user.table(subjects.PROGRESS).watch():
            if change.entry is not None and change.entry.revision > revision:
                assert change.entry.record == between  # fenced before anything else is made of the round
                break
        with pytest.raises(Conflict):
            await user.table(subjects.PROGRESS).update("job-a", replace(between, version=1, open=None), revision)

    live(story)


def test_prices_are_stored_for_every_cell_and_rise_with_what_is_taken() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        cluster.start_agent("n1", "V100", "V100")
        cluster.start_agent("n2", "K80")
        await cluster.submit(a_job(total_steps=500, max_forks=1))
        await cluster.until("job-a", lambda p: p.rounds == 2)
        book = await cluster.hub.connect("user").table(subjects.PRICES).get("book")
        assert book is not None
        cells = {(curve.node, curve.type): curve for curve in book.record.curves}
        assert set(cells) == {("n1", "V100"), ("n2", "K80")}
        assert cells["n1", "V100"].price(1) > cells["n1", "V100"].price(0)

    live(story)


def test_a_gang_over_nodes_trains_under_hadar_and_its_steps_are_those_of_its_first_rank() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.start_pricing()
        cluster.start_tracker()
        cluster.start_allocator("hadar")
        for node, kind in FIVE[:3]:
            cluster.start_agent(node, kind)
        await cluster.submit(a_job(total_steps=900, gang=3))
        done = await cluster.until("job-a", lambda p: p.state.ended)
        assert done.state is JobState.COMPLETED
        leases = [x for agent in cluster.agents.values() for x in agent.leases if x.kind == "train"]
        assert {lease.key.rank for lease in leases} == {0, 1, 2}
        assert {sum(lease.gang.shares) for lease in leases if lease.gang} == {3 * 32}
        assert set(done.throughput) == {kind for _, kind in FIVE[:3]}
        versions = await cluster.hub.connect("user").table(subjects.VERSIONS).entries()
        assert sum(parent.steps for entry in versions for parent in entry.record.parents) == done.steps

    live(story)


def test_a_rank_that_is_refused_ends_the_others_long_before_their_leases_end() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.round_s = 300.0
        cluster.start_control()
        agents = [cluster.start_agent(node, kind) for node, kind in FIVE[:2]]
        agents[1].refuses = "its device is not fit"
        await cluster.submit(a_job(total_steps=100_000, mode="gang"))
        lost = await cluster.until("job-a", lambda p: p.lost_rounds == 1)
        assert f"rank 1 on {agents[1].node}" in lost.reason
        assert "not fit" in lost.reason
        assert agents[0].revoked
        agents[1].refuses = ""
        after = await cluster.until("job-a", lambda p: p.open is not None and p.open.round > lost.closed_round)
        assert asyncio.get_running_loop().time() < 60.0, after

    live(story)


def test_a_job_that_trains_as_one_gang_has_one_fork_of_all_its_devices() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        for node, kind in FIVE:
            cluster.start_agent(node, kind)
        await cluster.submit(a_job(total_steps=1500, mode="gang"))
        opened = await cluster.until("job-a", lambda p: p.open is not None)
        assert opened.open is not None
        (entry,) = opened.open.forks
        assert (entry.ranks, len(entry.others)) == (5, 4)
        assert (await cluster.until("job-a", lambda p: p.state.ended)).state is JobState.COMPLETED

    live(story)


def test_an_allocator_that_stops_in_the_middle_of_a_round_ends_the_rounds_span(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.start_control()
        cluster.start_agent("n1", "V100")
        await cluster.submit(a_job(total_steps=1500))
        await cluster.until("job-a", lambda p: p.version == 0)
        await cluster.kill("pricing")  # so the next round waits for its prices
        await cluster.until("job-a", lambda p: p.version == 1)
        await cluster.kill("allocator")

    telemetry.configure("tester", "t1", f"file:{tmp_path}")
    live(story)
    telemetry.shutdown()
    gc.collect()
    assert "round" in {
        json.loads(line)["name"] for file in tmp_path.glob("*.jsonl") for line in file.read_text().splitlines()
    }
    assert "Failed to detach context" not in caplog.text
