"""What people do in a simulation: users submit, pause and cancel jobs, the operator drains nodes and mends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from hadare.dst.agent import Disk
from hadare.dst.laws import Laws
from hadare.dst.scenario import Fault, Scenario, SimJob
from hadare.model.devices import NodeWish
from hadare.model.jobs import Desired
from hadare.runtime.memory import MemoryHub
from hadare.wire.subjects import JOBS, NODE_WISHES


@dataclass
class Users:
    """They write what the gateway would write for them; nothing fails on their way."""

    hub: MemoryHub
    scenario: Scenario
    laws: Laws
    note: Callable[[str], None]
    _paused: dict[str, int] = field(default_factory=dict)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def submit(self, job: SimJob) -> None:
        await asyncio.sleep(job.at)
        self.note(f"submit {job.job_id}: {job.steps} steps")
        await self._wish(job.job_id, Desired.RUN)

    async def cancel(self, fault: Fault) -> None:
        self.laws.forgiven.add(fault.who)
        await self._wish(fault.who, Desired.CANCELLED)

    async def pause(self, fault: Fault) -> None:
        """A cancelled job stays cancelled, and of two pauses the later end counts."""
        self._paused[fault.who] = self._paused.get(fault.who, 0) + 1
        await self._wish(fault.who, Desired.PAUSED)
        await asyncio.sleep(fault.for_s)
        self._paused[fault.who] -= 1
        if not self._paused[fault.who]:
            await self._wish(fault.who, Desired.RUN)

    async def drain(self, fault: Fault) -> None:
        await self._drain(fault.who, drain=True)
        await asyncio.sleep(fault.for_s)
        await self._drain(fault.who, drain=False)

    async def suffer(self, fault: Fault, disk: Disk) -> None:
        """Everything fails on a node until somebody has mended it, and puts it back."""
        disk.poisoned += 1
        self.laws.poisoned.add(fault.who)
        await asyncio.sleep(fault.for_s)
        disk.poisoned -= 1
        await self._drain(fault.who, drain=False)

    async def _drain(self, node: str, *, drain: bool) -> None:
        """As the gateway does it: each time that a node is put back, it is pardoned."""
        wishes = self.hub.connect("user").table(NODE_WISHES)
        known = await wishes.get(node)
        pardon = (known.record.pardon if known else 0) + (not drain)
        await wishes.put(node, NodeWish(node=node, drain=drain, pardon=pardon))

    async def _wish(self, job_id: str, desired: Desired) -> None:
        """As the gateway's compare-and-set does it, no wish overtakes another, and none takes a cancellation back."""
        async with self._one_at_a_time:
            if job_id in self.laws.forgiven and desired is not Desired.CANCELLED:
                return
            await self._put(job_id, desired)

    async def _put(self, job_id: str, desired: Desired) -> None:
        job = next(job for job in self.scenario.jobs if job.job_id == job_id)
        await self.hub.connect("user").table(JOBS).put(job_id, job.record(desired))
