"""The users of a deployment on a real server: what each may do works, what it may not is refused by the server."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from hadare.model.devices import NodeInventory
from hadare.runtime.credentials import SEED_FILE, USERS_FILE, Owner, write
from hadare.runtime.embedded import EmbeddedNats, find_server
from hadare.runtime.nats_connection import NatsBackplane, NatsConfig, connect_nats
from hadare.wire import subjects

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PREFIX = "c1"


class SecuredNats(EmbeddedNats):
    """The embedded server with the users of a deployment."""

    def _config(self) -> str:
        return f'{super()._config()}include "users/nats/{USERS_FILE}"\n'

    def seed(self, user: str) -> Path:
        return self.directory / "users" / user / SEED_FILE


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNats]:
    directory = tmp_path_factory.mktemp("nats")
    write(directory / "users", PREFIX, ("n1", "n2"), Owner())
    server = SecuredNats(directory, sync_always=False)
    server.start_blocking()
    yield server
    server.stop()


SENTINEL = "nobody.may.publish.this"


async def complaints_about(server: SecuredNats, user: str, act: Callable[[Client], Awaitable[object]]) -> list[str]:
    """What the server says about ``act``. It complains in order, so a complaint about a sentinel ends the wait."""
    complaints: list[str] = []
    ended = asyncio.Event()

    async def complain(error: Exception) -> None:
        complaints.append(str(error).lower())
        if SENTINEL in complaints[-1]:
            ended.set()

    client = await nats.connect(
        server.url, nkeys_seed=str(server.seed(user)), error_cb=complain, allow_reconnect=False, connect_timeout=5
    )
    try:
        await act(client)
        await client.publish(SENTINEL, b"")
        await asyncio.wait_for(ended.wait(), 5)
    finally:
        await client.close()
    return [text for text in complaints if SENTINEL not in text]


@asynccontextmanager
async def backplane(server: SecuredNats, user: str, *, declare: bool = False) -> AsyncIterator[NatsBackplane]:
    config = NatsConfig(
        url=server.url, prefix=PREFIX, name=user, seed_file=server.seed(user), declare=declare, capacity_bytes=2**30
    )
    connection = await connect_nats(config)
    try:
        yield connection
    finally:
        await connection.close()


PUBLISH = [
    ("n1", "c1.node.v1.n1.heartbeat", True),
    ("n1", "c1.node.v1.n2.heartbeat", False),
    ("n1", "c1.node.v1.n2.grant", False),
    ("n1", "c1.tracker.v1.result", True),
    ("n1", "c1.tracker.v1.close", False),
    ("n1", "$KV.c1_nodes.n1", True),
    ("n1", "$KV.c1_nodes.n2", False),
    ("n1", "$KV.c1_progress.job.a", False),
    ("n1", "$JS.API.CONSUMER.CREATE.KV_c1_rounds.x", False),
    ("n1", "$O.c1_weights.C.job-a.3.0.0.x", True),
    ("n1", "$O.c1_code.C.job-a.x", False),
    ("n1", "$JS.API.STREAM.PURGE.OBJ_c1_weights", False),
    ("n1", "c1.api.v1.jobs.cancel", False),
    ("pricing", "$KV.c1_prices.now", True),
    ("pricing", "$KV.c1_rounds.leader", False),
    ("pricing", "$JS.API.STREAM.UPDATE.KV_c1_prices", False),
    ("allocator", "$KV.c1_rounds.leader", True),
    ("allocator", "c1.node.v1.n2.grant", True),
    ("allocator", "$KV.c1_jobs.job.a", False),
    ("jobtracker", "$KV.c1_progress.job.a", True),
    ("jobtracker", "$KV.c1_rounds.head", False),
    ("gateway", "$KV.c1_jobs.job.a", True),
    ("gateway", "$KV.c1_progress.job.a", False),
    ("gateway", "c1.node.v1.n1.grant", False),
    ("client", "c1.api.v1.jobs.submit", True),
    ("client", "$KV.c1_jobs.job.a", False),
    ("client", "$O.c1_weights.M.x", False),
    ("client", "$O.c1_code.M.x", True),
    ("client", "$JS.API.STREAM.PURGE.OBJ_c1_code", False),
    ("gateway", "$JS.API.STREAM.PURGE.OBJ_c1_code", True),
    ("n1", "$O.c1_code.M.x", False),
    ("client", "$JS.API.STREAM.DELETE.KV_c1_jobs", False),
    ("client", "hadare.api.v1.jobs.submit", False),
]


@pytest.mark.parametrize(("user", "subject", "allowed"), PUBLISH)
async def test_the_server_lets_a_user_publish_only_what_is_its_own(
    server: SecuredNats, user: str, subject: str, allowed: bool
) -> None:
    complaints = await complaints_about(server, user, lambda client: client.publish(subject, b""))
    assert [f'publish to "{subject.lower()}"' in text for text in complaints] == ([] if allowed else [True])


SUBSCRIBE = [
    ("n1", "c1.node.v1.n1.grant", True),
    ("n1", "c1.node.v1.*.grant", False),
    ("n1", "$O.c1_weights.C.job-a.v3.>", True),
    ("n1", "$O.c1_code.C.>", False),
    ("jobtracker", "$O.c1_weights.C.job-a.3.>", True),
    ("allocator", "$O.c1_weights.C.>", False),
    ("client", "$O.c1_weights.C.>", False),
    ("n1", "c1.node.v1.n1.coming", True),
    ("n1", "c1.node.v1.n2.coming", False),
    ("n1", "_INBOX_n1.x.>", True),
    ("n1", "_INBOX_n2.x.>", False),
    ("n1", "_INBOX_gateway.>", False),
    ("client", "c1.event.v1.job.>", True),
    ("client", "c1.api.v1.jobs.submit", False),
    ("client", ">", False),
    ("pricing", "c1.tracker.v1.result", False),
]


@pytest.mark.parametrize(("user", "subject", "allowed"), SUBSCRIBE)
async def test_the_server_lets_a_user_hear_only_what_is_meant_for_it(
    server: SecuredNats, user: str, subject: str, allowed: bool
) -> None:
    complaints = await complaints_about(server, user, lambda client: client.subscribe(subject))
    assert [f'subscription to "{subject.lower()}"' in text for text in complaints] == ([] if allowed else [True])


async def test_an_agent_registers_and_hands_weights_back_with_its_own_user(server: SecuredNats, tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(b"weights" * 1000)
    async with backplane(server, "gateway", declare=True), backplane(server, "n2") as agent:
        revision = await agent.table(subjects.NODES).put("n2", NodeInventory(node="n2", incarnation="i", devices=()))
        assert revision > 0
        ref = await agent.objects(subjects.WEIGHTS).put(weights, "fork")
        await agent.objects(subjects.WEIGHTS).get(ref, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == weights.read_bytes()


async def test_a_client_reads_weights_that_an_agent_wrote(server: SecuredNats, tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(b"other weights")
    async with backplane(server, "gateway", declare=True), backplane(server, "n1") as agent:
        ref = await agent.objects(subjects.WEIGHTS).put(weights, "fork")
    async with backplane(server, "client") as client:
        await client.objects(subjects.WEIGHTS).get(ref, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"other weights"


def test_the_deployments_server_configuration_is_valid(server: SecuredNats, tmp_path: Path) -> None:
    config = (ROOT / "deploy/nats/nats-server.conf").read_text()
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / USERS_FILE).write_bytes((server.directory / "users/nats" / USERS_FILE).read_bytes())
    (tmp_path / "nats-server.conf").write_text(config)
    checked = subprocess.run(
        [find_server(), "-t", "-c", tmp_path / "nats-server.conf"], capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    assert "sync_interval: always" in config
