"""The health check of a container: the service's own loop has to answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hadare.model.errors import Unavailable
from hadare.runtime.bus import Identity
from hadare.runtime.embedded import EmbeddedNats
from hadare.runtime.health import answers
from hadare.runtime.nats_connection import connect_nats
from hadare.runtime.service import ServiceConfig

pytestmark = pytest.mark.integration

HERE = socket.gethostname()
PRICING = Identity("hadare-pricing", "1.0.0", "prices")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceConfig]:
    server = EmbeddedNats(tmp_path_factory.mktemp("nats"), sync_always=False)
    yield ServiceConfig(nats_url=server.start_blocking(), nats_declare=False)
    server.stop()


async def test_a_service_that_answers_is_healthy_until_it_stops(config: ServiceConfig) -> None:
    backplane = await connect_nats(config.nats("pricing"))
    served = await backplane.bus.serve(PRICING, [])
    assert await answers(config, "hadare-pricing", HERE)
    await served.stop()
    assert not await answers(config, "hadare-pricing", HERE, limit_s=0.2)
    await backplane.close()


@pytest.mark.parametrize(("service", "host"), [("hadare-pricing", "elsewhere"), ("hadare-gateway", HERE)])
async def test_another_instance_does_not_make_a_service_healthy(config: ServiceConfig, service: str, host: str) -> None:
    backplane = await connect_nats(config.nats("pricing"))
    await backplane.bus.serve(PRICING, [])
    assert not await answers(config, service, host, limit_s=0.2)
    await backplane.close()


async def test_a_server_that_does_not_answer_is_said_so(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path, sync_always=False)
    url = server.start_blocking()
    server.stop()
    with pytest.raises(Unavailable, match="no NATS server could be reached"):
        await answers(ServiceConfig(nats_url=url), "hadare-pricing", HERE, limit_s=0.5)
