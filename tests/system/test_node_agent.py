"""A whole node agent on the in-memory bus, in virtual time, with processes that only pretend to train."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from builders_leases import NODE, a_lease
from builders_node_agent import RATE, World
from hadare.model.devices import Heartbeat
from hadare.model.errors import Broken, Unavailable
from hadare.model.leases import Lease, LeaseAnswer, Revoke, Revoked, StepReport
from hadare.model.versions import VersionMade
from hadare.runtime.memory_stores import MemoryObjects
from hadare.runtime.registration import LOOK_AFTER_S
from hadare.runtime.virtual import run_virtually
from hadare.wire.subjects import GRANT, HEARTBEAT, NODES, REVOKE, STEP_REPORT, VERSION_MADE, WEIGHTS
from hadare_node_agent.results import ResultStore

Play = Callable[[Callable[[World], Awaitable[None]]], None]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Runs a scene in a fresh world; in the end no handler has failed and the agent is drained."""

    def play_scene(scene: Callable[[World], Awaitable[None]]) -> None:
        async def whole() -> None:
            world = World(tmp_path)
            await world.start()
            await scene(world)
            if not world.running.done():
                await world.drain_agent()
            assert world.hub.failures == []
            assert world.trainer.alive == {}

        run_virtually(whole())

    return play_scene


async def grant(world: World, lease: Lease) -> LeaseAnswer:
    return await world.asker.ask(GRANT, lease, timeout_s=2.0, node=NODE)


def test_a_version_that_the_tracker_tells_of_is_here_before_a_lease_asks_for_it(play: Play) -> None:
    async def scene(world: World) -> None:
        ref = await world.store("version 1")
        made = VersionMade(job_id="apple", weights=ref)
        await world.asker.publish(VERSION_MADE, made, node=NODE)
        await world.asker.publish(
            VERSION_MADE, replace(made, weights=replace(ref, name="gone", sha256="0" * 64)), node=NODE
        )
        await asyncio.sleep(0.1)
        assert [path.read_text() for path in (world.folder / "weights").glob("*.safetensors")] == ["version 1"]

    play(scene)


