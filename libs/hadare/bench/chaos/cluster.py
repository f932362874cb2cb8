"""The cluster that is put to the test: what ``hadare up`` starts, with replicas and a proxy before each program."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import psutil

from hadare.bench.chaos.proxy import Proxy
from hadare.local import processes
from hadare.local.directory import LocalCluster, free_port, remember
from hadare.local.processes import Program
from hadare.local.programs import programs
from hadare.local.spec import parse_cluster
from hadare.local.stuck import until_stuck
from hadare.local.supervisor import Supervisor

BUS = "nats"
REPLICATED = ("allocator", "jobtracker")
NODES = "1x1:V100,1x1:P100,1x1:T4,1x1:K80"
_DISK_MB, _STORE_MB = 64, 256
_LONGEST_PAUSE_S = 2.0
_SWEEP_S = 8.0
_WALL_CLOCK = Path(__file__).parent / "wall_clock"


@dataclass(slots=True)
class Life:
    """One process of a program, in seconds of this machine's monotonic clock. ``ended`` None: it lives."""

    program: str
    pid: int
    began: float
    ended: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """``extra``: more environment for a program, by its kind (``allocator``, ``node_agent``, …)."""

    directory: Path
    nodes: str = NODES
    round_s: float = 3.0
    extra: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class ChaosCluster:
    """``async with`` starts it and ends it; nothing of it is left afterwards, or ``Broken`` is raised."""

    def __init__(self, setting: Setting, say: Callable[[str], None]) -> None:
        self.directory = setting.directory
        self.lives: list[Life] = []
        self.proxies: dict[str, Proxy] = {}
        self._setting = setting
        self._say = say
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._mounted: list[Path] = []
        self.local = LocalCluster(port=free_port(), spec=parse_cluster(setting.nodes), round_s=setting.round_s)
        self.nodes = tuple(node.name for node in self.local.spec.nodes)
        self.disks: dict[str, Path] = {}
        self.clocks: dict[str, Path] = {}
        """Where each program is told how far its wall clock is off; see ``wall_clock/sitecustomize.py``."""

    async def __aenter__(self) -> ChaosCluster:
        self.directory.mkdir(parents=True, exist_ok=True)
        remember(self.directory, self.local)
        self._give_disk(BUS, self.directory / BUS, _STORE_MB)  # before anything is written there
        wanted = [await self._placed(program) for program in self._programs()]
        supervisor = Supervisor(
            self.directory,
            wanted,
            self._say,
            longest_pause_s=_LONGEST_PAUSE_S,
            told=self._heard,
            stuck=partial(until_stuck, self.directory / BUS),
        )
        self._task = asyncio.create_task(supervisor.run(self._stop, self.local.port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        try:
            if self._task is not None:
                await self._task
        finally:
            for proxy in self.proxies.values():
                await proxy.close()
            self._take_disks()

    @property
    def services(self) -> list[str]:
        return [name for name in self.proxies if name not in self.nodes]

    def replicas(self, kind: str) -> list[str]:
        return [name for name in self.proxies if name.split("-")[0] == kind]

    def pid(self, name: str) -> int | None:
        """The program's process, if it has one now."""
        return next((life.pid for life in reversed(self.lives) if life.program == name and life.ended is None), None)

    def signal(self, name: str, number: int) -> bool:
        """False if there is no such process now."""
        pid = self.pid(name)
        return pid is not None and send(pid, number)

    def forks(self, node: str) -> list[int]:
        """Processes below an agent's fork server: what trains."""
        pid = self.pid(node)
        if pid is None:
            return []
        with suppress(psutil.Error):
            servers = psutil.Process(pid).children()
            return [child.pid for server in servers for child in server.children()]
        return []

    def crashed(self) -> bool:
        return self._task is not None and self._task.done()

    def _programs(self) -> list[Program]:
        found = []
        for program in programs(self.local, self.directory):
            if program.name in REPLICATED:
                found += [self._replica(program, number) for number in (1, 2)]
            else:
                found.append(program)
        return found

    def _replica(self, program: Program, number: int) -> Program:
        name = f"{program.name}-{number}"
        env = {**program.env, "HADARE_INSTANCE": name}
        if "HADARE_WORK_DIR" in env:
            env["HADARE_WORK_DIR"] = str(self.directory / name)
        return replace(program, name=name, env=env)

    async def _placed(self, program: Program) -> Program:
        """Behind a proxy of its own, and with a small disk of its own where this user may mount one."""
        if program.name == BUS:
            return program
        proxy = Proxy(program.name, self.local.port)
        await proxy.start()
        self.proxies[program.name] = proxy
        kind = "node_agent" if program.name in self.nodes else program.name.split("-")[0]
        env = {
            **program.env,
            "HADARE_NATS_URL": proxy.url,
            "HADARE_OTLP_ENDPOINT": "",
            "HADARE_SWEEP_S": str(_SWEEP_S),
            **self._setting.extra.get(kind, {}),
        }
        env |= self._give_clock(program.name, env.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")))
        if "HADARE_WORK_DIR" in env:
            self._give_disk(program.name, Path(env["HADARE_WORK_DIR"]), _DISK_MB)
        return replace(program, env=env)

    def _give_clock(self, name: str, path: str) -> dict[str, str]:
        """A wall clock of its own, which is off by the seconds that a file names; ``path`` is its Python path."""
        clock = self.clocks[name] = self.directory / "clocks" / name
        clock.parent.mkdir(exist_ok=True)
        clock.write_text("0")
        folders = os.pathsep.join(filter(None, [str(_WALL_CLOCK), path]))
        return {"CHAOS_WALL_CLOCK": str(clock), "PYTHONPATH": folders}

    def _give_disk(self, name: str, folder: Path, megabytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.disks[name] = folder
        if os.geteuid() != 0:
            return
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
        if subprocess.run(mount, check=False, capture_output=True).returncode == 0:
            self._mounted.append(folder)

    def _take_disks(self) -> None:
        """Unmounts them, and leaves what they held in their places."""
        for folder in self._mounted:
            kept = folder.with_name(f"{folder.name}.kept")
            shutil.copytree(folder, kept, symlinks=True)
            subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
            folder.rmdir()
            kept.rename(folder)

    @property
    def has_own_disks(self) -> bool:
        return len(self._mounted) == len(self.disks)

    def _heard(self, name: str, pid: int | None) -> None:
        now = time.monotonic()
        if pid is not None:
            self.lives.append(Life(name, pid, now))
            return
        for life in self.lives:
            if life.program == name and life.ended is None:
                life.ended = now

    def processes_left(self) -> list[str]:
        """What still carries the cluster's mark, after its end."""
        return [f"{process.pid}" for process in processes.marked(self.directory)]


def send(pid: int, number: int) -> bool:
    """Signals a process; false if it has ended meanwhile."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
