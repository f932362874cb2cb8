"""A node agent in virtual time: a trainer that computes instead of training, and a tracker that one can switch off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builders_leases import NODE, a_device
from hadare.machines import lease_commands as do
from hadare.machines import lease_events as ev
from hadare.machines.lease_state import LeaseLimits
from hadare.model.devices import Device
from hadare.model.errors import Unavailable
from hadare.model.jobs import ObjectRef
from hadare.model.leases import Evaluation, Failure, ForkResult, LeaseKey, ResultAnswer
from hadare.runtime.bus import Identity, Route
from hadare.runtime.memory import MemoryBackplane, MemoryHub
from hadare.wire.subjects import RESULT, WEIGHTS
from hadare_node_agent.devices import FixedProbe
from hadare_node_agent.heartbeat import Vitals, beat
from hadare_node_agent.namesake import LISTEN_S
from hadare_node_agent.results import ResultStore
from hadare_node_agent.service import Adapters, AgentIdentity, NodeAgent
from hadare_node_agent.trainer import Emit, OnLine, ProcessCommand
from hadare_node_agent.weights import WeightsCache

START_S = 0.5
SAVE_S = 0.05
KILL_S = 0.1
RATE = 10.0


@dataclass
class FakeTrainer:
    """Processes that start in ``START_S`` and do ``RATE`` steps/s. ``deaf`` jobs ignore a stop, and the clock."""

    scratch: Path
    deaf: set[str] = field(default_factory=set)
    immortal: set[str] = field(default_factory=set)
    alive: dict[str, do.StartProcess] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    stuck_devices: dict[int, str] = field(default_factory=dict)
    closed: bool = False

    def __post_init__(self) -> None:
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._began: dict[str, tuple[do.Assign, float]] = {}

    async def start(self, emit: Emit, on_line: OnLine) -> tuple[str, ...]:
        self._emit, self._on_line = emit, on_line
        await asyncio.sleep(0)
        return ("hadare.training.workloads.digits:Digits",)

    @property
    def stuck(self) -> Set[int]:
        return self.stuck_devices.keys()

    async def recheck(self) -> list[int]:
        await asyncio.sleep(0)
        freed = [index for index, job in self.stuck_devices.items() if job not in self.immortal]
        for index in freed:
            del self.stuck_devices[index]
        return freed

    async def close(self) -> bool:
        await asyncio.sleep(0)
        self.closed = True
        return not self.alive

    def perform(self, command: ProcessCommand) -> None:
        match command:
            case do.StartProcess():
                self.alive[command.process] = command
                self.started.append(command.process)
                self._later(command.process, START_S, lambda: self._ready(command.process))
            case do.Assign():
                self._assign(command)
            case do.Stop():
                if command.process in self._began and self._job(command.process) not in self.deaf:
                    self._later(command.process, SAVE_S, lambda: self._finish(command.process, "clock"))
            case do.Kill():
                self._forget(command.process)
                asyncio.get_running_loop().call_later(KILL_S, self._killed, command.process)

    def crash(self, process: str) -> None:
        """The process ends without a word."""
        self._forget(process)
        self._emit(ev.ProcessFailed(at=_now(), process=process, failure=a_crash()))

    def say(self, process: str, line: str) -> None:
        self._on_line(self._began[process][0].lease.key, line)

    def _job(self, process: str) -> str:
        return self.alive[process].key.job_id

    def _ready(self, process: str) -> None:
        self._emit(ev.ProcessReady(at=_now(), process=process))

    def _assign(self, command: do.Assign) -> None:
        self._began[command.process] = (command, _now())
        self._progress(command)
        if command.lease.key.job_id in self.deaf:
            return
        by_quota_s = command.lease.quota / RATE
        reason = "quota" if by_quota_s < command.left_s else "clock"
        span_s = min(by_quota_s, command.left_s) if command.lease.kind == "train" else 1.0
        self._later(command.process, span_s + SAVE_S, lambda: self._finish(command.process, reason))

    def _progress(self, command: do.Assign) -> None:
        progress = ev.Progress(phase="training", nominal_rate=RATE)
        self._emit(ev.WorkProgressed(at=_now(), process=command.process, lease=command.lease_id, progress=progress))

    def _finish(self, process: str, reason: Any) -> None:
        command, began = self._began.pop(process)
        kind, trained_s = command.lease.kind, _now() - began - SAVE_S
        steps = round(trained_s * RATE) if kind == "train" else 0
        path = self.scratch / f"{command.lease_id}.safetensors"
        if kind != "evaluate":
            path.write_text(f"{command.base_path and Path(command.base_path).read_text()} + {command.lease_id}")
        base = command.lease.base
        evaluation = (
            Evaluation(version=command.lease.base_version, sha256=base.sha256, metrics={"a": 1}) if base else None
        )
        outcome = ev.Outcome(
            reason=reason if kind == "train" else "done",
            steps=steps,
            path=None if kind == "evaluate" else str(path),
            evaluation=evaluation if kind == "evaluate" else None,
            throughput=RATE,
            nominal_rate=RATE,
            trained_s=trained_s if kind == "train" else 0.0,
            idle_s=SAVE_S,
        )
        self._emit(ev.WorkDone(at=_now(), process=process, lease=command.lease_id, outcome=outcome))

    def _killed(self, process: str) -> None:
        started = self.alive.pop(process)
        immortal = started.key.job_id in self.immortal
        if immortal:
            self.stuck_devices.update(dict.fromkeys(started.devices, started.key.job_id))
        reason = "it does not die" if immortal else ""
        self._emit(ev.ProcessEnded(at=_now(), process=process, free=not immortal, reason=reason))

    def _later(self, process: str, after_s: float, act: Callable[[], None]) -> None:
        if process in self._timers:
            self._timers[process].cancel()
        self._timers[process] = asyncio.get_running_loop().call_later(after_s, act)

    def _forget(self, process: str) -> None:
        self._began.pop(process, None)
        if process in self._timers:
            self._timers.pop(process).cancel()


class LoopHeart:
    """A heart that beats in the agent's own loop."""

    def __init__(self, backplane: MemoryBackplane) -> None:
        self._bus = backplane.bus

    def start(self, vitals: Vitals) -> None:
        self._beating = asyncio.create_task(beat(self._bus, vitals, 1.0, 1e9))

    async def stop(self) -> None:
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)


