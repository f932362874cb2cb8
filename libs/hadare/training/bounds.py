"""What a fork may take of its machine: how many processes, and how much memory. Reads ``/proc``, ends nothing.

A look every second or so is no wall, but it is enough that a fork which multiplies or swells is ended, with the reason,
before its neighbours feel it for long. The wall, where a deployment wants one, is its container's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hadare.model.leases import Failure
from hadare.training.processes import Process, descendants, marker_of, process_table, tree

MOST_PROCESSES = 512
MEMORY_PART = 0.9
"""Of what the machine, or the container around it, has: a fork that wants more would soon cost others their lives."""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True, slots=True)
class Bounds:
    """For all processes of a fork together."""

    processes: int = MOST_PROCESSES
    memory_bytes: int = 2**62


@dataclass(frozen=True, slots=True)
class Root:
    """A fork's first process; ``started`` and ``marker`` as in ``processes``."""

    pid: int
    started: int
    marker: str


def machine_memory() -> int:
    """Bytes of memory that there are for this process: the machine's, or its container's if that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * _PAGE
    return min([total, *_container_limits()])


def excesses(forks: Mapping[str, Root], bounds: Bounds) -> dict[str, Failure]:
    """Forks that take more than they may, each with what to say of it. Reads the process table once."""
    table = process_table()
    # Looking for markers reads every process's environment: only if somebody here has multiplied.
    many = len(descendants(table, {os.getpid()})) > bounds.processes
    found = {}
    for name, root in forks.items():
        fault = _fault(_members(table, root, many=many), bounds)
        if fault is not None:
            found[name] = fault
    return found


def _members(table: Mapping[int, Process], root: Root, *, many: bool) -> set[int]:
    members = tree(table, root.pid, root.started)
    if many:  # what has left the tree still carries the marker
        members |= {pid for pid in table if pid not in members and marker_of(pid) == root.marker}
    return members


def _fault(members: set[int], bounds: Bounds) -> Failure | None:
    if len(members) > bounds.processes:
        message = f"it had {len(members)} processes at once; a fork may have {bounds.processes}"
        return Failure(kind="exception", message=message)
    used = sum(_resident(pid) for pid in members)
    if used > bounds.memory_bytes:  # pages that parent and child still share were counted for each of them
        used = sum(_share(pid) for pid in members)
    if used > bounds.memory_bytes:
        most = bounds.memory_bytes / 2**30
        message = f"it used {used / 2**30:.2f} GiB of memory; a fork may have {most:.2f} GiB here"
        return Failure(kind="out_of_memory", message=message, node_specific=True)
    return None


def _share(pid: int) -> int:
    """Bytes of memory that are not backed by files, each page shared out among those that have it; 0 if it is gone.

    The kernel walks all of the process's pages for it, so it is read only where it may decide something.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    parts = [int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:")]
    return sum(parts) * 1024 if parts else _resident(pid)


def _resident(pid: int) -> int:
    """Bytes of memory that are not backed by files; 0 if it is gone. Quick to read."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return max(0, int(fields[1]) - int(fields[2])) * _PAGE


def _container_limits() -> Iterator[int]:
    for path in _CGROUP_LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            yield int(text)
