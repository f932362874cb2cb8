"""One simulation from its first second to its verdict: services, agents, a supervisor, users, faults, and the laws."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import structlog

from hadare.dst.adversary import Adversary
from hadare.dst.agent import Disk, SimAgent
from hadare.dst.gangs import SimGangs
from hadare.dst.laws import Laws, Violation
from hadare.dst.plane import SimPlane
from hadare.dst.scenario import CONTROL, ROUND_S, Fault, Kind, Scenario
from hadare.dst.users import Users
from hadare.dst.weights import SimAverager
from hadare.machines import lease_events as ev
from hadare.machines.job_book import TrackerSettings
from hadare.machines.nodes import NodeTimes
from hadare.machines.round_phases import RoundSettings
from hadare.model.devices import Device
from hadare.model.errors import Broken, Unavailable
from hadare.model.rounds import Leader
from hadare.runtime.memory import MemoryHub
from hadare.runtime.virtual import run_virtually
from hadare.wire import codec
from hadare.wire.subjects import WEIGHTS

END_LIMIT_S = 600.0
"""How long after the last fault every job must have ended."""
REST_S = 45.0
RESTART_S = 1.0
KEEP_VERSIONS = 2

TRACKER = TrackerSettings(guard_s=4.0, side_lease_s=20.0, keep_versions=KEEP_VERSIONS, sweep_s=14.0)
ROUNDS = RoundSettings(epoch=0, round_s=ROUND_S, grace_s=2.0, settle_s=5.0)
TIMES = NodeTimes()


class Control(Protocol):
    """The control services, by whoever may import them. Each call runs one until it ends."""

    def pricing(self, plane: SimPlane) -> Awaitable[None]: ...

    def tracker(
        self, plane: SimPlane, averager: SimAverager, settings: TrackerSettings, instance: str
    ) -> Awaitable[None]: ...

    def allocator(
        self, plane: SimPlane, settings: RoundSettings, instance: str, times: NodeTimes
    ) -> Awaitable[None]: ...


@dataclass(frozen=True)
class Verdict:
    """How a simulation ended. Equal digests: the same events at the same moments in the same order."""

    scenario: Scenario
    violations: tuple[Violation, ...]
    events: int
    rounds: int
    virtual_s: float
    digest: str
    story: tuple[str, ...]


class _Hub(MemoryHub):
    """A hub whose writes are seen."""

    def __init__(self, adversary: Adversary) -> None:
        super().__init__(adversary.network)
        self.writes = 0
        self.seen: Callable[[str, str, bytes | None], None] = lambda _bucket, _key, _data: None

    def write(self, bucket: str, key: str, data: bytes | None) -> int:
        revision = super().write(bucket, key, data)
        self.writes += 1
        self.seen(bucket, key, data)
        return revision


@dataclass
class _Process:
    plane: SimPlane
    task: asyncio.Task[None]
    agent: SimAgent | None = None


@dataclass
class World:
    """Built for one run; ``run`` may be called once, in a virtual loop."""

    scenario: Scenario
    control: Control
    story: list[str] = field(default_factory=list)

    async def run(self) -> Verdict:
        self._adversary = Adversary(self.scenario.seed)
        self._hub = _Hub(self._adversary)
        self._laws = Laws(self._hub.objects.setdefault(WEIGHTS, {}), _now, self._note)
        self._hub.seen = self._laws.written
        self._laws.broken_jobs = frozenset(job.job_id for job in self.scenario.jobs if job.broken)
        self._users = Users(self._hub, self.scenario, self._laws, self._note)
        self._changed = asyncio.Event()
        self._laws.on_change = self._changed.set
        self._processes: dict[str, _Process] = {}
        self._disks = {node: Disk() for node in self.scenario.nodes}
        self._background: set[asyncio.Task[Any]] = set()
        self._gangs = SimGangs()
        self._laws.gangs = self._gangs
        self._starts = 0
        self._agent_events = 0
        for name in self._lasting():
            self._start(name)
        for job in self.scenario.jobs:
            self._later(self._users.submit(job))
        for fault in self.scenario.faults:
            self._later(self._strike(fault))
        await self._until_the_end()
        verdict = self._verdict()
        await self._stop()
        return verdict

    # --- the course of things ---

    async def _until_the_end(self) -> None:
        calm_at = self.scenario.calm_at
        limit = calm_at + END_LIMIT_S
        while not self._laws.violations:
            if self._hub.failures:
                self._laws.broken("no handler fails", repr(self._hub.failures[0]))
                break
            if self._all_ended() and _now() > calm_at:
                break
            if _now() >= limit:
                self._blame_the_stuck()
                break
            self._laws.judge_gangs(self._agents(), self.scenario.faults)
            self._changed.clear()
            try:
                async with asyncio.timeout_at(max(_now() + 1.0, min(limit, calm_at + 0.1))):
                    await self._changed.wait()
            except TimeoutError:
                continue
        if self._laws.violations:
            return
        await asyncio.sleep(REST_S)
        self._laws.judge_end(self._agents(), KEEP_VERSIONS)

    def _agents(self) -> list[SimAgent]:
        return [process.agent for process in self._processes.values() if process.agent is not None]

    def _all_ended(self) -> bool:
        progress = self._laws.progress
        return all(job.job_id in progress and progress[job.job_id].state.ended for job in self.scenario.jobs)

    def _blame_the_stuck(self) -> None:
        for job in self.scenario.jobs:
            progress = self._laws.progress.get(job.job_id)
            if progress is None or not progress.state.ended:
                state = f"{progress.state}: {progress.reason} {progress.open}" if progress else "unknown to the tracker"
                self._laws.broken("every job comes to its end", f"{job.job_id} is {state}")

    # --- processes ---

    def _start(self, name: str) -> None:
        if name in self._processes:
            return
        self._starts += 1
        plane = SimPlane(self._hub, name, self._adversary, self._background)
        plane.on_death = lambda: self._later(self._bury(name, self._processes[name]))
        agent, work = self._build(name, plane)
        task = asyncio.get_running_loop().create_task(work)
        self._processes[name] = _Process(plane, task, agent)
        task.add_done_callback(lambda done: self._ended(name, done))
        self._note(f"{name} starts")

    def _lasting(self) -> list[str]:
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
            agent = SimAgent(plane, devices, f"i{self._starts}", self._disks[kind], self._laws, self._gangs)
            return agent, agent.run()
        if kind == "pricing":
            return None, _whole(self.control.pricing(plane))
        if kind == "tracker":
            return None, _whole(self.control.tracker(plane, SimAverager(plane.objects(WEIGHTS)), TRACKER, name))
        return None, _whole(self.control.allocator(plane, self._rounds(), name, TIMES))

    def _rounds(self) -> RoundSettings:
        return replace(ROUNDS, policy=self.scenario.policy, round_s=self.scenario.round_s)

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        """A process that ends by itself is started again, unless it was one too many; a bug is a violation."""
        process = self._processes.get(name)
        if task.cancelled() or process is None or process.task is not task:
            return
        error = task.exception()
        if not _is_orderly(error):
            self._laws.broken("no process fails", f"{name}: {_leaf(error)!r}")
            return
        self._note(f"{name} ends: {_leaf(error)}")
        self._later(self._bury(name, process, RESTART_S))

    async def _bury(self, name: str, process: _Process, for_s: float = RESTART_S) -> None:
        """Ends a process as ``kill -9`` does, and starts its successor after ``for_s``."""
        if self._processes.get(name) is not process:
            return
        del self._processes[name]
        self._note(f"{name} is gone")
        process.plane.crash()
        if process.agent is not None:
            process.agent.died()
            self._agent_events += process.agent.events
        process.task.cancel()
        await asyncio.gather(process.task, return_exceptions=True)
        if name in self._lasting():
            await asyncio.sleep(for_s)
            self._start(name)

    # --- users and faults ---

    async def _strike(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at)
        self._note(f"FAULT {fault}")
        match fault.kind:
            case Kind.KILL:
                name = self._target(fault.who)
                if (process := self._processes.get(name)) is not None:
                    await self._kill(name, fault, process)
            case Kind.KILL_ALL:
                await asyncio.gather(
                    *(self._bury(name, process, fault.for_s) for name, process in list(self._processes.items()))
                )
            case Kind.FREEZE:
                await self._freeze(fault)
            case Kind.FORK_CRASH | Kind.DEVICE_FAULT:
                await self._strike_node(fault)
            case Kind.POISON:
                await self._users.suffer(fault, self._disks[fault.who])
            case Kind.RIVAL:
                self._start(f"{fault.who}-rival")
            case Kind.DRAIN:
                await self._users.drain(fault)
            case Kind.PAUSE:
                await self._users.pause(fault)
            case Kind.CANCEL:
                await self._users.cancel(fault)
            case _:
                self._adversary.begin(fault)
                if fault.kind is Kind.PARTITION:
                    self._gangs.cut(fault.who)
                await asyncio.sleep(fault.for_s)
                self._adversary.end(fault)

    def _target(self, who: str) -> str:
        """Of several allocators or trackers, the one that leads: the others are of no interest to an adversary."""
        bucket = {"allocator": "rounds", "tracker": "progress"}.get(who)
        record = self._hub.buckets.get(bucket, {}).get("leader") if bucket else None
        holder = codec.decode(record.data, Leader).holder if record else ""
        return holder if holder in self._processes else who

    async def _kill(self, name: str, fault: Fault, process: _Process) -> None:
        if fault.effects == 0:
            await self._bury(name, process, fault.for_s)
            return
        process.plane.on_death = lambda: self._later(self._bury(name, process, fault.for_s))
        process.plane.die_after(fault.effects)

    async def _freeze(self, fault: Fault) -> None:
        process = self._processes.get(self._target(fault.who))
        if process is None or process.plane.frozen:
            return
        if fault.effects:
            process.plane.freeze_after(fault.effects)
        else:
            process.plane.freeze()
        await asyncio.sleep(fault.for_s)
        process.plane.thaw()
        if process.agent is not None:
            process.agent.thawed()

    async def _strike_node(self, fault: Fault) -> None:
        process = self._processes.get(fault.who)
        if process is None or process.agent is None:
            return
        if fault.kind is Kind.FORK_CRASH:
            process.agent.trainer.crash_one()
            return
        process.agent.feed(ev.HealthChanged(at=_now(), device=0, healthy=False, reason="Xid 79"))
        await asyncio.sleep(fault.for_s)
        if self._processes.get(fault.who) is process:
            process.agent.feed(ev.HealthChanged(at=_now(), device=0, healthy=True))

    # --- small parts ---

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _note(self, what: str) -> None:
        self.story.append(f"{_now():9.3f} {what}")

    def _verdict(self) -> Verdict:
        events = self._adversary.parcels + self._hub.writes + self._agent_events
        events += sum(process.agent.events for process in self._processes.values() if process.agent is not None)
        return Verdict(
            scenario=self.scenario,
            violations=tuple(self._laws.violations),
            events=events,
            rounds=self._laws.head.round if self._laws.head else 0,
            virtual_s=_now(),
            digest=hashlib.sha256("\n".join(self.story).encode()).hexdigest(),
            story=tuple(self.story),
        )

    async def _stop(self) -> None:
        processes, self._processes = self._processes, {}
        for process in processes.values():
            process.plane.crash()
            process.plane.thaw()
            if process.agent is not None:
                process.agent.died()
            process.task.cancel()
        ending = [process.task for process in processes.values()]
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*ending, *self._background, return_exceptions=True)


def simulate(scenario: Scenario, control: Control) -> Verdict:
    """Runs a scenario in virtual time, silently; whatever is random in it comes from its seed."""
    state = random.getstate()
    random.seed(f"jitter {scenario.seed}")
    try:
        with _silence():
            return run_virtually(World(scenario, control).run(), deaf=True)
    finally:
        random.setstate(state)


@contextmanager
def _silence() -> Iterator[None]:
    known = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        yield
    finally:
        structlog.configure(**known)


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


def _now() -> float:
    return asyncio.get_running_loop().time()
