"""A gateway on an in-memory backplane, with the other services' records written by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hadare.client import HadareClient
from hadare.model.devices import Device, NodeInventory, NodeState, NodeStatus
from hadare.model.jobs import JobProgress, JobState, ObjectRef, VersionManifest
from hadare.model.leases import Lease, LeaseKey
from hadare.model.plans import Decision, ForkPlan, GangMember, PriceBook, PriceCurve
from hadare.model.rounds import NodeLeases, RoundHead, RoundPage
from hadare.runtime.bus import Backplane
from hadare.runtime.memory import MemoryHub
from hadare.wire import api_cluster, subjects
from hadare_gateway.service import GatewayService

CONTROL = ("allocator", "gateway", "jobtracker", "pricing")


async def all_services() -> list[api_cluster.ServiceSeen]:
    return [api_cluster.ServiceSeen(name=name, instances=1, version="0.1.0") for name in CONTROL]


def a_spec(**changes: Any) -> dict[str, Any]:
    return {"workload": "pkg.mod:TinyNet", "total_steps": 100, "batch_size": 8, **changes}


@asynccontextmanager
async def a_gateway(
    hub: MemoryHub, name: str = "gateway", keep_code_s: float = 3600.0
) -> AsyncIterator[GatewayService]:
    """A gateway that serves until the block ends."""
    backplane = hub.connect(name)
    service = GatewayService(backplane, all_services, sweep_s=3600.0, keep_code_s=keep_code_s)
    ready = asyncio.Event()
    running = asyncio.create_task(service.run(ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    try:
        yield service
    finally:
        running.cancel()
        await asyncio.wait({running})
        await backplane.close()


def a_client(hub: MemoryHub) -> HadareClient:
    return HadareClient(hub.connect("client"), timeout_s=2.0, patience_s=2.0)


class Others:
    """The tracker, the allocator, pricing and the agents, as far as their records go."""

    def __init__(self, hub: MemoryHub) -> None:
        self.backplane: Backplane = hub.connect("others")

    @classmethod
    def over(cls, backplane: Backplane) -> Others:
        """Over another backplane than the one in memory."""
        others = cls(MemoryHub())
        others.backplane = backplane
        return others

    async def settle(self) -> None:
        """Lets the gateway's watches catch up (in memory: no message takes longer than a turn of the loop)."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def progress(self, job_id: str, state: JobState, **more: Any) -> None:
        record = JobProgress(job_id=job_id, name="any", state=state, **more)
        await self.backplane.table(subjects.PROGRESS).put(job_id, record)
        await self.settle()

    async def version(self, job_id: str, number: int, weights: ObjectRef, **more: Any) -> None:
        manifest = VersionManifest(
            job_id=job_id, version=number, base_version=number - 1, steps=10 * number, weights=weights, **more
        )
        await self.backplane.table(subjects.VERSIONS).put(f"{job_id}.{number}", manifest)

    async def node(self, name: str, *types: str, state: NodeState | None = NodeState.READY) -> None:
        devices = tuple(
            Device(index=index, type=kind, memory_gb=16.0, emulated=True) for index, kind in enumerate(types)
        )
        inventory = NodeInventory(node=name, incarnation="i1", devices=devices)
        await self.backplane.table(subjects.NODES).put(name, inventory)
        if state is not None:
            await self.backplane.table(subjects.NODE_STATES).put(name, NodeStatus(node=name, state=state))
        await self.settle()

    async def plan(self, number: int, *pages: RoundPage, state: str = "open") -> None:
        for page in pages:
            await self.backplane.table(subjects.ROUND_PAGES).put(f"{number}.{page.page}", page)
        head: Any = {"state": state}
        record = RoundHead(round=number, epoch=1, clock_s=0.0, round_s=6.0, policy="hadare", pages=len(pages), **head)
        await self.backplane.table(subjects.ROUND_HEAD).put("", record)
        await self.settle()

    async def lease(self, job_id: str, round_no: int, device: int) -> None:
        """A lease of a device of node n1."""
        job = await self.backplane.table(subjects.JOBS).get(job_id)
        assert job is not None
        key = LeaseKey(job_id=job_id, round=round_no, fork=0)
        spec = job.record.spec
        lease = Lease(kind="train", key=key, epoch=1, node="n1", spec=spec, devices=(device,), duration_s=6.0)
        held = NodeLeases(node="n1", round=round_no, epoch=1, leases=(lease,))
        await self.backplane.table(subjects.ROUND_LEASES).put("n1", held)
        await self.settle()

    async def prices(self, number: int, *curves: PriceCurve) -> None:
        await self.backplane.table(subjects.PRICES).put("book", PriceBook(round=number, curves=curves))
        await self.settle()


def a_page(number: int, page: int = 0, pages: int = 1, **content: Any) -> RoundPage:
    return RoundPage(round=number, epoch=1, page=page, pages=pages, **content)


def a_fork(job_id: str, node: str = "n1", kind: str = "V100", fork: int = 0, quota: int = 50) -> ForkPlan:
    gang = (GangMember(node=node, type=kind),)
    return ForkPlan(job_id=job_id, fork=fork, gang=gang, quota=quota, rate=1.0, price=0.1, payoff=1.0)


def waits(job_id: str, message: str = "all devices are taken") -> Decision:
    return Decision(job_id=job_id, code="waiting_for_capacity", message=message, position=2, blockers=("other",))


def a_header(text: str) -> bytes:
    """A safetensors file of this header, without the bytes of its tensors."""
    return len(text).to_bytes(8, "little") + text.encode()


def a_weights_file() -> bytes:
    return a_header('{"__metadata__":{},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}') + bytes(8)
