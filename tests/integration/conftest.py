"""A NATS server of a test's own, which it may kill and restart; the session's server is in ``nats_fixtures``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from hadare.runtime.embedded import EmbeddedNats
from hadare.runtime.nats_connection import NatsBackplane, NatsConfig, connect_nats

OwnConnect = Callable[[str], Awaitable[NatsBackplane]]


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[EmbeddedNats]:
    server = EmbeddedNats(tmp_path / "nats")
    await server.start()
    yield server
    server.resume()
    server.stop()


@pytest.fixture
async def own_connect(own_server: EmbeddedNats) -> AsyncIterator[OwnConnect]:
    """``await own_connect("name")``: a backplane on the test's own server."""
    made: list[NatsBackplane] = []

    async def connect_as(name: str) -> NatsBackplane:
        config = NatsConfig(url=own_server.url, name=name, capacity_bytes=2**30)
        made.append(await connect_nats(config, timeout_s=20.0))
        return made[-1]

    yield connect_as
    for backplane in made:
        await backplane.close()
