"""The server is killed, restarted, frozen, emptied: what the backplane promises must hold."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from hadare.model.devices import Heartbeat, NodeState, NodeStatus
from hadare.model.errors import Broken, Unavailable
from hadare.model.events import Event
from hadare.model.rounds import CloseRequest
from hadare.runtime import nats_link, nats_objects
from hadare.runtime.embedded import EmbeddedNats
from hadare.runtime.nats_connection import NatsBackplane
from hadare.wire.subjects import CLOSE_ROUND, HEARTBEAT, NODE_STATES, WEIGHTS, Topic

pytestmark = pytest.mark.integration

OwnConnect = Callable[[str], Awaitable[NatsBackplane]]


def a_status(reason: str) -> NodeStatus:
    return NodeStatus(node="n1", state=NodeState.READY, reason=reason)


async def test_a_watch_loses_nothing_over_a_crash_of_the_server(
    own_server: EmbeddedNats, own_connect: OwnConnect
) -> None:
    writer, watcher = await own_connect("writer"), await own_connect("watcher")
    table = writer.table(NODE_STATES)
    seen: list[str] = []
    markers = 0

    async def write() -> None:
        for number in range(40):
            await table.put(f"n{number}", a_status(str(number)))
            if number == 15:
                own_server.kill()
                await own_server.start()

    async with aclosing(watcher.table(NODE_STATES).watch()) as watch:
        markers += (await anext(watch)).caught_up
        writing = asyncio.create_task(write())
        async with asyncio.timeout(30):
            while len(seen) < 40:
                change = await anext(watch)
                markers += change.caught_up
                seen.append(change.name)
        await writing
    assert seen == [f"n{number}" for number in range(40)]
    assert markers == 1


async def test_a_watch_resumes_within_seconds_of_a_restart(own_server: EmbeddedNats, own_connect: OwnConnect) -> None:
    writer, watcher = await own_connect("writer"), await own_connect("watcher")
    loop = asyncio.get_running_loop()
    async with aclosing(watcher.table(NODE_STATES).watch()) as watch:
        await anext(watch)
        own_server.kill()
        await own_server.start()
        restarted = loop.time()
        await writer.table(NODE_STATES).put("n1", a_status("after"))
        async with asyncio.timeout(15):
            assert (await anext(watch)).name == "n1"
    assert loop.time() - restarted < 5.0


async def test_a_deletion_during_an_outage_of_the_watcher_is_reported(
    own_server: EmbeddedNats, own_connect: OwnConnect
) -> None:
    writer, watcher = await own_connect("writer"), await own_connect("watcher")
    table = writer.table(NODE_STATES)
    await table.put("n1", a_status("here"))
    async with aclosing(watcher.table(NODE_STATES).watch()) as watch:
        assert (await anext(watch)).name == "n1"
        assert (await anext(watch)).caught_up
        own_server.kill()
        await own_server.start()
        await table.delete("n1")
        async with asyncio.timeout(15):
            change = await anext(watch)
    assert (change.name, change.entry) == ("n1", None)


async def test_appends_over_a_crash_are_stored_exactly_once(own_server: EmbeddedNats, own_connect: OwnConnect) -> None:
    journal = (await own_connect("writer")).journal

    async def append(number: int) -> None:
        await journal.append(Event(kind="job", id="j1", what="stepped", data={"n": number}), f"m{number}")

    async def crash() -> None:
        own_server.kill()
        await own_server.start()

    await append(0)
    await asyncio.gather(crash(), *(append(number) for number in range(1, 60)))
    found = [stored.event.data["n"] for stored in await journal.read("job")]
    assert sorted(found) == list(range(60))


async def test_a_write_whose_acknowledgement_was_late_is_recognised_as_our_own(
    own_server: EmbeddedNats, own_connect: OwnConnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = (await own_connect("writer")).table(NODE_STATES)
    revision = await table.create("n1", a_status("first"))
    monkeypatch.setattr(nats_link, "STORE_TIMEOUT_S", 0.2)
    own_server.pause()
    updating = asyncio.create_task(table.update("n1", a_status("second"), revision))
    await asyncio.wait({updating}, timeout=1.0)  # several attempts wait in the socket of the frozen server
    own_server.resume()
    assert await updating == revision + 1
    entry = await table.get("n1")
    assert entry is not None
    assert (entry.revision, entry.record.reason) == (revision + 1, "second")


async def test_subscriptions_live_on_after_a_restart(own_server: EmbeddedNats, own_connect: OwnConnect) -> None:
    publisher, subscriber = await own_connect("publisher"), await own_connect("subscriber")
    heard: asyncio.Queue[Heartbeat] = asyncio.Queue()

    async def hear(message: Heartbeat) -> None:
        heard.put_nowait(message)

    await subscriber.bus.subscribe(HEARTBEAT, hear)
    own_server.kill()
    await own_server.start()
    async with asyncio.timeout(20):
        await publisher.link.until_connected(10)
        await subscriber.link.until_connected(10)
        await subscriber.link.flush()
        await publisher.bus.publish(HEARTBEAT, Heartbeat(node="n1", incarnation="i", sequence=1), node="n1")
        assert (await heard.get()).sequence == 1


@pytest.mark.parametrize("moment_s", [0.02, 0.2])
async def test_an_upload_over_a_crash_arrives_whole(
    own_server: EmbeddedNats,
    own_connect: OwnConnect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment_s: float,
) -> None:
    monkeypatch.setattr(nats_objects, "STALL_S", 3.0)
    objects = (await own_connect("writer")).objects(WEIGHTS)
    source = tmp_path / "source"
    source.write_bytes(random.Random(1).randbytes(40 * 2**20))
    uploading = asyncio.create_task(objects.put(source, "a"))
    await asyncio.wait({uploading}, timeout=moment_s)
    own_server.kill()
    await own_server.start()
    ref = await uploading
    await objects.get(ref, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


async def test_a_download_over_a_crash_arrives_whole(
    own_server: EmbeddedNats, own_connect: OwnConnect, tmp_path: Path
) -> None:
    objects = (await own_connect("reader")).objects(WEIGHTS)
    source = tmp_path / "source"
    source.write_bytes(random.Random(1).randbytes(60 * 2**20))
    ref = await objects.put(source, "a")
    downloading = asyncio.create_task(objects.get(ref, tmp_path / "copy"))
    await asyncio.wait({downloading}, timeout=0.05)
    own_server.kill()
    await own_server.start()
    await downloading
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


async def test_a_watch_of_a_stream_that_lost_its_past_is_broken(
    own_server: EmbeddedNats, own_connect: OwnConnect
) -> None:
    """Somebody wiped the server's disk: going on as if nothing had happened would mix two histories."""
    watcher = await own_connect("watcher")
    for number in range(3):
        await watcher.table(NODE_STATES).put("n1", a_status(str(number)))
    async with aclosing(watcher.table(NODE_STATES).watch()) as watch:
        await anext(watch)
        await anext(watch)
        own_server.kill()
        shutil.rmtree(own_server.directory / "jetstream")
        await own_server.start()
        with pytest.raises(Broken):
            async with asyncio.timeout(20):
                await anext(watch)


