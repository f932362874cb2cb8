"""TLS and users together, with the configuration and the certificates of the deployment."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hadare.model.errors import Unavailable
from hadare.runtime.credentials import Owner, write
from hadare.runtime.embedded import EmbeddedNats
from hadare.runtime.nats_connection import NatsConfig, connect_nats

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
]

ROOT = Path(__file__).parents[2]


class DeployedNats(EmbeddedNats):
    """The server with the deployment's configuration files; only paths and the port are those of the test."""

    def _config(self) -> str:
        here = str(self.directory)
        plain = (ROOT / "deploy/nats/nats-server.conf").read_text()
        plain = plain.replace("0.0.0.0:4222", f"127.0.0.1:{self.port or -1}").replace("/data", f"{here}/data")
        plain = re.sub(r"^http: .*$", f'ports_file_dir: "{here}"', plain, flags=re.MULTILINE)
        (self.directory / "hadare.conf").write_text(plain)
        return (ROOT / "deploy/nats/nats-server-tls.conf").read_text().replace("/etc/nats/", f"{here}/")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedNats]:
    directory = tmp_path_factory.mktemp("nats")
    subprocess.run([ROOT / "deploy/tls/make-certificates", directory / "tls"], check=True)
    write(directory / "users", "hadare", (), Owner())
    (directory / "credentials").symlink_to(directory / "users/nats")
    server = DeployedNats(directory, sync_always=False)
    server.start_blocking()
    yield server
    server.stop()


def config(server: DeployedNats, authority: Path | None) -> NatsConfig:
    seed = server.directory / "users/gateway/user.nk"
    return NatsConfig(url=server.url, name="gateway", seed_file=seed, tls_ca=authority, capacity_bytes=2**30)


async def test_a_service_speaks_tls_with_its_own_user(server: DeployedNats) -> None:
    backplane = await connect_nats(config(server, server.directory / "tls/ca.pem"))
    await backplane.link.flush()
    await backplane.close()


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority that has not signed the server's certificate."""
    directory = tmp_path_factory.mktemp("stranger")
    subprocess.run([ROOT / "deploy/tls/make-certificates", directory], check=True)
    return directory / "ca.pem"


async def test_a_server_that_cannot_prove_who_it_is_gets_no_connection(server: DeployedNats, stranger: Path) -> None:
    with pytest.raises(Unavailable, match="could be reached"):
        await connect_nats(config(server, stranger), timeout_s=1.5)


async def test_a_client_without_an_authority_gets_no_connection(server: DeployedNats) -> None:
    with pytest.raises(Unavailable, match="could be reached"):
        await connect_nats(config(server, None), timeout_s=1.5)


def test_certificates_that_exist_are_kept(server: DeployedNats) -> None:
    before = (server.directory / "tls/server.pem").read_bytes()
    subprocess.run([ROOT / "deploy/tls/make-certificates", server.directory / "tls", "example.org"], check=True)
    assert (server.directory / "tls/server.pem").read_bytes() == before
