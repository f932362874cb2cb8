"""The processes of a simulation: control services and agents, started, ended as by ``kill -9``, and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from hadare.dst.adversary import Adversary
from hadare.dst.agent import Disk, SimAgent
from hadare.dst.gangs import SimGangs
from hadare.dst.laws import Laws
from hadare.dst.plane import SimPlane
from hadare.dst.scenario import CONTROL, ROUND_S, Scenario
from hadare.dst.weights import SimAverager
from hadare.machines.job_book import TrackerSettings
from hadare.machines.nodes import NodeTimes
from hadare.machines.round_phases import RoundSettings
from hadare.model.devices import Device
from hadare.model.errors import Broken, Unavailable
from hadare.runtime.election import Term
from hadare.runtime.memory import MemoryHub
from hadare.wire.subjects import WEIGHTS

RESTART_S = 1.0
KEEP_VERSIONS = 2

TRACKER = TrackerSettings(guard_s=4.0, side_lease_s=20.0, keep_versions=KEEP_VERSIONS, sweep_s=14.0)
ROUNDS = RoundSettings(epoch=0, round_s=ROUND_S, grace_s=2.0, settle_s=5.0)
TIMES = NodeTimes()
TERM = Term(lease_s=4.0, renew_s=1.0, poll_s=0.6, return_s=1.6)
"""By half longer than live: renewals are half of all writes. Freezes and partitions last up to seven times as long."""
TICK_S = 0.4
"""How often the allocator looks at its clock: half as often as live."""


class Control(Protocol):
    """The control services, by whoever may import them. Each call runs one until it ends."""

    def pricing(self, plane: SimPlane) -> Awaitable[None]: ...

    def tracker(
        self, plane: SimPlane, averager: SimAverager, settings: TrackerSettings, instance: str, term: Term
    ) -> Awaitable[None]: ...

    def allocator(
        self, plane: SimPlane, settings: RoundSettings, instance: str, times: NodeTimes, term: Term, tick_s: float
    ) -> Awaitable[None]: ...


@dataclass
class Process:
    plane: SimPlane
    task: asyncio.Task[None]
    agent: SimAgent | None = None


@dataclass
class Supervisor:
    """``processes`` are those that live now, by name; one that ends is started again if it is ``lasting``."""

    scenario: Scenario
    control: Control
    hub: MemoryHub
    adversary: Adversary
    laws: Laws
    gangs: SimGangs
    note: Callable[[str], None]
    background: set[asyncio.Task[Any]] = field(default_factory=set)
    """Work that goes on beside the processes, ended by ``stop``."""
    processes: dict[str, Process] = field(default_factory=dict)
    _starts: int = 0
    _events_of_dead: int = 0

    def __post_init__(self) -> None:
        self.disks = {node: Disk() for node in self.scenario.nodes}

    def agents(self) -> list[SimAgent]:
        return [process.agent for process in self.processes.values() if process.agent is not None]

    @property
    def events(self) -> int:
        """Those of all agents' machines, in all their lives."""
        return self._events_of_dead + sum(agent.events for agent in self.agents())

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    def start(self, name: str) -> None:
        if name in self.processes:
            return
        self._starts += 1
        plane = SimPlane(self.hub, name, self.adversary, self.background)
        plane.on_death = lambda: self.later(self.bury(name, self.processes[name]))
        agent, work = self._build(name, plane)
        task = asyncio.get_running_loop().create_task(work)
        self.processes[name] = Process(plane, task, agent)
        task.add_done_callback(lambda done: self._ended(name, done))
        self.note(f"{name} starts")

    def lasting(self) -> list[str]:
        """Processes that a supervisor starts again."""
        others = [f"{kind}-{n}" for kind in ("tracker", "allocator") for n in range(2, self.scenario.replicas + 1)]
        return [*CONTROL, *others, *self.scenario.nodes]

    def _build(self, name: str, plane: SimPlane) -> tuple[SimAgent | None, Coroutine[Any, Any, None]]:
        kind = name.split("-")[0]
        if kind in self.scenario.nodes:
            devices = tuple(
                Device(index=index, type=kind_of, memory_gb=16.0, emulated=True)
                for index, kind_of in enumerate(self.scenario.nodes[kind])
            )
            agent = SimAgent(plane, devices, f"i{self._starts}", self.disks[kind], self.laws, self.gangs)
            return agent, agent.run()
        if kind == "pricing":
            return None, _whole(self.control.pricing(plane))
        if kind == "tracker":
            return None, _whole(self.control.tracker(plane, SimAverager(plane.objects(WEIGHTS)), TRACKER, name, TERM))
        return None, _whole(self.control.allocator(plane, self._rounds(), name, TIMES, TERM, TICK_S))

    def _rounds(self) -> RoundSettings:
        return replace(ROUNDS, policy=self.scenario.policy, round_s=self.scenario.round_s)

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        """A process that ends by itself is started again, unless it was one too many; a bug is a violation."""
        process = self.processes.get(name)
        if task.cancelled() or process is None or process.task is not task:
            return
        error = task.exception()
        if not _is_orderly(error):
            self.laws.broken("no process fails", f"{name}: {_leaf(error)!r}")
            return
        self.note(f"{name} ends: {_leaf(error)}")
        self.later(self.bury(name, process, RESTART_S))

    async def bury(self, name: str, process: Process, for_s: float = RESTART_S) -> None:
        """Ends a process as ``kill -9`` does, and starts its successor after ``for_s``."""
        if self.processes.get(name) is not process:
            return
        del self.processes[name]
        self.note(f"{name} is gone")
        process.plane.crash()
        if process.agent is not None:
            process.agent.died()
            self._events_of_dead += process.agent.events
        process.task.cancel()
        await asyncio.gather(process.task, return_exceptions=True)
        if name in self.lasting():
            await asyncio.sleep(for_s)
            self.start(name)

    async def stop(self) -> None:
        ended = list(self.processes.values())
        self.processes.clear()
        for process in ended:
            process.plane.crash()
            process.plane.thaw()
            if process.agent is not None:
                process.agent.died()
            process.task.cancel()
        ending = [process.task for process in ended]
        for task in list(self.background):
            task.cancel()
        await asyncio.gather(*ending, *self.background, return_exceptions=True)


async def _whole(work: Awaitable[None]) -> None:
    await work


def _leaf(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = next((e for e in error.exceptions if not isinstance(e, asyncio.CancelledError)), error.exceptions[0])
    return error


def _is_orderly(error: BaseException | None) -> bool:
    """What a supervisor answers with a restart; anything else is a bug."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_orderly(e) for e in error.exceptions)
    return isinstance(error, Broken | Unavailable)
