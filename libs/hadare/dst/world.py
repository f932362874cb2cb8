"""One simulation from its first second to its verdict: services, agents, a supervisor, users, faults, and the laws."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from hadare.dst.adversary import Adversary
from hadare.dst.laws import Laws, Violation
from hadare.dst.scenario import Fault, Kind, Scenario
from hadare.dst.supervisor import KEEP_VERSIONS, Control, Process, Supervisor
from hadare.dst.users import Users
from hadare.machines import lease_events as ev
from hadare.model.rounds import Leader
from hadare.runtime.memory import MemoryHub
from hadare.runtime.virtual import run_virtually
from hadare.wire import codec
from hadare.wire.subjects import WEIGHTS

END_LIMIT_S = 600.0
"""How long after the last fault every job must have ended."""
REST_S = 45.0
"""How long everything may take to come to rest after the last job's end: two sweeps, and what led to them."""
QUIET_S = 6.0
"""How long it has to stay at rest: a round, or half of the time until a silent node is lost."""
REST_LOOK_S = 1.0
AFTERMATH_S = 12.0
"""How long after its end a fault may still have messages and writes on their way."""


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
        self._adversary = adversary
        self.writes = 0
        self.seen: Callable[[str, str, bytes | None], None] = lambda _bucket, _key, _data: None

    async def turn(self) -> None:
        """The adversary says whether others go first: a write has taken its time already when it comes here."""
        if self._adversary.interrupts():
            await asyncio.sleep(0)

    def write(self, bucket: str, key: str, data: bytes | None) -> int:
        revision = super().write(bucket, key, data)
        self.writes += 1
        self.seen(bucket, key, data)
        return revision


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
        self._gangs = self._laws.gangs
        self._supervisor = Supervisor(
            self.scenario, self.control, self._hub, self._adversary, self._laws, self._gangs, self._note
        )
        self._processes, self._later = self._supervisor.processes, self._supervisor.later
        for name in self._supervisor.lasting():
            self._supervisor.start(name)
        for job in self.scenario.jobs:
            self._later(self._users.submit(job))
        for fault in self.scenario.faults:
            self._later(self._strike(fault))
        await self._until_the_end()
        verdict = self._verdict()
        await self._supervisor.stop()
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
            self._laws.judge_gangs(self._supervisor.agents(), self.scenario.faults)
            self._changed.clear()
            try:
                async with asyncio.timeout_at(max(_now() + 1.0, min(limit, calm_at + 0.1))):
                    await self._changed.wait()
            except TimeoutError:
                continue
        if self._laws.violations:
            return
        await self._come_to_rest()
        self._laws.judge_end(self._supervisor.agents(), KEEP_VERSIONS)

    async def _come_to_rest(self) -> None:
        """Returns when nothing has been left to do for ``QUIET_S``, or after ``REST_S``."""
        limit = _now() + REST_S
        quiet_from = max(_now(), self.scenario.calm_at + AFTERMATH_S)
        while _now() < limit and _now() < quiet_from + QUIET_S:
            await asyncio.sleep(REST_LOOK_S)
            if not self._laws.at_rest(self._supervisor.agents(), KEEP_VERSIONS):
                quiet_from = max(quiet_from, _now())

    def _all_ended(self) -> bool:
        progress = self._laws.progress
        return all(job.job_id in progress and progress[job.job_id].state.ended for job in self.scenario.jobs)

    def _blame_the_stuck(self) -> None:
        for job in self.scenario.jobs:
            progress = self._laws.progress.get(job.job_id)
            if progress is None or not progress.state.ended:
                state = f"{progress.state}: {progress.reason} {progress.open}" if progress else "unknown to the tracker"
                self._laws.broken("every job comes to its end", f"{job.job_id} is {state}")

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
                    *(
                        self._supervisor.bury(name, process, fault.for_s)
                        for name, process in list(self._processes.items())
                    )
                )
            case Kind.FREEZE:
                await self._freeze(fault)
            case Kind.FORK_CRASH | Kind.DEVICE_FAULT:
                await self._strike_node(fault)
            case Kind.POISON:
                await self._users.suffer(fault, self._supervisor.disks[fault.who])
            case Kind.RIVAL:
                self._supervisor.start(f"{fault.who}-rival")
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

    async def _kill(self, name: str, fault: Fault, process: Process) -> None:
        if fault.effects == 0:
            await self._supervisor.bury(name, process, fault.for_s)
            return
        process.plane.on_death = lambda: self._later(self._supervisor.bury(name, process, fault.for_s))
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

    def _note(self, what: str) -> None:
        self.story.append(f"{_now():9.3f} {what}")

    def _verdict(self) -> Verdict:
        events = self._adversary.parcels + self._hub.writes + self._supervisor.events
        return Verdict(
            scenario=self.scenario,
            violations=tuple(self._laws.violations),
            events=events,
            rounds=self._laws.head.round if self._laws.head else 0,
            virtual_s=_now(),
            digest=hashlib.sha256("\n".join(self.story).encode()).hexdigest(),
            story=tuple(self.story),
        )


def simulate(scenario: Scenario, control: Control) -> Verdict:
    """Runs a scenario in virtual time, silently; whatever is random in it comes from its seed."""
    state = random.getstate()
    random.seed(f"jitter {scenario.seed}")
    try:
        with _silence(), _uncollected():
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


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without searches for garbage: a run makes some 50 MB at most, all of which ends with it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _now() -> float:
    return asyncio.get_running_loop().time()
