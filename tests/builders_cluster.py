"""A whole cluster in one process on the memory backplane: the real control services, agents and averager that pretend.

The agents here know nothing of the real agent's machine, on purpose: they are the contract's other side, written twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from builders import a_node, an_object
from hadare.machines.job_book import TrackerSettings
from hadare.machines.nodes import NodeTimes
from hadare.machines.round_phases import RoundSettings
from hadare.machines.tracker_events import Consolidate, Consolidated, ForkKept
from hadare.model.devices import Heartbeat
from hadare.model.errors import HadareError
from hadare.model.jobs import JobProgress, JobRecord, ObjectRef
from hadare.model.leases import Evaluation, ForkResult, Lease, LeaseAnswer, Revoke, Revoked
from hadare.model.rounds import RoundPage
from hadare.runtime.bus import Identity, Route
from hadare.runtime.memory import MemoryBackplane, MemoryHub
from hadare.scheduling.devices import relative_speed
from hadare.wire import subjects
from hadare_allocator.service import Allocator
from hadare_jobtracker.service import JobTracker
from hadare_pricing.service import Pricing

BASE_RATE = 10.0
"""Steps/s of every job on a V100."""


class PretendAverager:
    """Accepts every fork; the version's weights are a name."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []
        self.expected: list[tuple[str, int, int, ObjectRef]] = []

    async def fetch_ahead(self, job_id: str, round_number: int, fork: int, ref: ObjectRef) -> None:
        """It keeps no files."""

    async def expect(self, job_id: str, round_number: int, forks: int, base: ObjectRef) -> None:
        self.expected.append((job_id, round_number, forks, base))

    async def forget(self, job_id: str) -> None:
        self.forgotten.append(job_id)

    async def consolidate(self, task: Consolidate) -> Consolidated:
        await asyncio.sleep(0.01)
        total = sum(fork.steps for fork in task.forks)
        kept = tuple(
            ForkKept(fork=fork.fork, weight=fork.steps / total, delta_norm=1.0, agreement=1.0) for fork in task.forks
        )
        weights = an_object(f"{task.job_id}.v{task.version}")
        return Consolidated(at=0.0, job_id=task.job_id, round=task.round, weights=weights, kept=kept)


class PretendAgent:
    """A node agent that trains by arithmetic: steps = rate × time, up to the quota."""

    def __init__(self, hub: MemoryHub, node: str, types: tuple[str, ...], incarnation: str = "i1") -> None:
        self.node = node
        self.inventory = a_node(node, *types, incarnation=incarnation)
        self.backplane = hub.connect(node)
        self.leases: list[Lease] = []
        self.answers: list[tuple[str, bool, str]] = []
        self.running: dict[str, asyncio.Task[None]] = {}
        self.beats = True
        self.revoked: list[str] = []
        self.refuses = ""

    async def run(self) -> None:
        await self.backplane.table(subjects.NODES).put(self.node, self.inventory)
        await self.backplane.bus.serve(
            Identity("hadare-node-agent", "0.1.0", "pretends"),
            [
                Route(subjects.GRANT, self._grant, tokens={"node": self.node}),
                Route(subjects.REVOKE, self._revoke, tokens={"node": self.node}),
            ],
        )
        sequence = 0
        while True:
            if self.beats:
                beat = Heartbeat(node=self.node, incarnation=self.inventory.incarnation, sequence=sequence)
                await self.backplane.bus.publish(subjects.HEARTBEAT, beat, node=self.node)
                sequence += 1
            await asyncio.sleep(1.0)

    async def _grant(self, lease: Lease) -> LeaseAnswer:
        self.leases.append(lease)
        if self.refuses and lease.kind == "train":
            return LeaseAnswer(accepted=False, reason=self.refuses, incarnation=self.inventory.incarnation)
        if str(lease.key) not in self.running:
            self.running[str(lease.key)] = asyncio.create_task(self._work(lease))
        return LeaseAnswer(accepted=True, incarnation=self.inventory.incarnation)

    async def _revoke(self, revoke: Revoke) -> Revoked:
        ended = [name for name in self.running if name.startswith(f"{revoke.job_id}.")]
        ended = [name for name in ended if not revoke.leases or name in revoke.leases]
        self.revoked += [*revoke.leases]
        for name in ended:
            self.running.pop(name).cancel()
        return Revoked(ended=tuple(ended))

    async def _work(self, lease: Lease) -> None:
        result = await self._result(lease)
        while True:
            try:
                answer = await self.backplane.bus.ask(subjects.RESULT, result, timeout_s=2.0)
            except HadareError:
                await asyncio.sleep(0.5)
                continue
            self.answers.append((str(lease.key), answer.counted, answer.reason))
            return

    async def _result(self, lease: Lease) -> ForkResult:
        result = ForkResult(
            kind=lease.kind,
            key=lease.key,
            epoch=lease.epoch,
            node=self.node,
            device_type=lease.device_type,
            base_version=lease.base_version,
        )
        evaluation = None
        if lease.base is not None:
            evaluation = Evaluation(version=lease.base_version, sha256=lease.base.sha256, metrics={"accuracy": 0.9})
        if lease.kind == "init":
            return replace(result, object=an_object(f"{lease.key.job_id}.v0"))
        if lease.kind == "evaluate":
            return replace(result, evaluation=evaluation)
        rate = BASE_RATE * relative_speed(lease.device_type)
        pace = rate
        if lease.gang is not None:  # its share is as large as it is fast: the whole gang is as much faster
            rate *= sum(lease.gang.shares) / lease.gang.shares[lease.gang.rank]
        seconds = min(lease.duration_s, lease.quota / rate)
        await asyncio.sleep(seconds)
        if lease.gang is not None and lease.key.rank == 0:
            await asyncio.sleep(0.01)  # it has weights to hand in, which takes longer than the others' word
        return replace(
            result,
            steps=min(lease.quota, round(rate * seconds)),
            object=an_object(str(lease.key)) if lease.key.rank == 0 else None,
            throughput=pace,
            trained_s=seconds,
            evaluation=evaluation if lease.evaluate_base else None,
            reason="clock",
        )


