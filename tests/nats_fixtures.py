"""A real NATS server for tests: a container where a Docker daemon answers, else the embedded server.

``HADARE_REQUIRE_DOCKER=1`` makes a missing daemon or image a failure. One server a session; each test has a prefix of
its own, and its streams are gone after it.
"""

from __future__ import annotations

import gc
import os
import uuid
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from hadare.runtime.embedded import EmbeddedNats
from hadare.runtime.nats_connection import NatsBackplane, NatsConfig, connect_nats

IMAGE = "nats:2.15-alpine"
RYUK_IMAGES = "testcontainers/ryuk"

Connect = Callable[..., Awaitable[NatsBackplane]]


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the session's server, with JetStream."""
    required = os.environ.get("HADARE_REQUIRE_DOCKER") == "1"
    missing = docker_misses()
    if not missing:
        yield from _container()
        return
    if required:
        pytest.fail(f"HADARE_REQUIRE_DOCKER=1, but {missing}")
    server = EmbeddedNats(tmp_path_factory.mktemp("nats"), sync_always=False)
    yield server.start_blocking()
    server.stop()


@pytest.fixture
def prefix() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def connect(nats_url: str, prefix: str) -> AsyncIterator[Connect]:
    """``await connect("name")``: a backplane under the test's prefix, closed after the test."""
    made: list[NatsBackplane] = []

    async def connect_as(name: str, **overrides: Any) -> NatsBackplane:
        settings = {"url": nats_url, "prefix": prefix, "name": name, "capacity_bytes": 2**30, **overrides}
        made.append(await connect_nats(NatsConfig(**settings), timeout_s=20.0))
        return made[-1]

    yield connect_as
    if made:
        cleaner = await connect_nats(NatsConfig(url=nats_url, prefix=prefix, name="cleaner", declare=False))
        made.append(cleaner)
        await drop_streams(cleaner, prefix)
    for backplane in made:
        await backplane.close()


@pytest.fixture
async def backplane(connect: Connect) -> NatsBackplane:
    return await connect("test")


async def drop_streams(backplane: NatsBackplane, prefix: str) -> None:
    listed = await backplane.link.api("STREAM.NAMES", {"offset": 0})
    for name in listed.get("streams") or []:
        if name.removeprefix("KV_").removeprefix("OBJ_").startswith(f"{prefix}_"):
            await backplane.link.api(f"STREAM.DELETE.{name}")


def docker_misses() -> str:
    """What is missing for a container of ``IMAGE``, in words; '' if nothing is."""
    with warnings.catch_warnings():
        # docker-py leaves its socket open where no daemon answers.
        warnings.simplefilter("ignore", ResourceWarning)
        missing = _docker_misses()
        gc.collect()
    return missing


def _docker_misses() -> str:
    import docker
    from docker.errors import DockerException, ImageNotFound

    try:
        client = docker.from_env(timeout=5)
    except DockerException:
        return "no Docker daemon answers"
    try:
        client.ping()
        if not client.images.list(name=RYUK_IMAGES):
            # It may not be to be had, and a container of ours is removed by its fixture anyway.
            os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
        try:
            client.images.get(IMAGE)
        except ImageNotFound:
            client.api.pull(IMAGE)
    except (DockerException, OSError) as error:
        return f"{IMAGE} cannot be had: {error}"
    finally:
        client.close()
    return ""


def _container() -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.wait_strategies import HttpWaitStrategy

    ready = HttpWaitStrategy(8222, "/healthz?js-enabled-only=true").for_status_code(200)
    container = DockerContainer(IMAGE).with_command("-js -sd /data -m 8222").with_exposed_ports(4222, 8222)
    with container.waiting_for(ready) as server:
        yield f"nats://{server.get_container_host_ip()}:{server.get_exposed_port(4222)}"
