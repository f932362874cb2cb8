"""Which services of a cluster run: everybody who serves says what it serves when NATS micro's discovery asks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from nats.aio.msg import Msg

from hadare.runtime.bus import Backplane
from hadare.runtime.nats_connection import NatsBackplane

_QUIET_S = 0.15
"""After so long without a further answer everybody who is there has answered."""


@dataclass(frozen=True, slots=True)
class Found:
    """An instance of a service that answered."""

    name: str
    instance: str
    version: str


async def discover(backplane: Backplane, timeout_s: float = 1.0) -> list[Found]:
    """Every instance that answers, by name. Empty where nothing can be discovered (the bus in memory)."""
    if not isinstance(backplane, NatsBackplane):
        return []
    link = backplane.link  # the bus has no question with many answers, and needs none but this
    answers: asyncio.Queue[bytes] = asyncio.Queue()

    async def receive(message: Msg) -> None:
        answers.put_nowait(message.data)

    inbox = str(link.client.new_inbox())
    subscription = await link.subscribe(inbox, receive)
    try:
        await link.publish("$SRV.INFO", b"", reply=inbox)
        found = {found async for found in _read(answers, backplane.bus.prefix, timeout_s)}
    finally:
        await link.unsubscribe(subscription)
    return sorted(found, key=lambda one: (one.name, one.instance))


async def _read(answers: asyncio.Queue[bytes], prefix: str, timeout_s: float) -> AsyncIterator[Found]:
    loop = asyncio.get_running_loop()
    deadline, quiet_s = loop.time() + timeout_s, timeout_s
    while (left_s := min(deadline - loop.time(), quiet_s)) > 0:
        try:
            async with asyncio.timeout(left_s):
                data = await answers.get()
        except TimeoutError:
            return
        quiet_s = _QUIET_S
        found = parse(data, prefix)
        if found is not None:
            yield found


def parse(data: bytes, prefix: str) -> Found | None:
    """None for an answer that is not of this cluster: others may share the server, and may answer anything."""
    try:
        answer = json.loads(data)
    except ValueError:
        return None
    if not isinstance(answer, dict):
        return None
    endpoints = answer.get("endpoints") or []
    if endpoints and not any(_subject(endpoint).startswith(f"{prefix}.") for endpoint in endpoints):
        return None
    return Found(str(answer.get("name", ""))[:64], str(answer.get("id", ""))[:64], str(answer.get("version", ""))[:64])


def _subject(endpoint: object) -> str:
    return str(endpoint.get("subject", "")) if isinstance(endpoint, dict) else ""
