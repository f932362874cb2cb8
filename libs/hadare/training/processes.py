"""Ends everything that a fork has started, and proves it. Goes by ancestry, session and marker, never by user or name.

Reads ``/proc`` anew until nothing is left, so that a process that is forking meanwhile is caught as well.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hadare.training.linux import MARKER

_PROC = Path("/proc")
_POLL_S = 0.005
_DEAD = frozenset("ZX")


@dataclass(frozen=True, slots=True)
class Process:
    """A line of the process table; ``started`` (clock ticks since boot) tells it from a later holder of its pid."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int


def process_table() -> dict[int, Process]:
    """All processes that live now; zombies are dead."""
    table = {}
    for entry in os.scandir(_PROC):
        if entry.name.isdigit() and (found := read_process(int(entry.name))) and found.state not in _DEAD:
            table[found.pid] = found
    return table


def read_process(pid: int) -> Process | None:
    """One process, dead or alive; ``None`` if there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return Process(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def marker_of(pid: int) -> str:
    """The marker in a process's environment; empty if it has none or it may not be read."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return ""
    head = f"{MARKER}=".encode()
    for entry in environment.split(b"\0"):
        if entry.startswith(head):
            return entry.removeprefix(head).decode(errors="replace")
    return ""


def tree(table: Mapping[int, Process], root: int, started: int) -> set[int]:
    """``root``, its group, its session, and all their descendants.

    If the pid ``root`` has gone to a process with another start time, that one and its session are not ours.
    """
    holder = table.get(root)
    if holder is not None and holder.started != started:
        return set()
    found = {p.pid for p in table.values() if root in (p.pid, p.group, p.session)}
    return found | descendants(table, found)


def descendants(table: Mapping[int, Process], roots: set[int]) -> set[int]:
    """All below ``roots``."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    pending = [child for root in roots for child in children.get(root, [])]
    while pending:
        pid = pending.pop()
        if pid not in found:
            found.add(pid)
            pending += children.get(pid, [])
    return found - roots


def members(root: int, started: int, marker: str) -> set[int]:
    """Every living process that belongs to a fork, this one excepted."""
    table = process_table()
    found = tree(table, root, started) if root > 0 else set()
    if marker:
        marked = {pid for pid in table if pid not in found and marker_of(pid) == marker}
        found |= marked | descendants(table, marked)
    return found - {os.getpid()}


def end_fork(root: int, started: int, marker: str, *, timeout_s: float = 5.0) -> bool:
    """Kills a fork's process and all that it started. True once nothing of it lives; false if something is
    unkillable (in the kernel's D state), and then its device must not be given to anybody.

    ``root`` 0: by marker alone. Blocks for as long as it takes, at most ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while left := members(root, started, marker):
        for pid in left:  # stopped first, so that none of them forks while others are being killed
            _signal(pid, signal.SIGSTOP)
        for pid in left:
            _signal(pid, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # gone already, or not ours to signal: the next look at the table decides


def device_holders(device: Path) -> set[int]:
    """Processes that hold a device file (``/dev/nvidia0``) open, as far as this user may see."""
    holders = set()
    for entry in os.scandir(_PROC):
        if entry.name.isdigit() and _holds(Path(entry.path) / "fd", str(device)):
            holders.add(int(entry.name))
    return holders


def _holds(folder: Path, device: str) -> bool:
    try:
        return any(_target(link) == device for link in os.scandir(folder))
    except OSError:
        return False


def _target(link: os.DirEntry[str]) -> str:
    try:
        return str(Path(link.path).readlink())
    except OSError:
        return ""
