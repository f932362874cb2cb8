"""When a client that hears nothing is given up, and when it is not."""

import asyncio
from typing import Any, cast

import nats.errors
import pytest

from hadare.runtime import nats_link
from hadare.runtime.nats_link import Link


class DeafClient:
    """Answers no ping; before the one with the number ``reconnects_at`` is over, it has a new connection."""

    is_reconnecting = False
    is_draining = False

    def __init__(self, reconnects_at: int = 0) -> None:
        self.reconnects_at = reconnects_at
        self.pings = 0
        self.link: Link | None = None

    async def rtt(self, timeout: float) -> float:
        self.pings += 1
        await asyncio.sleep(0)
        if self.pings == self.reconnects_at and self.link is not None:
            await self.link.on_reconnected()
        raise nats.errors.TimeoutError


@pytest.mark.parametrize(("reconnects_at", "pings"), [(0, 3), (3, 6)])
async def test_three_pings_without_an_answer_on_one_connection_are_its_end(
    reconnects_at: int, pings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_link, "_WATCH_EVERY_S", 0.001)
    client = DeafClient(reconnects_at)
    client.link = Link(cast(Any, client), "hadare")
    client.link.watch_over()
    assert "answers no ping" in await client.link.lost()
    assert client.pings == pings