@dataclass
class FakeTracker:
    """Counts every first result. ``deaf``: it does not answer; ``refuses``: it has a reason against everything."""

    hub: MemoryHub
    deaf: bool = False
    refuses: str = ""
    results: list[ForkResult] = field(default_factory=list)

    async def start(self) -> None:
        identity = Identity(name="tracker", version="1.0.0", description="a fake")
        self._serving = await self.hub.connect("tracker").bus.serve(identity, [Route(RESULT, self._on_result)])

    async def _on_result(self, result: ForkResult) -> ResultAnswer:
        await asyncio.sleep(0)
        if self.deaf:
            raise Unavailable("the tracker does not lead")
        self.results.append(result)
        return ResultAnswer(counted=not self.refuses, reason=self.refuses)

    def of(self, key: LeaseKey) -> list[ForkResult]:
        return [result for result in self.results if result.key == key]


class StrickenProbe(FixedProbe):
    """Devices that can break: ``strike`` one, and the driver says so at once."""

    def __init__(self, devices: Sequence[Device]) -> None:
        super().__init__(devices)
        self._faults = dict.fromkeys((device.index for device in devices), "")
        self._struck = asyncio.Event()

    def strike(self, index: int, reason: str) -> None:
        self._faults[index] = reason
        self._struck.set()

    async def faults(self, in_use: Set[int]) -> dict[int, str]:
        return dict(self._faults)

    async def alarm(self, limit_s: float) -> None:
        self._struck.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._struck.wait()


@dataclass
class World:
    """A hub with a tracker and one agent on it. ``restart`` is a new incarnation in the same folder."""

    folder: Path
    devices: tuple[Device, ...] = (a_device(0), a_device(1, "T4"))
    limits: LeaseLimits = field(default_factory=lambda: LeaseLimits(stop_grace_s=2.0))
    hub: MemoryHub = field(default_factory=MemoryHub)
    incarnations: int = 0

    async def start(self) -> None:
        self.tracker = FakeTracker(self.hub)
        await self.tracker.start()
        self.asker = self.hub.connect("asker").bus
        await self.start_agent()

    async def start_agent(self) -> None:
        self.incarnations += 1
        scratch = self.folder / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        backplane = self.hub.connect(f"agent-{self.incarnations}")
        self.probe = StrickenProbe(self.devices)
        self.backplane, self.trainer = backplane, FakeTrainer(scratch)
        adapters = Adapters(
            backplane=backplane,
            trainer=self.trainer,
            weights=WeightsCache(backplane.objects(WEIGHTS), self.folder / "weights", 10**6, 5.0),
            results=ResultStore(self.folder / "results"),
            probe=self.probe,
            heart=LoopHeart(backplane),
        )
        identity = AgentIdentity(
            node=NODE, incarnation=f"i{self.incarnations}", labels={"rack": "a"}, host="here", version="0.1.0"
        )
        self.agent = NodeAgent(identity, adapters, self.devices, self.limits, health_s=10.0)
        self.running = asyncio.create_task(self.agent.run())
        await asyncio.sleep(0.1 + (LISTEN_S if self.incarnations > 1 else 0.0))

    async def kill_agent(self) -> None:
        """As ``kill -9`` does: nothing is handed back, and its forks die with it."""
        self.backplane.crash()
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    async def drain_agent(self, limit_s: float = 5.0) -> None:
        self.agent.drain(limit_s)
        await self.running

    async def store(self, text: str = "weights of version 0") -> ObjectRef:
        path = self.folder / "version"
        path.write_text(text)
        return await self.hub.connect("store").objects(WEIGHTS).put(path, "test")

    def kept_results(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "results").glob("*"))

    def events(self, what: str) -> list[dict[str, Any]]:
        return [stored.event.data for stored in self.hub.events if stored.event.what == what]


def a_crash() -> Failure:
    return Failure(kind="killed", message="the fork's process ended by signal 9")


def _now() -> float:
    return asyncio.get_running_loop().time()
