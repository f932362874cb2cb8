"""Every test here runs on both forms of the backplane, and passes on both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from hadare.runtime.bus import Backplane
from hadare.runtime.memory import MemoryHub

Joining = Callable[[str], Awaitable[Backplane]]


@pytest.fixture
async def join_memory() -> AsyncIterator[Joining]:
    hub = MemoryHub()
    joined: list[Backplane] = []

    async def join_hub(name: str) -> Backplane:
        joined.append(hub.connect(name))
        return joined[-1]

    yield join_hub
    for backplane in joined:
        await backplane.close()


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.integration)])
def join(request: pytest.FixtureRequest) -> Joining:
    """``await join("name")``: one more client of the same cluster."""
    joining: Joining = request.getfixturevalue("connect" if request.param == "nats" else "join_memory")
    return joining


@pytest.fixture
async def plane(join: Joining) -> Backplane:
    return await join("one")


@pytest.fixture
async def other(join: Joining) -> Backplane:
    return await join("two")
