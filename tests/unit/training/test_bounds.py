"""What a fork may take of its machine, on processes that really live."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hadare.training.bounds import Bounds, Root, excesses, machine_memory
from hadare.training.processes import end_fork, read_process

MARKER = f"bounds-test-{os.getpid()}"
LAVISH = Bounds(processes=1000)


@contextmanager
def a_program(text: str) -> Iterator[Root]:
    """A Python program in a session of its own, once it has printed a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{text}\nprint(flush=True)\nimport time; time.sleep(600)"],
        env={**os.environ, "HADARE_FORK": MARKER},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    seen = read_process(process.pid)
    assert seen is not None
    try:
        yield Root(process.pid, seen.started, MARKER)
    finally:
        assert end_fork(process.pid, seen.started, MARKER)
        process.wait()
        process.stdout.close()


THREE_DAEMONS = "import subprocess\nfor _ in range(3): subprocess.Popen(['sleep', '600'], start_new_session=True)"


def test_a_fork_within_its_bounds_is_left_alone() -> None:
    with a_program("") as root:
        assert excesses({"p1": root}, LAVISH) == {}


def test_processes_that_have_left_the_session_count_as_well() -> None:
    with a_program(THREE_DAEMONS) as root:
        fault = excesses({"p1": root}, Bounds(processes=3))["p1"]
    assert (fault.kind, fault.message) == ("exception", "it had 4 processes at once; a fork may have 3")


def test_memory_that_no_node_of_this_size_has_is_the_nodes_fault_not_the_jobs() -> None:
    with a_program("hoard = bytearray(80 * 2**20)") as root:
        fault = excesses({"p1": root}, Bounds(memory_bytes=60 * 2**20))["p1"]
    assert (fault.kind, fault.node_specific) == ("out_of_memory", True)
    assert "a fork may have 0.06 GiB here" in fault.message


READERS = """import os, time
hoard = bytearray(b"x" * (80 * 2**20))
for _ in range(3):
    if os.fork() == 0:
        time.sleep(600)
"""


def test_memory_that_a_forks_processes_share_is_counted_once() -> None:
    with a_program(READERS) as root:
        assert excesses({"p1": root}, Bounds(memory_bytes=200 * 2**20)) == {}
        assert set(excesses({"p1": root}, Bounds(memory_bytes=60 * 2**20))) == {"p1"}


def test_only_the_fork_that_takes_too_much_is_named() -> None:
    with a_program("") as small, a_program("hoard = bytearray(80 * 2**20)") as large:
        assert set(excesses({"small": small, "large": large}, Bounds(memory_bytes=60 * 2**20))) == {"large"}


def test_a_fork_that_is_gone_takes_nothing() -> None:
    with a_program("") as root:
        pass
    assert excesses({"p1": root}, Bounds(processes=1)) == {}


def test_a_machine_has_memory_within_reason() -> None:
    assert 2**26 < machine_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
