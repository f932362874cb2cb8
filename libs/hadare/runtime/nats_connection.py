"""How a process gets its backplane over NATS, and what it needs to know for it."""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import nats.errors
import structlog
from nats.aio.client import Client

from hadare.model.errors import Broken, Unavailable
from hadare.runtime.bus import Objects
from hadare.runtime.fsspec_objects import FsspecObjects
from hadare.runtime.nats_bus import NatsBus
from hadare.runtime.nats_client import PatientClient
from hadare.runtime.nats_journal import NatsJournal
from hadare.runtime.nats_link import Link
from hadare.runtime.nats_objects import NatsObjects
from hadare.runtime.nats_streams import declarations, declare
from hadare.runtime.nats_tables import NatsTable
from hadare.runtime.pace import Pace
from hadare.runtime.seeds import inbox_prefix, public_key
from hadare.wire.subjects import WEIGHTS, Records

T = TypeVar("T")

log = structlog.get_logger("hadare.nats")

_PREFIX = re.compile(r"^[a-z0-9][a-z0-9_-]{0,31}\Z")
_UNSAFE = re.compile(r"[^A-Za-z0-9-]")
_PENDING_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsConfig:
    """How to reach the bus. ``name`` is the connection's.

    Answers arrive under ``_INBOX_<name>``, with a seed under ``_INBOX_<public key>``.

    ``capacity_bytes`` is what all stores of the cluster together may take of the server's disk; see
    ``nats_streams.SHARES``. ``declare`` false: the streams must exist (a user that may not create them).

    ``weights_url``: the weights are there (fsspec) and not in NATS. ``bytes_per_s`` bounds the transfers of objects.
    """

    url: str = "nats://127.0.0.1:4222"
    prefix: str = "hadare"
    name: str = "hadare"
    seed_file: Path | None = None
    user: str | None = None
    password: str | None = None
    tls_ca: Path | None = None
    replicas: int = 1
    capacity_bytes: int = 64 * 2**30
    declare: bool = True
    weights_url: str | None = None
    bytes_per_s: float = 0.0


class NatsBackplane:
    """A connection to the cluster's bus and stores."""

    def __init__(self, link: Link, weights_url: str | None = None, bytes_per_s: float = 0.0) -> None:
        self.link = link
        self._weights_url = weights_url
        self._pace = Pace(bytes_per_s)
        self._bus = NatsBus(link)
        self._journal = NatsJournal(link)

    @property
    def bus(self) -> NatsBus:
        return self._bus

    @property
    def journal(self) -> NatsJournal:
        return self._journal

    def table(self, records: Records[T]) -> NatsTable[T]:
        return NatsTable(self.link, records)

    def objects(self, bucket: str) -> Objects:
        if bucket == WEIGHTS and self._weights_url is not None:
            return FsspecObjects(f"{self._weights_url.rstrip('/')}/{self.bus.prefix}_{bucket}", self._pace)
        return NatsObjects(self.link, bucket, self._pace)

    async def closed(self) -> str:
        return await self.link.lost()

    async def close(self) -> None:
        await self.link.close()


async def connect_nats(config: NatsConfig, timeout_s: float = 30.0) -> NatsBackplane:
    """Connects and declares the streams. Raises ``Unavailable`` if that fails in time, ``Broken`` on bad settings."""
    if not _PREFIX.match(config.prefix):
        raise Broken(f"'{config.prefix}' cannot be a prefix: lower-case letters, digits, '-' and '_', at most 32")
    options = _options(config)
    client = PatientClient()
    link = Link(client, config.prefix)
    try:
        async with asyncio.timeout(timeout_s):
            await client.connect(
                error_cb=link.on_error,
                disconnected_cb=link.on_disconnected,
                reconnected_cb=link.on_reconnected,
                closed_cb=link.on_closed,
                **options,
            )
    except (TimeoutError, nats.errors.Error, OSError) as error:
        reason = str(client.last_error or error) or type(error).__name__
        await _give_up(client)
        raise Unavailable(_cannot_reach(config, timeout_s, reason)) from error
    link.watch_over()
    try:
        if config.declare:
            await declare(link, declarations(config.prefix, config.capacity_bytes, config.replicas), timeout_s)
    except Unavailable as error:
        await link.close()
        raise Unavailable(
            f"{config.url} answers, but its JetStream does not: {error}. Is the server started with JetStream (-js)?"
        ) from error
    except BaseException:
        await link.close()
        raise
    return NatsBackplane(link, config.weights_url, config.bytes_per_s)


def _options(config: NatsConfig) -> dict[str, Any]:
    options: dict[str, Any] = {
        "servers": [url.strip() for url in config.url.split(",")],
        "name": config.name,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.5,
        "connect_timeout": 2,
        "ping_interval": 10,
        "max_outstanding_pings": 2,
        "drain_timeout": 10,
        "pending_size": _PENDING_BYTES,
        "inbox_prefix": "_INBOX_" + (_UNSAFE.sub("-", config.name)[:128] or "hadare"),
    }
    if config.seed_file is not None:
        if not config.seed_file.is_file():
            raise Broken(f"there is no seed file {config.seed_file}")
        options["nkeys_seed"] = str(config.seed_file)
        # The inbox that the user's permissions name, whatever this connection is called.
        options["inbox_prefix"] = inbox_prefix(public_key(config.seed_file))
    if config.user is not None:
        options |= {"user": config.user, "password": config.password or ""}
    if config.tls_ca is not None:
        try:
            options["tls"] = ssl.create_default_context(cafile=str(config.tls_ca))
        except (OSError, ssl.SSLError) as error:
            raise Broken(f"{config.tls_ca} is not a certificate authority's certificate: {error}") from error
    return options


async def _give_up(client: Client) -> None:
    try:
        await client.close()
    except (nats.errors.Error, OSError, AttributeError) as error:
        log.debug("a client that never connected was closed", error=str(error))


def _cannot_reach(config: NatsConfig, timeout_s: float, reason: str) -> str:
    return (
        f"no NATS server could be reached at {config.url} in {timeout_s:g} s ({reason}). "
        "Start one (`hadare up`, or nats-server -js), or say where it is: HADARE_NATS_URL"
    )
