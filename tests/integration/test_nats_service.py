"""The frame of a service, as a process: how it ends, and what it says then."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hadare.runtime.embedded import EmbeddedNats
from hadare.runtime.service import Exit

pytestmark = pytest.mark.integration

SERVICE = """
import asyncio
from dataclasses import dataclass

from hadare.runtime import telemetry
from hadare.runtime.service import ServiceConfig, run

@dataclass(frozen=True, kw_only=True)
class Config(ServiceConfig):
    behaviour: str = "wait"

async def main(backplane, config):
    print("ready", flush=True)
    try:
        if config.behaviour == "fail":
            raise RuntimeError("a bug")
        if config.behaviour == "return":
            return
        if config.behaviour == "lose":
            backplane.link.declare_lost("as the test wanted")
        while True:
            try:
                with telemetry.span("waiting"):
                    await asyncio.sleep(600)
            except asyncio.CancelledError:
                if config.behaviour != "ignore":
                    raise
    finally:
        print("cleaned up", flush=True)

run("tester", Config, main)
"""


class Running:
    """A service process and what it printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def ready(self) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(20):
            assert await self.process.stdout.readline() == b"ready\n"

    async def end(self) -> tuple[int, str, list[dict[str, Any]]]:
        async with asyncio.timeout(30):
            out, err = await self.process.communicate()
        lines = [json.loads(line) for line in err.decode().splitlines() if line.startswith("{")]
        return self.process.returncode or 0, out.decode() + err.decode(), lines


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start(own_server: EmbeddedNats, tmp_path: Path) -> AsyncIterator[Start]:
    script = tmp_path / "service.py"
    script.write_text(SERVICE)
    started: list[asyncio.subprocess.Process] = []

    async def start_one(behaviour: str = "wait", **environ: str) -> Running:
        settings = {"HADARE_NATS_URL": own_server.url, "HADARE_BEHAVIOUR": behaviour, "HADARE_CAPACITY_GB": "1"}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(script),
            env={**os.environ, **settings, **environ},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        started.append(process)
        return Running(process)

    yield start_one
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_in_order(start: Start, number: signal.Signals) -> None:
    service = await start()
    await service.ready()
    service.process.send_signal(number)
    status, text, _ = await service.end()
    assert (status, "cleaned up" in text) == (Exit.STOPPED, True)


async def test_a_bug_ends_it_with_its_traceback_in_the_log(start: Start) -> None:
    status, _, lines = await (await start("fail")).end()
    assert status == Exit.FAILED
    failed = next(line for line in lines if line["event"] == "service failed")
    assert "RuntimeError: a bug" in failed["exception"]
    assert failed["service"] == "tester"


async def test_a_main_that_returns_ends_it_well(start: Start) -> None:
    assert (await (await start("return")).end())[0] == Exit.STOPPED


async def test_a_lost_bus_ends_it_so_that_it_is_restarted(start: Start) -> None:
    status, text, lines = await (await start("lose")).end()
    assert (status, "cleaned up" in text) == (Exit.DISCONNECTED, True)
    assert any(line.get("reason") == "as the test wanted" for line in lines)


async def test_a_main_that_ignores_its_end_is_left_behind_in_time(start: Start) -> None:
    service = await start("ignore", HADARE_STOP_TIMEOUT_S="0.5")
    await service.ready()
    service.process.terminate()
    assert (await service.end())[0] == Exit.STUCK


async def test_it_ends_while_the_server_is_away(start: Start, own_server: EmbeddedNats) -> None:
    service = await start()
    await service.ready()
    own_server.kill()
    loop = asyncio.get_running_loop()
    began = loop.time()
    service.process.terminate()
    assert (await service.end())[0] == Exit.STOPPED
    assert loop.time() - began < 8


async def test_it_survives_a_restart_of_the_server(start: Start, own_server: EmbeddedNats) -> None:
    service = await start()
    await service.ready()
    own_server.kill()
    await own_server.start()
    assert service.process.returncode is None
    service.process.terminate()
    assert (await service.end())[0] == Exit.STOPPED


async def test_bad_settings_are_all_named(start: Start) -> None:
    status, text, _ = await (await start(HADARE_REPLICAS="many", HADARE_LOG_LEVEL="loud")).end()
    assert status == Exit.BAD_CONFIG
    assert "HADARE_REPLICAS='many'" in text
    assert "HADARE_LOG_LEVEL='loud'" in text


async def test_a_server_that_is_not_there_is_named(start: Start) -> None:
    status, text, _ = await (await start(HADARE_NATS_URL="nats://127.0.0.1:1", HADARE_CONNECT_TIMEOUT_S="0.5")).end()
    assert status == Exit.UNREACHABLE
    assert "nats://127.0.0.1:1" in text


async def test_its_spans_are_written_before_it_is_gone(start: Start, tmp_path: Path) -> None:
    service = await start(HADARE_OTLP_ENDPOINT=f"file:{tmp_path / 'spans'}")
    await service.ready()
    service.process.terminate()
    await service.end()
    assert names_of_spans(tmp_path / "spans") == ["waiting"]


def names_of_spans(folder: Path) -> list[str]:
    return [json.loads(line)["name"] for path in folder.iterdir() for line in path.read_text().splitlines()]
