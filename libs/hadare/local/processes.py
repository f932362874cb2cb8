"""Operating-system processes of a local cluster: none outlives its parent, every one is found by its mark.

The mark is an environment variable that children inherit, so it also finds what a crashed parent left behind.
Linux only: parent-death signals, process file descriptors and ``/proc``.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

MARK = "HADARE_CLUSTER"
"""Environment variable that names the cluster's directory in every process that belongs to it."""

PROGRAM = "HADARE_PROGRAM"
"""Environment variable that names the program of the cluster that a process descends from."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_LOG_BYTES = 4_000_000
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Program:
    """One process of a cluster. Stages end in ascending order, each with ``grace_s`` between SIGTERM and SIGKILL."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stage: int = 1
    grace_s: float = 10.0


def start(program: Program, directory: Path) -> subprocess.Popen[bytes]:
    """Starts a program in its own process group with its output in ``logs/<name>.log``. Raises ``OSError``."""
    log = directory / "logs" / f"{program.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    rotate(log)
    with log.open("ab") as output:
        return subprocess.Popen(
            program.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=environment(program, directory),
            process_group=0,
            preexec_fn=dies_with_parent(),
        )


def environment(program: Program, directory: Path) -> dict[str, str]:
    """This process' environment, without HadarE's settings (they may be meant for another cluster), and its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HADARE_")}
    return {**inherited, **program.env, MARK: str(directory), PROGRAM: program.name}


def dies_with_parent(number: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """What a child runs before it becomes another program: the kernel signals it when this thread ends."""
    parent = os.getpid()

    def arrange() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def rotate(log: Path, limit: int = _LOG_BYTES) -> None:
    """Moves a log that has grown over ``limit`` bytes aside; one older log is kept."""
    if log.exists() and log.stat().st_size > limit:
        log.replace(log.with_suffix(".log.1"))


def trim(folder: Path, limit: int) -> None:
    """Deletes the oldest files of a folder until the others take at most ``limit`` bytes together."""
    files = sorted((f for f in folder.glob("*") if f.is_file()), key=lambda f: f.stat().st_mtime, reverse=True)
    total = 0
    for file in files:
        total += file.stat().st_size
        if total > limit:
            file.unlink()


async def exited(process: subprocess.Popen[bytes]) -> int:
    """Waits for the end of a process without polling; its exit status."""
    ended = asyncio.Event()
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return process.wait()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return process.wait()


def marked(directory: Path, program: str | None = None) -> list[psutil.Process]:
    """Every living process with the mark of the cluster in ``directory``, except this one and its parents.

    ``program`` narrows it to one program and what it started.
    """
    wanted = {MARK: str(directory)} | ({} if program is None else {PROGRAM: program})
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        if process.pid in own:
            continue
        try:
            if process.status() != psutil.STATUS_ZOMBIE and wanted.items() <= process.environ().items():
                found.append(process)
        except (psutil.Error, OSError):
            continue  # ended meanwhile, or another user's: not ours
    return found


def end(processes: Sequence[psutil.Process], grace_s: float) -> list[psutil.Process]:
    """SIGTERM, ``grace_s`` of time, SIGKILL; returns those that are still there a moment later."""
    _signal(processes, signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    _signal(alive, signal.SIGKILL)
    _, alive = psutil.wait_procs(alive, timeout=5.0)
    return list(alive)


def end_marked(directory: Path, program: str | None = None, limit_s: float = 15.0) -> list[int]:
    """Kills every process with the mark, also those that appear meanwhile; the ids of what could not be ended."""
    deadline = time.monotonic() + limit_s
    left = marked(directory, program)
    while left and time.monotonic() < deadline:
        end(left, grace_s=0.0)
        left = marked(directory, program)
        if left:
            time.sleep(_POLL_S)
    return sorted(process.pid for process in left)


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