@dataclass
class Cluster:
    """Everything of a cluster that a test wants to start, kill and look at."""

    hub: MemoryHub
    round_s: float = 10.0
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    planes: dict[str, MemoryBackplane] = field(default_factory=dict)
    agents: dict[str, PretendAgent] = field(default_factory=dict)
    averager: PretendAverager = field(default_factory=PretendAverager)

    def start_pricing(self) -> None:
        self._start("pricing", lambda plane: Pricing(plane).run())

    def start_tracker(self, name: str = "tracker") -> None:
        settings = TrackerSettings(side_lease_s=30.0)
        self._start(name, lambda plane: JobTracker(plane, self.averager, settings, name).run())

    def start_allocator(self, policy: str = "hadare", name: str = "allocator") -> None:
        settings = RoundSettings(epoch=0, round_s=self.round_s, grace_s=2.0, settle_s=5.0, policy=policy)
        self._start(name, lambda plane: Allocator(plane, settings, name, NodeTimes()).run())

    def start_control(self) -> None:
        self.start_pricing()
        self.start_tracker()
        self.start_allocator()

    def start_agent(self, node: str, *types: str, incarnation: str = "i1") -> PretendAgent:
        agent = PretendAgent(self.hub, node, types, incarnation)
        self.agents[node] = agent
        self.tasks[node] = asyncio.create_task(agent.run(), name=node)
        return agent

    def _start(self, name: str, run: Callable[[MemoryBackplane], object]) -> None:
        plane = self.hub.connect(name)
        self.planes[name] = plane
        self.tasks[name] = asyncio.create_task(run(plane), name=name)  # type: ignore[arg-type]

    async def kill(self, name: str) -> None:
        """``kill -9``: nothing is drained and nothing more is sent."""
        plane = self.agents[name].backplane if name in self.agents else self.planes[name]
        plane.crash()
        task = self.tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for work in self.agents[name].running.values() if name in self.agents else ():
            work.cancel()

    async def submit(self, record: JobRecord) -> None:
        await self.hub.connect("user").table(subjects.JOBS).put(record.job_id, record)

    async def progress(self, job_id: str) -> JobProgress | None:
        entry = await self.hub.connect("user").table(subjects.PROGRESS).get(job_id)
        return entry.record if entry else None

    async def until(self, job_id: str, condition: Callable[[JobProgress], bool], limit_s: float = 600.0) -> JobProgress:
        """Waits for the job's progress to be so; fails with what it was, or with the service that has died."""
        async with asyncio.timeout(limit_s):
            async for change in self.hub.connect("user").table(subjects.PROGRESS).watch():
                self.check()
                if change.entry is not None and change.name == job_id and condition(change.entry.record):
                    return change.entry.record
        raise AssertionError("the watch has ended")

    def check(self) -> None:
        """Raises what has ended a service."""
        for task in self.tasks.values():
            if task.done():
                task.result()
        assert not self.hub.failures, self.hub.failures

    async def plans(self) -> list[RoundPage]:
        return [entry.record for entry in await self.hub.connect("user").table(subjects.ROUND_PAGES).entries()]

    async def stop(self) -> None:
        self.check()
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
