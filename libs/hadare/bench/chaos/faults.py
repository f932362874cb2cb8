"""Carries out faults, each in its own time, and undoes them. They may overlap."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hadare.bench.chaos.cluster import BUS, ChaosCluster, send
from hadare.bench.chaos.plan import Fault, Kind
from hadare.bench.chaos.proxy import Trouble
from hadare.bench.chaos.witness import Witness

T = TypeVar("T")

_PATIENCE_S = 20.0
"""How long a fault waits for something that it can hit, such as a fork."""

HOUR_S = 3600.0
_LOOK_S = 0.1
_BALLAST = "ballast"
_LINKS = {
    Kind.CUT_NODE: (Trouble.CUT,),
    Kind.STALL_NODE: (Trouble.STALL,),
    Kind.SLOW_NODE: (Trouble.SLOW,),
    Kind.DOUBLE: (Trouble.DOUBLE,),
    Kind.LATE: (Trouble.LATE, Trouble.DOUBLE),
}
_KILLED = {
    Kind.KILL_ALLOCATOR: "allocator",
    Kind.KILL_TRACKER: "jobtracker",
    Kind.KILL_PRICING: "pricing",
    Kind.KILL_GATEWAY: "gateway",
}


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that was carried out: what it hit, when, and when it was undone (monotonic)."""

    fault: Fault
    hit: str
    at: float
    undone_at: float


