"""What an agent says: heartbeats, reports, history, logs, and the words that it and its forks use."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path

from builders_leases import a_lease, a_ref
from hadare.machines import lease_commands as do
from hadare.model.devices import Heartbeat
from hadare.model.errors import Unavailable
from hadare.model.events import Event, LogLine
from hadare.model.leases import ForkResult, GangRank
from hadare.runtime.bus import Backplane
from hadare.runtime.memory import MemoryHub
from hadare.runtime.virtual import run_virtually
from hadare.training import protocol
from hadare.wire.subjects import HEARTBEAT
from hadare_node_agent.heartbeat import HeartThread, Vitals, beat
from hadare_node_agent.outgoing import History, Logs
from hadare_node_agent.tracing import Traces
from hadare_node_agent.words import order_for, outcome_of, progress_of


def vitals() -> Vitals:
    now = time.monotonic()
    return Vitals("north", "i1", now, now, {})


def test_a_loop_that_does_not_turn_for_long_has_no_heartbeat() -> None:
    beats: list[Heartbeat] = []

    async def scene() -> None:
        hub = MemoryHub()

        async def hear(heartbeat: Heartbeat) -> None:
            beats.append(heartbeat)

        await hub.connect("allocator").bus.subscribe(HEARTBEAT, hear)
        living = vitals()
        beating = asyncio.create_task(beat(hub.connect("agent").bus, living, 1.0, patience_s=15.0))
        await asyncio.sleep(2.5)
        living.turned_at -= 60.0
        await asyncio.sleep(5.0)
        assert len(beats) == 3
        living.turned_at = time.monotonic()
        await asyncio.sleep(2.0)
        beating.cancel()

    run_virtually(scene())
    assert [heartbeat.sequence for heartbeat in beats] == [1, 2, 3, 4, 5]


async def test_the_heart_beats_while_the_agents_loop_is_busy() -> None:
    """The thread has its own hub, loop and connection; the agent's loop is held up on purpose."""
    beats: list[float] = []
    enough = threading.Event()

    async def connect() -> Backplane:
        hub = MemoryHub()

        async def hear(_heartbeat: Heartbeat) -> None:
            beats.append(time.monotonic())
            if len(beats) >= 3:
                enough.set()

        await hub.connect("allocator").bus.subscribe(HEARTBEAT, hear)
        return hub.connect("agent")

    heart = HeartThread(connect, every_s=0.02, patience_s=30.0)
    heart.start(vitals())
    assert enough.wait(10.0), "the loop is blocked here, and the heart beats on"
    await heart.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "heart"]


async def test_a_heart_without_a_connection_tries_again() -> None:
    tried = threading.Event()

    async def connect() -> Backplane:
        tried.set()
        raise Unavailable("nobody there")

    heart = HeartThread(connect, every_s=0.02, patience_s=30.0)
    heart.start(vitals())
    assert tried.wait(10.0)
    await heart.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "heart"]