async def test_a_client_whose_read_loop_died_is_declared_lost(
    own_connect: OwnConnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nats-py goes on saying that it is connected; only a ping tells."""
    monkeypatch.setattr(nats_link, "_WATCH_EVERY_S", 0.05)
    backplane = await own_connect("zombie")
    backplane.link.client._reading_task.cancel()
    async with asyncio.timeout(10):
        reason = await backplane.closed()
    assert backplane.link.client.is_connected
    assert "ping" in reason


async def test_a_connection_that_the_server_ends_for_good_is_reported(own_connect: OwnConnect) -> None:
    """Any -ERR besides permissions ends nats-py's client in silence, reconnects or not."""
    backplane = await own_connect("victim")
    await backplane.link.client._process_err("'user authentication expired'")
    async with asyncio.timeout(10):
        assert "expired" in await backplane.closed()


async def test_two_thousand_heartbeats_during_an_outage_do_not_end_the_publisher(
    own_server: EmbeddedNats, own_connect: OwnConnect
) -> None:
    publisher = await own_connect("publisher")
    own_server.kill()
    for sequence in range(2000):
        await publisher.bus.publish(HEARTBEAT, Heartbeat(node="n1", incarnation="i", sequence=sequence), node="n1")
    await own_server.start()
    await publisher.link.until_connected(10)
    await publisher.table(NODE_STATES).put("n1", a_status("alive"))


async def test_a_pong_that_comes_after_its_asker_has_given_up_deafens_nobody(
    own_server: EmbeddedNats, own_connect: OwnConnect
) -> None:
    backplane = await own_connect("patient")
    own_server.pause()
    async with asyncio.timeout(10):
        while psutil.Process(own_server.pid).status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.01)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await backplane.link.flush(timeout_s=0.05)
    own_server.resume()
    await backplane.link.flush(timeout_s=5.0)
    async with asyncio.timeout(5):
        await backplane.table(NODE_STATES).put("n1", a_status("heard"))


async def test_a_question_that_was_under_way_when_the_server_died_is_given_up_at_once(
    own_server: EmbeddedNats, own_connect: OwnConnect
) -> None:
    """Its answer cannot come any more; whoever asked can ask again as soon as the server is back."""
    asker, other = await own_connect("asker"), await own_connect("other")
    heard = asyncio.Event()

    async def hear(_: CloseRequest) -> None:
        heard.set()  # and never answers

    await other.bus.subscribe(Topic(CLOSE_ROUND.template, CloseRequest), hear)
    asking = asyncio.create_task(asker.bus.ask(CLOSE_ROUND, CloseRequest(round=1, epoch=1), timeout_s=600.0))
    await heard.wait()
    own_server.kill()
    await own_server.start()
    with pytest.raises(Unavailable, match="lost while"):
        async with asyncio.timeout(30):
            await asking
    await asker.table(NODE_STATES).put("n1", a_status("asked after it"))
