from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hadare.model.devices import NodeWish
from hadare.model.errors import Broken, Unavailable
from hadare.runtime.embedded import EmbeddedNats
from hadare.runtime.nats_connection import NatsConfig, connect_nats
from hadare.wire.subjects import NODE_WISHES

pytestmark = pytest.mark.integration


async def test_what_was_acknowledged_survives_a_crash(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path)
    await server.start()
    try:
        backplane = await connect_nats(NatsConfig(url=server.url, capacity_bytes=2**30))
        await backplane.table(NODE_WISHES).put("n1", NodeWish(node="n1", drain=True))
        server.kill()
        await server.start()
        assert [entry.name for entry in await backplane.table(NODE_WISHES).entries()] == ["n1"]
        await backplane.close()
    finally:
        server.stop()


async def test_the_port_stays_the_same_over_restarts(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path)
    first = await server.start()
    server.stop()
    try:
        assert await server.start() == first
    finally:
        server.stop()


async def test_it_listens_on_the_loopback_interface_alone(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path)
    await server.start()
    try:
        listening = [c.laddr.ip for c in psutil.Process(server.pid).net_connections("tcp") if c.status == "LISTEN"]
        assert set(listening) == {"127.0.0.1"}
    finally:
        server.stop()


async def test_stopping_twice_or_before_the_start_is_no_error(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path)
    server.stop()
    await server.start()
    assert server.running
    server.stop()
    server.stop()
    assert not server.running


async def test_starting_twice_is_broken(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path)
    await server.start()
    try:
        with pytest.raises(Broken):
            await server.start()
    finally:
        server.stop()


async def test_a_port_that_is_taken_is_said_with_the_servers_words(tmp_path: Path) -> None:
    one = EmbeddedNats(tmp_path / "one")
    await one.start()
    try:
        with pytest.raises(Unavailable, match="address already in use"):
            await EmbeddedNats(tmp_path / "two", port=one.port).start()
    finally:
        one.stop()


async def test_a_url_before_the_start_is_broken(tmp_path: Path) -> None:
    with pytest.raises(Broken):
        _ = EmbeddedNats(tmp_path).url


OWNER = """
import sys, time
from pathlib import Path
from hadare.runtime.embedded import EmbeddedNats
server = EmbeddedNats(Path(sys.argv[1]))
server.start_blocking()
print(server.pid, flush=True)
time.sleep(600)
"""


def test_it_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        server = psutil.Process(int(owner.stdout.readline()))
        assert server.is_running()
    finally:
        owner.kill()
        owner.communicate()
    _, alive = psutil.wait_procs([server], timeout=10)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


async def test_its_files_stay_in_its_directory(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path / "cluster")
    await server.start()
    server.stop()
    assert names_in(tmp_path) == ["cluster"]
    assert "jetstream" in names_in(tmp_path / "cluster")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
