"""The frame of every service process: settings, logs, telemetry, bus, then its ``main``, then an orderly end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import structlog

from hadare.model.errors import Broken, Unavailable
from hadare.runtime import config as configuration
from hadare.runtime import logs, telemetry
from hadare.runtime.bus import Backplane
from hadare.runtime.nats_connection import NatsConfig, connect_nats

log = structlog.get_logger("hadare.service")

_UNSAFE = re.compile(r"[^A-Za-z0-9-]")


class Exit(IntEnum):
    """Why a service process ended; docs/reference/bus.md lists them. Any but 0 asks the supervisor for a restart."""

    STOPPED = 0
    FAILED = 1
    BAD_CONFIG = 2
    UNREACHABLE = 3
    DISCONNECTED = 4
    STUCK = 5


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """What every service needs to know; a service's own configuration adds to it. See ``config.load`` for the names.

    ``weights_url``: an fsspec URL for the weights, the same for all services; default: the object store of NATS.
    ``bandwidth_mb_s`` bounds this process' transfers of weights and code, in 10⁶ bytes/s; 0: unbounded.
    """

    nats_url: str = "nats://127.0.0.1:4222"
    prefix: str = "hadare"
    nats_seed_file: Path | None = None
    nats_user: str | None = None
    nats_password: str | None = None
    nats_tls_ca: Path | None = None
    nats_declare: bool = True
    replicas: int = 1
    capacity_gb: float = 64.0
    instance: str = ""
    log_level: logs.Level = "info"
    otlp_endpoint: str | None = None
    connect_timeout_s: float = 30.0
    stop_timeout_s: float = 20.0
    weights_url: str | None = None
    bandwidth_mb_s: float = 0.0

    def __post_init__(self) -> None:
        if self.replicas not in (1, 3, 5):
            raise ValueError("replicas must be 1, 3 or 5")
        if self.capacity_gb <= 0 or self.connect_timeout_s <= 0 or self.stop_timeout_s <= 0:
            raise ValueError("capacity_gb, connect_timeout_s and stop_timeout_s must be above 0")
        if self.bandwidth_mb_s < 0:
            raise ValueError("bandwidth_mb_s must not be below 0")

    def nats(self, name: str) -> NatsConfig:
        """How the process called ``name`` reaches the bus."""
        return NatsConfig(
            url=self.nats_url,
            prefix=self.prefix,
            name=name,
            seed_file=self.nats_seed_file,
            user=self.nats_user,
            password=self.nats_password,
            tls_ca=self.nats_tls_ca,
            replicas=self.replicas,
            capacity_bytes=int(self.capacity_gb * 2**30),
            declare=self.nats_declare,
            weights_url=self.weights_url,
            bytes_per_s=self.bandwidth_mb_s * 1e6,
        )


C = TypeVar("C", bound=ServiceConfig)
Main = Callable[[Backplane, C], Awaitable[None]]


def run(name: str, config_class: type[C], main: Main[C], environ: Mapping[str, str] | None = None) -> NoReturn:
    """Runs a service until SIGTERM or SIGINT and exits with an ``Exit`` status. For ``__main__``, and for nothing else.

    ``main`` is cancelled when the process is to end and has ``stop_timeout_s`` to clean up; it may also return, which
    ends the service. An exception that leaves it is a bug: it is logged and the process fails.
    """
    try:
        config = configuration.load(config_class, os.environ if environ is None else environ)
    except configuration.BadConfig as fault:
        print(f"hadare {name}: {fault}", file=sys.stderr)
        sys.exit(Exit.BAD_CONFIG)
    instance = config.instance or f"{socket.gethostname()}-{os.getpid()}"
    logs.configure(name, instance, config.log_level)
    telemetry.configure(name, instance, config.otlp_endpoint)
    status = asyncio.run(_live(f"{name}-{_UNSAFE.sub('-', instance)}", config, main))
    _leave(status)


async def _live(connection: str, config: C, main: Main[C]) -> Exit:
    stopping = asyncio.create_task(_stop_signal())
    connecting = asyncio.create_task(connect_nats(config.nats(connection), config.connect_timeout_s))
    await asyncio.wait({connecting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not connecting.done():
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        return Exit.STOPPED
    try:
        backplane = connecting.result()
    except (Unavailable, Broken) as error:
        log.error("cannot start", error=str(error))
        stopping.cancel()
        return Exit.UNREACHABLE if isinstance(error, Unavailable) else Exit.FAILED
    log.info("started", nats=config.nats_url, prefix=config.prefix)
    status = await _work(backplane, asyncio.ensure_future(main(backplane, config)), stopping, config.stop_timeout_s)
    stopping.cancel()
    await backplane.close()
    return status


async def _work(
    backplane: Backplane, working: asyncio.Future[None], stopping: asyncio.Task[None], timeout_s: float
) -> Exit:
    """Until ``main`` ends, a signal comes, or the bus is lost; then ``main`` gets ``timeout_s`` to clean up."""
    losing = asyncio.create_task(backplane.closed())
    ends: set[asyncio.Future[Any]] = {working, stopping, losing}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    status = Exit.STOPPED
    if losing.done():
        log.error("the bus is lost for good", reason=losing.result())
        status = Exit.DISCONNECTED
    losing.cancel()
    if not working.done():
        log.info("stopping")
        working.cancel()
        await asyncio.wait({working}, timeout=timeout_s)
    if not working.done():
        log.error("not stopped in time", timeout_s=timeout_s)
        _leave(Exit.STUCK)
    error = None if working.cancelled() else working.exception()
    if error is None:
        return status
    log.error("service failed", exc_info=error)
    return Exit.FAILED if status is Exit.STOPPED else status


def _leave(status: Exit) -> NoReturn:
    telemetry.shutdown()
    log.info("ended", status=status.name.lower())
    sys.stderr.flush()
    if status is Exit.STUCK:
        os._exit(status)  # what ignores its cancellation would keep a normal exit waiting
    sys.exit(status)


async def _stop_signal() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