def test_a_wall_clock_that_jumps_by_an_hour_ends_no_lease_and_begins_none_again(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    off, real = [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: real() + off[0])

    async def scene(world: World) -> None:
        lease = a_lease(base=await world.store(), duration_s=5.0)
        assert (await grant(world, lease)).accepted
        for jump in (3600.0, -3600.0, 0.0):
            off[0] = jump
            await asyncio.sleep(1.0)
            assert world.tracker.results == []
            assert (await grant(world, lease)).accepted  # asked again, as after a lost answer
        await asyncio.sleep(6.0)
        assert [result.key for result in world.tracker.results] == [lease.key]
        assert world.tracker.results[0].steps >= 4 * RATE
        assert [len(world.events(what)) for what in ("lease_started", "lease_ended")] == [1, 1]

    play(scene)


async def revoke(world: World, job: str) -> Revoked:
    return await world.asker.ask(REVOKE, Revoke(job_id=job), timeout_s=30.0, node=NODE)


def test_a_lease_is_trained_until_the_clock_and_its_result_counted(play: Play) -> None:
    async def scene(world: World) -> None:
        lease = a_lease(base=await world.store(), duration_s=10.0)
        assert (await grant(world, lease)).accepted
        await asyncio.sleep(12.0)
        (result,) = world.tracker.of(lease.key)
        assert (result.reason, result.base_version, result.device_type) == ("clock", 0, "V100")
        assert 90 <= result.steps <= 95, "10 s at 10 steps/s, less half a second to start"
        assert result.object is not None
        stored = world.hub.objects[WEIGHTS][result.object.name]
        assert stored == b"weights of version 0 + apple.1.0.0"
        assert world.kept_results() == []

    play(scene)


def test_a_fork_that_stays_is_warm_in_the_next_round(play: Play) -> None:
    async def scene(world: World) -> None:
        base = await world.store()
        await grant(world, a_lease("apple", 1, base=base, duration_s=10.0))
        await asyncio.sleep(11.0)
        await grant(world, a_lease("apple", 2, base=base, duration_s=10.0))
        await asyncio.sleep(11.0)
        cold, warm = world.tracker.results
        assert world.trainer.started == ["p1"]
        assert warm.steps > cold.steps

    play(scene)


def test_the_inventory_is_written_at_the_start(play: Play) -> None:
    async def scene(world: World) -> None:
        entry = await world.hub.connect("reader").table(NODES).get(NODE)
        assert entry is not None
        assert [device.type for device in entry.record.devices] == ["V100", "T4"]
        assert entry.record.incarnation == "i1"
        assert entry.record.labels == {"rack": "a"}
        assert entry.record.workloads == ("hadare.training.workloads.digits:Digits",)

    play(scene)


def test_a_node_that_was_forgotten_while_it_lives_registers_again(play: Play) -> None:
    async def scene(world: World) -> None:
        table = world.hub.connect("operator").table(NODES)
        await table.delete(NODE)
        await asyncio.sleep(LOOK_AFTER_S + 1.0)
        entry = await table.get(NODE)
        assert entry is not None
        assert entry.record.incarnation == "i1"

    play(scene)


def test_an_old_inventory_that_lands_late_does_not_stay(play: Play) -> None:
    async def scene(world: World) -> None:
        table = world.hub.connect("late").table(NODES)
        entry = await table.get(NODE)
        assert entry is not None
        broken = tuple(replace(device, healthy=False, reason="Xid 79") for device in entry.record.devices)
        await table.put(NODE, replace(entry.record, devices=broken))
        await asyncio.sleep(LOOK_AFTER_S + 1.0)
        healed = await table.get(NODE)
        assert healed is not None
        assert healed.record == entry.record

    play(scene)


def test_heartbeats_say_which_lease_holds_which_device(play: Play) -> None:
    async def scene(world: World) -> None:
        beats: list[Heartbeat] = []

        async def hear(heartbeat: Heartbeat) -> None:
            beats.append(heartbeat)

        await world.asker.subscribe(HEARTBEAT, hear)
        await grant(world, a_lease("apple", base=await world.store(), devices=(1,), device_type="T4"))
        await asyncio.sleep(5.0)
        assert beats[-1].busy == {"1": "apple.1.0.0"}
        assert [beat.sequence for beat in beats] == list(range(beats[0].sequence, beats[0].sequence + len(beats)))
        assert len(beats) == 5

    play(scene)


def test_step_reports_are_published(play: Play) -> None:
    async def scene(world: World) -> None:
        reports: list[StepReport] = []

        async def hear(report: StepReport) -> None:
            reports.append(report)

        await world.asker.subscribe(STEP_REPORT, hear)
        await grant(world, a_lease(base=await world.store(), duration_s=4.0))
        await asyncio.sleep(5.0)
        assert [report.phase for report in reports] == ["starting", "training", "handing_back"]
        assert reports[1].nominal_rate == RATE

    play(scene)


def test_init_and_evaluate_leases_run_on_the_cpu_beside_training(play: Play) -> None:
    async def scene(world: World) -> None:
        base = await world.store()
        await grant(world, a_lease("apple", base=base, duration_s=10.0))
        await grant(world, a_lease("pear", kind="init", duration_s=20.0))
        await grant(world, a_lease("fig", kind="evaluate", base=base, duration_s=20.0))
        await asyncio.sleep(8.0)
        init, evaluation = world.tracker.results
        assert (init.kind, init.reason, init.object is not None) == ("init", "done", True)
        assert evaluation.evaluation is not None
        assert evaluation.evaluation.sha256 == base.sha256

    play(scene)


def test_a_base_that_is_not_in_the_store_fails_the_lease(play: Play) -> None:
    async def scene(world: World) -> None:
        lease = a_lease()
        assert (await grant(world, lease)).accepted
        await asyncio.sleep(1.0)
        (result,) = world.tracker.of(lease.key)
        assert result.failure is not None
        assert result.failure.kind == "fetch"
        assert "there is no object 'object-a'" in result.failure.message

    play(scene)


def test_a_crash_is_reported_within_moments(play: Play) -> None:
    async def scene(world: World) -> None:
        lease = a_lease(base=await world.store(), duration_s=60.0)
        await grant(world, lease)
        await asyncio.sleep(3.0)
        world.trainer.crash("p1")
        await asyncio.sleep(0.5)
        (result,) = world.tracker.of(lease.key)
        assert (result.reason, result.steps) == ("failed", 0)
        assert result.failure is not None
        assert result.failure.kind == "killed"

    play(scene)


def test_a_revoke_ends_a_deaf_fork_and_is_answered_when_it_is_gone(play: Play) -> None:
    async def scene(world: World) -> None:
        world.trainer.deaf.add("apple")
        lease = a_lease(base=await world.store(), duration_s=60.0)
        await grant(world, lease)
        await asyncio.sleep(2.0)
        asked = asyncio.get_running_loop().time()
        answer = await revoke(world, "apple")
        assert answer == Revoked(ended=("apple.1.0.0",), free=True)
        assert world.trainer.alive == {}
        assert asyncio.get_running_loop().time() - asked == pytest.approx(3.1, abs=0.2)

    play(scene)


def test_a_device_whose_process_will_not_die_is_withdrawn_and_offered_again_when_it_is_gone(play: Play) -> None:
    async def scene(world: World) -> None:
        table = world.hub.connect("reader").table(NODES)
        world.trainer.deaf.add("apple")
        world.trainer.immortal.add("apple")
        await grant(world, a_lease(base=await world.store(), duration_s=60.0))
        await asyncio.sleep(2.0)
        assert (await revoke(world, "apple")).free is False
        await asyncio.sleep(1.0)
        entry = await table.get(NODE)
        assert entry is not None
        assert [device.healthy for device in entry.record.devices] == [False, True]
        world.trainer.immortal.clear()
        await asyncio.sleep(20.0)
        entry = await table.get(NODE)
        assert entry is not None
        assert all(device.healthy for device in entry.record.devices)

    play(scene)


def test_a_device_that_breaks_ends_its_lease_with_the_reason_and_the_rest_of_the_node_goes_on(play: Play) -> None:
    async def scene(world: World) -> None:
        base = await world.store()
        struck = a_lease(base=base, duration_s=20.0)
        sound = a_lease("banana", base=base, duration_s=20.0, devices=(1,), device_type="T4")
        for lease in (struck, sound):
            assert (await grant(world, lease)).accepted
        await asyncio.sleep(5.0)
        world.probe.strike(0, "Xid 79: it has fallen off the bus")
        await asyncio.sleep(2.0)
        (result,) = world.tracker.of(struck.key)
        assert result.failure is not None
        assert (result.failure.kind, result.failure.message) == (
            "device",
            "device 0 is unhealthy: Xid 79: it has fallen off the bus",
        )
        entry = await world.hub.connect("reader").table(NODES).get(NODE)
        assert entry is not None
        assert [device.reason for device in entry.record.devices] == ["Xid 79: it has fallen off the bus", ""]
        refused = await grant(world, a_lease("cherry", base=base, duration_s=20.0))
        assert not refused.accepted
        assert "Xid 79" in refused.reason
        await asyncio.sleep(20.0)
        (result,) = world.tracker.of(sound.key)
        assert (result.failure, result.reason) == (None, "clock")

    play(scene)


def test_a_second_agent_with_the_same_name_is_refused_with_the_reason_and_the_first_goes_on(play: Play) -> None:
    async def scene(world: World) -> None:
        lease = a_lease(base=await world.store(), duration_s=30.0)
        assert (await grant(world, lease)).accepted
        first, running, trainer = world.agent, world.running, world.trainer
        await world.start_agent()
        with pytest.raises(Broken, match="the name 'north' is taken: an agent runs under it on here"):
            await world.running
        entry = await world.hub.connect("reader").table(NODES).get(NODE)
        assert entry is not None
        assert entry.record.incarnation == "i1"
        world.agent, world.running, world.trainer = first, running, trainer
        await asyncio.sleep(35.0)
        (result,) = world.tracker.of(lease.key)
        assert result.reason == "clock"

    play(scene)


def test_on_a_full_disk_a_result_is_still_delivered_and_later_leases_say_why_they_fail(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")

    def no_room(*_: object, **__: object) -> NoReturn:
        raise full

    async def scene(world: World) -> None:
        base = await world.store()
        lease = a_lease(base=base, duration_s=10.0)
        assert (await grant(world, lease)).accepted
        await asyncio.sleep(5.0)
        monkeypatch.setattr(ResultStore, "keep", no_room)
        monkeypatch.setattr(MemoryObjects, "get", no_room)
        await asyncio.sleep(7.0)
        (result,) = world.tracker.of(lease.key)
        assert (result.reason, result.failure) == ("clock", None)
        other = a_lease("banana", base=await world.store("another version"), duration_s=10.0)
        assert (await grant(world, other)).accepted
        await asyncio.sleep(12.0)
        (result,) = world.tracker.of(other.key)
        assert result.failure is not None
        assert result.failure.kind == "fetch"
        assert "No space left on device" in result.failure.message
        monkeypatch.undo()
        third = a_lease("cherry", base=base, duration_s=5.0)
        assert (await grant(world, third)).accepted
        await asyncio.sleep(7.0)
        (result,) = world.tracker.of(third.key)
        assert result.failure is None

    play(scene)


def test_a_result_waits_for_a_tracker_that_is_away(play: Play) -> None:
    async def scene(world: World) -> None:
        world.tracker.deaf = True
        lease = a_lease(base=await world.store(), duration_s=4.0)
        await grant(world, lease)
        await asyncio.sleep(30.0)
        assert world.kept_results() == ["apple.1.0.0.msgpack"]
        world.tracker.deaf = False
        await asyncio.sleep(11.0)
        assert len(world.tracker.of(lease.key)) == 1
        assert world.kept_results() == []

    play(scene)


def test_a_refused_result_is_forgotten(play: Play) -> None:
    async def scene(world: World) -> None:
        world.tracker.refuses = "round 1 is closed"
        await grant(world, a_lease(base=await world.store(), duration_s=4.0))
        await asyncio.sleep(60.0)
        assert len(world.tracker.results) == 1
        assert world.kept_results() == []

    play(scene)


def test_an_undelivered_result_survives_the_agent(play: Play) -> None:
    async def scene(world: World) -> None:
        world.tracker.deaf = True
        lease = a_lease(base=await world.store(), duration_s=4.0)
        await grant(world, lease)
        await asyncio.sleep(6.0)
        await world.kill_agent()
        world.tracker.deaf = False
        await world.start_agent()
        await asyncio.sleep(1.0)
        (result,) = world.tracker.of(lease.key)
        assert result.steps > 0
        assert world.kept_results() == []

    play(scene)


def test_a_new_incarnation_writes_its_own_inventory_and_knows_nothing_of_older_leases(play: Play) -> None:
    async def scene(world: World) -> None:
        await grant(world, a_lease(base=await world.store(), duration_s=60.0))
        await asyncio.sleep(2.0)
        await world.kill_agent()
        await world.start_agent()
        entry = await world.hub.connect("reader").table(NODES).get(NODE)
        assert entry is not None
        assert entry.record.incarnation == "i2"
        assert await revoke(world, "apple") == Revoked(ended=(), free=True)

    play(scene)


def test_a_drained_agent_hands_back_what_it_has_and_ends(play: Play) -> None:
    async def scene(world: World) -> None:
        lease = a_lease(base=await world.store(), duration_s=60.0)
        await grant(world, lease)
        await asyncio.sleep(5.0)
        await world.drain_agent()
        (result,) = world.tracker.of(lease.key)
        assert result.reason == "drained"
        assert 40 <= result.steps <= 50
        assert world.trainer.closed
        with pytest.raises(Unavailable):
            await grant(world, a_lease("pear"))

    play(scene)


def test_a_drained_agent_is_not_held_up_by_a_deaf_fork_or_a_tracker_that_is_away(play: Play) -> None:
    async def scene(world: World) -> None:
        world.tracker.deaf = True
        world.trainer.deaf.add("apple")
        await grant(world, a_lease(base=await world.store(), duration_s=60.0))
        await asyncio.sleep(5.0)
        asked = asyncio.get_running_loop().time()
        await world.drain_agent(5.0)
        assert asyncio.get_running_loop().time() - asked <= 5.2
        assert world.kept_results() == ["apple.1.0.0.msgpack"]

    play(scene)


def test_the_history_tells_when_a_lease_trained_and_at_what_rate(play: Play) -> None:
    async def scene(world: World) -> None:
        await grant(world, a_lease(base=await world.store(), duration_s=10.0))
        await asyncio.sleep(12.0)
        (started,), (ended,) = world.events("lease_started"), world.events("lease_ended")
        assert (started["job"], started["devices"], started["device_type"]) == ("apple", [0], "V100")
        assert ended["steps"] / ended["trained_s"] == pytest.approx(RATE, rel=0.02)
        assert (ended["nominal_rate"], ended["reason"]) == (RATE, "clock")

    play(scene)


def test_what_a_fork_prints_is_kept_by_job_round_and_fork(play: Play) -> None:
    async def scene(world: World) -> None:
        await grant(world, a_lease("apple", 7, fork=2, base=await world.store()))
        await asyncio.sleep(2.0)
        for number in range(500):
            world.trainer.say("p1", f"line {number} " + "x" * 40)
        await asyncio.sleep(1.0)
        lines = world.hub.log_lines
        assert {(line.job_id, line.round, line.fork, line.node) for line in lines} == {("apple", 7, 2, NODE)}
        assert all(len(line.text) <= 4096 for line in lines)
        text = "\n".join(line.text for line in lines).splitlines()
        assert [line.split()[1] for line in text] == [str(number) for number in range(500)]

    play(scene)


def test_a_flood_of_output_is_cut_with_a_note(play: Play) -> None:
    async def scene(world: World) -> None:
        await grant(world, a_lease(base=await world.store()))
        await asyncio.sleep(2.0)
        for _ in range(10_000):
            world.trainer.say("p1", "x" * 1000)
        await asyncio.sleep(1.0)
        text = "\n".join(line.text for line in world.hub.log_lines)
        assert len(text) < 300_000
        assert "lines left out" in text

    play(scene)


def test_grants_that_the_network_doubles_run_once(play: Play) -> None:
    async def scene(world: World) -> None:
        world.hub.network = lambda parcel: (0.0, 0.4) if parcel.subject.endswith((".grant", ".result")) else (0.0,)
        lease = a_lease(base=await world.store(), duration_s=5.0)
        await grant(world, lease)
        await asyncio.sleep(8.0)
        assert world.trainer.started == ["p1"]
        assert {result.steps for result in world.tracker.of(lease.key)} == {world.tracker.results[0].steps}

    play(scene)


def test_a_resent_grant_of_a_finished_lease_brings_its_result_again(play: Play) -> None:
    async def scene(world: World) -> None:
        lease = a_lease(base=await world.store(), duration_s=4.0)
        await grant(world, lease)
        await asyncio.sleep(6.0)
        assert (await grant(world, replace(lease, traceparent=""))).accepted
        await asyncio.sleep(1.0)
        first, second = world.tracker.of(lease.key)
        assert first == second

    play(scene)