class BrokenJournal:
    """A journal that is away for its first questions."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.events: list[tuple[str, str]] = []
        self.lines: list[LogLine] = []

    async def append(self, event: Event, message_id: str) -> None:
        await self._answer()
        self.events.append((event.what, message_id))

    async def log(self, line: LogLine) -> None:
        await self._answer()
        self.lines.append(line)

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            self.away -= 1
            raise Unavailable("the stream is away")


def test_events_are_stored_in_order_each_under_its_own_name_while_the_journal_comes_and_goes() -> None:
    async def scene() -> None:
        journal = BrokenJournal(away=3)
        history = History(journal, "north", "i1")  # type: ignore[arg-type]
        running = asyncio.create_task(history.run())
        for what in ("one", "two", "one"):
            history.add(what, {})
        await history.flush(20.0)
        assert journal.events == [("one", "node.north.i1.1"), ("two", "node.north.i1.2"), ("one", "node.north.i1.3")]
        running.cancel()

    run_virtually(scene())


def test_a_flush_does_not_wait_for_ever() -> None:
    async def scene() -> None:
        history = History(BrokenJournal(away=10**9), "north", "i1")  # type: ignore[arg-type]
        running = asyncio.create_task(history.run())
        history.add("one", {})
        before = asyncio.get_running_loop().time()
        await history.flush(1.0)
        assert asyncio.get_running_loop().time() - before <= 1.0
        running.cancel()

    run_virtually(scene())


def test_long_lines_are_cut_to_what_a_message_takes() -> None:
    async def scene() -> None:
        journal = BrokenJournal(away=0)
        logs = Logs(journal, "north")  # type: ignore[arg-type]
        logs.add(a_lease().key, "x" * 9000)
        logs.add(a_lease().key, "the end")
        await logs.send()
        assert [len(line.text) for line in journal.lines] == [4000, 4000, 1008]
        assert journal.lines[-1].text.endswith("\nthe end")

    run_virtually(scene())


# --- words ----------------------------------------------------------------------------------------------------------

OUT = Path("out")


def assign(**changes: object) -> do.Assign:
    lease = replace(a_lease(), **changes)  # type: ignore[arg-type]
    return do.Assign(process="p1", lease_id=str(lease.key), lease=lease, base_path="base", left_s=7.5)


def test_a_train_lease_becomes_an_order_with_the_time_that_is_left() -> None:
    command = assign(quota=40, data_seed=9, schedule_from=0.25, schedule_to=0.5, evaluate_base=True)
    assert order_for(command, OUT, 12.5, 1.0) == protocol.Train(
        base="base",
        out="out",
        quota=40,
        remaining_s=7.5,
        data_seed=9,
        base_sha256="a" * 64,
        schedule_from=0.25,
        schedule_to=0.5,
        evaluate_base=True,
        nominal_rate=12.5,
    )


def test_the_ranks_of_a_gang_are_told_apart_and_know_their_gang_by_the_same_name() -> None:
    parts = [GangRank(rank=rank, shares=(3, 1), address="north:4000") for rank in (0, 1)]
    keys = [replace(a_lease().key, rank=part.rank) for part in parts]
    orders = [order_for(assign(key=k, gang=p), OUT, 0.0, 1.0) for k, p in zip(keys, parts, strict=True)]
    later = order_for(assign(key=keys[1], gang=parts[1], epoch=a_lease().epoch + 1), OUT, 0.0, 1.0)
    assert [order.gang for order in orders] == parts  # type: ignore[union-attr]
    names = {order.gang_name for order in orders}  # type: ignore[union-attr]
    assert len(names) == 1
    assert later.gang_name not in names  # type: ignore[union-attr]


def test_the_times_of_a_gang_reach_its_outcome() -> None:
    outcome = outcome_of(a_lease(), protocol.Done(reason="quota", update_s=0.2, exchange_s=0.01), {}, 0.0, None)
    assert (outcome.update_s, outcome.exchange_s) == (0.2, 0.01)


def test_a_device_without_a_rate_is_not_throttled() -> None:
    order = order_for(assign(), OUT, 0.0, 1.0)
    assert isinstance(order, protocol.Train)
    assert order.nominal_rate is None


def test_init_and_evaluate_leases_become_their_orders() -> None:
    assert order_for(assign(kind="init"), OUT, 0.0, 1.0) == protocol.Init(out="out", start="base")
    assert order_for(assign(kind="evaluate"), OUT, 0.0, 1.0) == protocol.Evaluate(base="base")


def test_a_forks_done_becomes_an_outcome() -> None:
    done = protocol.Done(
        steps=30,
        samples=960,
        updates=15,
        trained_s=3.0,
        throughput=10.0,
        loss=0.5,
        reason="clock",
        phases_ms={"save": 250.0},
    )
    outcome = outcome_of(a_lease(), done, {"accuracy": 0.9}, 11.0, OUT)
    assert (outcome.reason, outcome.steps, outcome.samples, outcome.updates) == ("clock", 30, 960, 15)
    assert (outcome.path, outcome.metrics, outcome.nominal_rate, outcome.idle_s) == ("out", {"loss": 0.5}, 11.0, 0.25)
    assert outcome.evaluation is not None
    assert (outcome.evaluation.version, outcome.evaluation.sha256) == (0, a_ref().sha256)


def test_a_fork_that_was_told_to_stop_ended_by_the_clock_as_far_as_it_knows() -> None:
    assert outcome_of(a_lease(), protocol.Done(reason="revoked"), {}, 0.0, None).reason == "clock"
    assert outcome_of(a_lease(), protocol.Done(reason="quota"), {}, 0.0, None).reason == "quota"
    assert outcome_of(a_lease(kind="init"), protocol.Done(), {}, 0.0, None).reason == "done"


def test_unknown_phases_of_a_fork_count_as_training() -> None:
    assert progress_of(protocol.Progress(phase="dreaming", steps=3), 2.0).phase == "training"
    assert progress_of(protocol.Progress(phase="evaluating"), 2.0).phase == "evaluating"


# --- traces ---------------------------------------------------------------------------------------------------------


def test_a_result_carries_the_context_of_its_lease_however_often_it_is_sent() -> None:
    parent = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    lease = a_lease(traceparent=parent)
    result = ForkResult(kind="train", key=lease.key, epoch=1, node="north", device_type="V100")
    traces = Traces()
    traces.begin("x", lease)
    assert traces.end("x", result).traceparent == parent
    assert traces.end("x", result).traceparent == parent


def test_a_recovered_result_keeps_the_context_that_it_has() -> None:
    result = ForkResult(
        kind="train", key=a_lease().key, epoch=1, node="north", device_type="V100", traceparent="00-known"
    )
    assert Traces().end("x", result) == result
