"""Whether a node's name is taken: two agents under one name would take each other's leases and overwrite each other.

An agent that was started again finds its own earlier life in the state of record, but hears nothing of it.
"""

from __future__ import annotations

import asyncio

from hadare.model.devices import Heartbeat
from hadare.runtime.bus import Backplane
from hadare.runtime.shell import stored
from hadare.wire.subjects import HEARTBEAT, NODES

LISTEN_S = 3.0
"""Three heartbeats of an agent with the usual settings."""

_BEATS = 2
"""One may be the last of an agent that has just died, and late."""


async def find_namesake(backplane: Backplane, node: str, listen_s: float = LISTEN_S) -> str:
    """Why this agent must not run, for people; empty if the name is free."""
    known = await stored(lambda: backplane.table(NODES).get(node), "read the inventory")
    if known is None:
        return ""
    incarnation, beats, lives = known.record.incarnation, 0, asyncio.Event()

    async def hear(beat: Heartbeat) -> None:
        nonlocal beats
        beats += beat.incarnation == incarnation
        if beats >= _BEATS:
            lives.set()

    listening = await backplane.bus.subscribe(HEARTBEAT, hear, node=node)
    try:
        async with asyncio.timeout(listen_s):
            await lives.wait()
    except TimeoutError:
        return ""
    finally:
        await listening.stop()
    where = f" on {known.record.host}" if known.record.host else ""
    return (
        f"the name '{node}' is taken: an agent runs under it{where}; give this one another (HADARE_NODE), or end that"
    )
