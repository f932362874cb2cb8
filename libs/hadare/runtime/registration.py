"""A node's entry in the state of record: written at the start, when it changes, and when it is not as it should be.

An operator may have forgotten a node that was only cut off; a write from before a partition may land when it is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from hadare.model.devices import NodeInventory
from hadare.runtime.bus import Backplane, Entry
from hadare.runtime.shell import stored
from hadare.wire.subjects import NODES

LOOK_AFTER_S = 30.0
"""Seconds after which what is stored is compared with what it should be."""

log = structlog.get_logger("hadare.node_agent")


class Registration:
    """Keeps ``inventory()`` stored. It is asked for anew at each write."""

    def __init__(self, backplane: Backplane, inventory: Callable[[], NodeInventory]) -> None:
        self._table = backplane.table(NODES)
        self._inventory = inventory
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """The inventory is no longer what was written."""
        self._changed.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            if not await self._is_due():
                continue
            self._changed.clear()
            await stored(self._write, "write the inventory")

    async def _is_due(self) -> bool:
        try:
            async with asyncio.timeout(LOOK_AFTER_S):
                await self._changed.wait()
        except TimeoutError:
            held = await stored(self._read, "read the inventory")
            if held is not None and held.record == self._inventory():
                return False
            log.warning("the stored inventory is not as it should be: the node registers again", forgotten=held is None)
        return True

    async def _write(self) -> None:
        inventory = self._inventory()
        await self._table.put(inventory.node, inventory)

    async def _read(self) -> Entry[NodeInventory] | None:
        return await self._table.get(self._inventory().node)
