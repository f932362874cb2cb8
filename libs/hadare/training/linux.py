"""Three things of Linux that the standard library lacks: dying with one's parent, adopting orphans, a marker that all
descendants carry in ``/proc/<pid>/environ``."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from signal import Signals

MARKER = "HADARE_FORK"
MARKER_ROOM = 512

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ENV_START, _ENV_END = 49, 50


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def die_with_parent(signal: Signals, parent: int) -> None:
    """Has the kernel send ``signal`` when the parent ends. Leaves at once if ``parent`` is gone already.

    Linux watches the *thread* that started this process: start it from one that lives as long as the process should.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signal))
    if os.getppid() != parent:
        sys.exit(f"parent {parent} is gone")


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process rather than of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def marker_placeholder() -> str:
    """What ``MARKER`` must be set to when a process is executed, so that ``write_marker`` has room."""
    return "-" * MARKER_ROOM


def write_marker(value: str) -> None:
    """Writes ``value`` over ``MARKER`` where this process was given its environment.

    ``/proc/<pid>/environ`` shows that memory, not what was set later; forked descendants inherit it as it is.
    """
    if not 0 < len(value) <= MARKER_ROOM:
        raise ValueError(f"a marker has 1 to {MARKER_ROOM} characters")
    start, end = _environment_bounds()
    block = ctypes.string_at(start, end - start)
    at = block.find(f"\0{MARKER}=".encode())
    at = at + 1 if at >= 0 else 0
    head = f"{MARKER}=".encode()
    if not block.startswith(head, at):
        raise RuntimeError(f"this process was not started with {MARKER}")
    room = (block + b"\0").index(b"\0", at) - at - len(head)
    if room >= len(value):  # shorter only if somebody set it to something else on purpose
        ctypes.memmove(start + at + len(head), value.encode().ljust(room, b"\0"), room)
    os.environ[MARKER] = value


def _environment_bounds() -> tuple[int, int]:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # Fields are numbered from 1 and the first two, pid and name, are cut off.
    return int(fields[_ENV_START - 2]), int(fields[_ENV_END - 2])