class Injector:
    """``play`` a schedule. ``struck`` and ``missed`` say what came of it."""

    def __init__(self, cluster: ChaosCluster, witness: Witness, seed: int, say: Callable[[str], None]) -> None:
        self.struck: list[Struck] = []
        self.missed: list[Fault] = []
        self._cluster = cluster
        self._witness = witness
        self._rng = random.Random(seed)
        self._say = say

    async def play(self, schedule: Sequence[Fault]) -> None:
        """Until the last fault is undone."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as striking:
            for fault in schedule:
                await asyncio.sleep(max(0.0, began + fault.at_s - time.monotonic()))
                striking.create_task(self._strike(fault))

    async def _strike(self, fault: Fault) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            at = time.monotonic()
            hit = await self._once(fault)
            if hit:
                self.struck.append(Struck(fault, hit, at, time.monotonic()))
                return
            await asyncio.sleep(_LOOK_S)
        self._say(f"fault {fault.number} ({fault.kind}) found nothing to hit")
        self.missed.append(fault)

    async def _once(self, fault: Fault) -> str:
        """What was hit; empty if there was nothing."""
        kind, nodes = fault.kind, self._cluster.nodes
        match kind:
            case Kind.KILL_ALLOCATOR | Kind.KILL_TRACKER | Kind.KILL_PRICING | Kind.KILL_GATEWAY:
                return self._kill(fault, self._replica(_KILLED[kind], fault))
            case Kind.KILL_AGENT:
                return self._kill(fault, _chosen(nodes, fault))
            case Kind.KILL_NATS:
                return self._kill(fault, BUS)
            case Kind.KILL_FORK:
                return self._kill_fork(fault)
            case Kind.KILL_ALL:
                return self._kill_all(fault)
            case Kind.FREEZE_SERVICE:
                kinds = ("allocator", "allocator", "jobtracker", "jobtracker", "pricing", "gateway")
                return await self._freeze(fault, self._replica(_chosen(kinds, fault), fault))
            case Kind.FREEZE_AGENT:
                return await self._freeze(fault, _chosen(nodes, fault))
            case Kind.FREEZE_NATS:
                return await self._freeze(fault, BUS)
            case Kind.CUT_LEADER:
                name = self._replica(_chosen(("allocator", "jobtracker"), fault), fault)
                return await self._trouble(fault, [name], (Trouble.CUT,))
            case Kind.CUT_NODE | Kind.STALL_NODE | Kind.SLOW_NODE:
                return await self._trouble(fault, [_chosen(nodes, fault)], _LINKS[kind])
            case Kind.DOUBLE:
                return await self._trouble(fault, list(self._cluster.proxies), _LINKS[kind])
            case Kind.LATE:
                return await self._trouble(fault, list(nodes), _LINKS[kind])
            case Kind.REPLAY:
                return await self._replay(fault)
            case Kind.JUMP_CLOCK:
                return await self._jump(fault, _chosen(list(self._cluster.clocks), fault))
            case Kind.DISK_FULL_AGENT:
                return await self._fill(fault, _chosen(nodes, fault))
            case Kind.DISK_FULL_TRACKER:
                return await self._fill(fault, self._replica("jobtracker", fault))
            case Kind.DISK_FULL_STORE:
                return await self._fill(fault, BUS)

    def _replica(self, kind: str, fault: Fault) -> str:
        """The leading replica or one of the others, where there are several."""
        replicas = self._cluster.replicas(kind)
        leader = self._witness.leaders.get(kind)
        if len(replicas) == 1 or leader not in replicas:
            return _chosen(replicas, fault)
        return leader if fault.leader else _chosen([name for name in replicas if name != leader], fault)

    def _kill(self, fault: Fault, name: str) -> str:
        if not self._cluster.signal(name, signal.SIGKILL):
            return ""
        return self._told(fault, name)

    def _kill_fork(self, fault: Fault) -> str:
        found = [(node, pid) for node in self._cluster.nodes for pid in self._cluster.forks(node)]
        if not found:
            return ""
        node, pid = _chosen(found, fault)
        return self._told(fault, f"fork of {node}") if send(pid, signal.SIGKILL) else ""

    def _kill_all(self, fault: Fault) -> str:
        names = [BUS, *self._cluster.proxies]
        hit = [name for name in names if self._cluster.signal(name, signal.SIGKILL)]
        return self._told(fault, f"{len(hit)} programs") if hit else ""

    async def _freeze(self, fault: Fault, name: str) -> str:
        pid = self._cluster.pid(name)
        if pid is None or not send(pid, signal.SIGSTOP):
            return ""
        self._told(fault, name)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            send(pid, signal.SIGCONT)
        return name

    async def _trouble(self, fault: Fault, names: Sequence[str], troubles: Sequence[Trouble]) -> str:
        with ExitStack() as suffering:
            for name in names:
                for trouble in troubles:
                    suffering.enter_context(self._cluster.proxies[name].suffers(trouble))
            hit = names[0] if len(names) == 1 else f"{len(names)} links"
            self._told(fault, hit)
            await asyncio.sleep(fault.for_s)
        return hit

    async def _replay(self, fault: Fault) -> str:
        answered = await self._witness.replay(self._rng)
        return self._told(fault, f"{answered} answered") if answered else ""

    async def _jump(self, fault: Fault, name: str) -> str:
        """The wall clock of a program, and of all that it starts, is an hour off for some time."""
        clock = self._cluster.clocks[name]
        if self._cluster.pid(name) is None or float(clock.read_text()):
            return ""
        hours = 1.0 if fault.number % 2 else -1.0
        self._told(fault, f"{name} by {hours:+.0f} h")
        clock.write_text(str(hours * HOUR_S))
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            clock.write_text("0")
        return name

    async def _fill(self, fault: Fault, name: str) -> str:
        ballast = self._cluster.disks[name] / _BALLAST
        if ballast.exists():
            return ""
        self._told(fault, name)
        try:
            await asyncio.to_thread(fill_up, ballast)
            await asyncio.sleep(fault.for_s)
        finally:
            ballast.unlink(missing_ok=True)
        return name

    def _told(self, fault: Fault, hit: str) -> str:
        for_s = f" for {fault.for_s:.1f} s" if fault.for_s else ""
        self._say(f"fault {fault.number}: {fault.kind}: {hit}{for_s}")
        return hit


def fill_up(ballast: Path) -> None:
    """Writes until the disk is full."""
    try:
        with ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(2**20))
    except OSError:
        return


def _chosen(among: Sequence[T], fault: Fault) -> T:
    return among[int(fault.draw * len(among))]
