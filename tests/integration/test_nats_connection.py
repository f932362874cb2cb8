from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from hadare.model.errors import Broken, Unavailable
from hadare.runtime.embedded import EmbeddedNats
from hadare.runtime.nats_connection import NatsConfig, connect_nats
from hadare.runtime.nats_streams import SHARES
from nats_fixtures import Connect

pytestmark = pytest.mark.integration


class PlainNats(EmbeddedNats):
    """Without JetStream."""

    def _config(self) -> str:
        return super()._config().partition("jetstream {")[0]


class GuardedNats(EmbeddedNats):
    """With a user and a password."""

    def _config(self) -> str:
        return super()._config() + 'authorization { user: "hadare", password: "secret" }\n'


class EncryptedNats(EmbeddedNats):
    """With TLS, by the certificate that ``a_certificate`` made."""

    def _config(self) -> str:
        here = self.directory.absolute()
        return super()._config() + f'tls {{ cert_file: "{here}/cert.pem", key_file: "{here}/key.pem" }}\n'


def a_certificate(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost "
        "-addext subjectAltName=IP:127.0.0.1,DNS:localhost -keyout key.pem -out cert.pem"
    )
    subprocess.run(command.split(), cwd=directory, check=True, capture_output=True)
    return directory / "cert.pem"


def a_closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_a_server_that_is_not_there_is_named_with_what_to_do() -> None:
    url = f"nats://127.0.0.1:{a_closed_port()}"
    with pytest.raises(Unavailable) as error:
        await connect_nats(NatsConfig(url=url), timeout_s=1.0)
    assert url in str(error.value)
    assert "HADARE_NATS_URL" in str(error.value)


async def test_a_server_without_jetstream_is_told_apart(tmp_path: Path) -> None:
    server = PlainNats(tmp_path)
    await server.start()
    try:
        with pytest.raises(Unavailable, match="JetStream"):
            await connect_nats(NatsConfig(url=server.url), timeout_s=1.0)
    finally:
        server.stop()


async def test_a_wrong_password_is_said_and_the_right_one_connects(tmp_path: Path) -> None:
    server = GuardedNats(tmp_path)
    await server.start()
    try:
        with pytest.raises(Unavailable, match=r"(?i)authorization"):
            await connect_nats(NatsConfig(url=server.url, user="hadare", password="wrong"), timeout_s=1.0)
        backplane = await connect_nats(NatsConfig(url=server.url, user="hadare", password="secret"), timeout_s=10.0)
        await backplane.close()
    finally:
        server.stop()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_tls_connects_with_the_right_authority_only(tmp_path: Path) -> None:
    server = EncryptedNats(tmp_path / "server")
    authority = a_certificate(server.directory)
    stranger = a_certificate(tmp_path / "stranger")
    await server.start()
    try:
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            await connect_nats(NatsConfig(url=server.url, tls_ca=stranger), timeout_s=1.0)
        backplane = await connect_nats(NatsConfig(url=server.url, tls_ca=authority), timeout_s=10.0)
        await backplane.close()
    finally:
        server.stop()


@pytest.mark.parametrize(
    "wrong", [{"prefix": "Has Spaces"}, {"seed_file": Path("/does/not/exist")}, {"tls_ca": Path("/does/not/exist")}]
)
async def test_bad_settings_are_broken_before_anything_is_tried(wrong: dict[str, object]) -> None:
    with pytest.raises(Broken):
        await connect_nats(NatsConfig(**wrong), timeout_s=1.0)  # type: ignore[arg-type]


async def test_declaring_twice_at_once_agrees(connect: Connect) -> None:
    backplanes = await asyncio.gather(*(connect(f"c{n}") for n in range(5)))
    assert await backplanes[0].journal.read("job") == []


async def test_a_changed_setting_is_carried_over_to_the_stream_that_exists(connect: Connect, prefix: str) -> None:
    backplane = await connect("one")
    held = (await backplane.link.api(f"STREAM.INFO.{prefix}_events"))["config"]
    await backplane.link.api(f"STREAM.UPDATE.{prefix}_events", {**held, "max_age": 3600 * 10**9})
    await connect("two")
    assert (await backplane.link.api(f"STREAM.INFO.{prefix}_events"))["config"]["max_age"] == held["max_age"]


async def test_a_limit_that_an_operator_set_stays(connect: Connect, prefix: str) -> None:
    backplane = await connect("one")
    held = (await backplane.link.api(f"STREAM.INFO.{prefix}_logs"))["config"]
    await backplane.link.api(f"STREAM.UPDATE.{prefix}_logs", {**held, "max_bytes": 50 * 2**20})
    await connect("two")
    assert (await backplane.link.api(f"STREAM.INFO.{prefix}_logs"))["config"]["max_bytes"] == 50 * 2**20


async def test_every_stream_is_bounded_and_on_disk(connect: Connect, prefix: str) -> None:
    backplane = await connect("one")
    listed = await backplane.link.api("STREAM.LIST", {"offset": 0})
    ours = [stream["config"] for stream in listed["streams"] if f"{prefix}_" in stream["config"]["name"]]
    assert len(ours) == len(SHARES)
    assert all(config["max_bytes"] > 0 and config["storage"] == "file" for config in ours)


async def test_a_server_with_less_room_than_asked_for_still_gets_its_streams(tmp_path: Path) -> None:
    class SmallNats(EmbeddedNats):
        def _config(self) -> str:
            return super()._config().replace("4TB", "1GB")

    server = SmallNats(tmp_path)
    await server.start()
    try:
        backplane = await connect_nats(NatsConfig(url=server.url, capacity_bytes=4 * 2**30), timeout_s=10.0)
        assert await backplane.objects("weights").names() == []
        await backplane.close()
    finally:
        server.stop()


async def test_closing_says_closed(connect: Connect) -> None:
    backplane = await connect("one")
    await backplane.close()
    assert await backplane.closed() == "closed"


async def test_two_clusters_share_a_server_without_seeing_each_other(connect: Connect, prefix: str) -> None:
    from hadare.model.devices import NodeState, NodeStatus
    from hadare.wire.subjects import NODE_STATES

    mine = await connect("one")
    theirs = await connect("two", prefix=f"{prefix}_x")
    await mine.table(NODE_STATES).put("n1", NodeStatus(node="n1", state=NodeState.READY))
    assert await theirs.table(NODE_STATES).entries() == []
    for stream in (await mine.link.api("STREAM.NAMES", {"offset": 0}))["streams"]:
        if f"{prefix}_x_" in stream:
            await mine.link.api(f"STREAM.DELETE.{stream}")
