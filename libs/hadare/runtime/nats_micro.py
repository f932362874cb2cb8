"""What NATS micro (ADR-32) wants to know of a service: who it is, what it serves, how it is doing.

An implementation of our own of the wire format, so that the stock ``nats micro`` commands find and describe services.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from hadare.model.errors import Broken, Unavailable
from hadare.runtime.bus import Identity, Route
from hadare.runtime.nats_link import Link
from hadare.wire.codec import Format

log = structlog.get_logger("hadare.nats")

INBOX = re.compile(r"^_INBOX(_[A-Za-z0-9-]{1,128})?(\.[A-Za-z0-9_-]{1,128}){1,8}\Z")
"""What a reply subject must look like. A responder that publishes to any other writes where its caller may not."""

HOST = "host"
"""The entry of a service's metadata that says where it runs."""

_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}\Z")
_VERSION = re.compile(r"^\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?\Z")


@dataclass
class EndpointStats:
    """One endpoint and its counters since the service started."""

    name: str
    subject: str
    group: str
    metadata: dict[str, str]
    requests: int = 0
    errors: int = 0
    last_error: str = ""
    processing_ns: int = 0

    def record(self, began_ns: int, error: str = "") -> None:
        self.requests += 1
        self.processing_ns += time.perf_counter_ns() - began_ns
        if error:
            self.errors += 1
            self.last_error = error[:200]

    def info(self) -> dict[str, Any]:
        return {"name": self.name, "subject": self.subject, "queue_group": self.group, "metadata": self.metadata}

    def stats(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "subject": self.subject,
            "queue_group": self.group,
            "num_requests": self.requests,
            "num_errors": self.errors,
            "last_error": self.last_error,
            "processing_time": self.processing_ns,
            "average_processing_time": self.processing_ns // self.requests if self.requests else 0,
            "data": None,
        }


@dataclass
class Discovery:
    """Answers ``$SRV.PING|INFO|STATS`` for one instance of a service."""

    link: Link
    identity: Identity
    endpoints: list[EndpointStats]
    instance: str
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    _subscriptions: list[NatsSubscription] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not _NAME.match(self.identity.name) or not _VERSION.match(self.identity.version):
            raise Broken(f"a service cannot be called '{self.identity.name}' with version '{self.identity.version}'")

    async def start(self) -> None:
        verbs = {"PING": self.ping, "INFO": self.info, "STATS": self.stats}
        for verb, describe in verbs.items():
            receive = self._answering(describe)
            for suffix in ("", f".{self.identity.name}", f".{self.identity.name}.{self.instance}"):
                self._subscriptions.append(await self.link.subscribe(f"$SRV.{verb}{suffix}", receive))

    async def stop(self) -> None:
        await asyncio.gather(*(self.link.unsubscribe(subscription) for subscription in self._subscriptions))

    def ping(self) -> dict[str, Any]:
        return self._head("ping")

    def info(self) -> dict[str, Any]:
        return {
            **self._head("info"),
            "description": self.identity.description,
            "endpoints": [endpoint.info() for endpoint in self.endpoints],
        }

    def stats(self) -> dict[str, Any]:
        return {
            **self._head("stats"),
            "started": self.started.replace("+00:00", "Z"),
            "endpoints": [endpoint.stats() for endpoint in self.endpoints],
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "type": f"io.nats.micro.v1.{kind}_response",
            "name": self.identity.name,
            "id": self.instance,
            "version": self.identity.version,
            "metadata": {HOST: socket.gethostname(), **self.identity.metadata},
        }

    def _answering(self, describe: Callable[[], dict[str, Any]]) -> Any:
        async def receive(message: Msg) -> None:
            if not INBOX.match(message.reply):
                log.warning("reply subject refused", subject=message.subject, reply=message.reply[:256])
                return
            try:
                await self.link.publish(message.reply, json.dumps(describe()).encode())
            except Unavailable as error:
                log.warning("not answered", subject=message.subject, error=str(error))

        return receive


def endpoint_name(template: str) -> str:
    """``api.v1.jobs.submit`` is ``jobs-submit``, ``node.v1.{node}.grant`` is ``grant``."""
    parts = template.split(".")
    kept = [part for part in parts[2:] if not part.startswith("{")]
    return "-".join(kept or parts[:1])


def describe(routes: Sequence[Route[Any, Any]], prefix: str) -> list[EndpointStats]:
    return [
        EndpointStats(
            name=endpoint_name(route.endpoint.template),
            subject=f"{prefix}.{route.endpoint.subject(**route.tokens)}",
            group=route.group,
            metadata={
                "format": ", ".join(form.value for form in Format),
                "question": getattr(route.endpoint.question, "__name__", str(route.endpoint.question)),
                "answer": getattr(route.endpoint.answer, "__name__", str(route.endpoint.answer)),
            },
        )
        for route in routes
    ]
