import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hadare.local import stuck
from hadare.local.stuck import until_stuck

SICK = '{"status":"unavailable","error":"JetStream stream write error: no space left on device"}'


class Server:
    """Answers health checks with ``body``."""

    def __init__(self) -> None:
        self.body = '{"status":"ok"}'
        self.asked = asyncio.Semaphore(0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + self.body.encode())
        self.asked.release()
        writer.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    (tmp_path / "nats-server_1.ports").write_text(json.dumps({"monitoring": [f"http://127.0.0.1:{port}"]}))
    yield server
    listening.close()


async def test_a_server_that_is_well_is_asked_again_and_again(server: Server, tmp_path: Path) -> None:
    waiting = asyncio.create_task(until_stuck(tmp_path, every_s=0.001))
    for _ in range(3):
        await server.asked.acquire()
    assert not waiting.done()
    waiting.cancel()


async def test_a_write_error_is_what_it_waits_for(server: Server, tmp_path: Path) -> None:
    server.body = SICK
    assert await until_stuck(tmp_path, every_s=0.001) == SICK


async def test_while_there_is_no_room_a_new_start_would_not_help(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.body = SICK
    monkeypatch.setattr(stuck, "_ROOM_BYTES", 2**62)
    waiting = asyncio.create_task(until_stuck(tmp_path, every_s=0.001))
    for _ in range(3):
        await server.asked.acquire()
    assert not waiting.done()
    monkeypatch.setattr(stuck, "_ROOM_BYTES", 1)
    assert await waiting == SICK


async def test_what_a_killed_server_left_is_not_asked(server: Server, tmp_path: Path) -> None:
    """Its port may be another program's by now."""
    gone = tmp_path / "nats-server_0.ports"
    gone.write_text(json.dumps({"monitoring": ["http://127.0.0.1:1"]}))
    newest = tmp_path / "nats-server_2.ports"
    newest.write_text((tmp_path / "nats-server_1.ports").read_text())
    server.body = SICK
    assert await until_stuck(tmp_path, every_s=0.001) == SICK


async def test_a_server_that_is_away_is_no_concern_of_this(tmp_path: Path) -> None:
    (tmp_path / "nats-server_1.ports").write_text(json.dumps({"monitoring": ["http://127.0.0.1:1"]}))
    waiting = asyncio.create_task(until_stuck(tmp_path, every_s=0.001))
    done, _ = await asyncio.wait({waiting}, timeout=0.1)
    assert not done
    waiting.cancel()
