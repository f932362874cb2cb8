import asyncio
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hadare.local import processes
from hadare.local.processes import MARK, PROGRAM, Program

WAITS = "import signal, sys; print('up', flush=True); signal.pause()"
SPAWNS_AND_WAITS = (
    "import subprocess, sys, signal\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], start_new_session=True)\n"
    "print(child.pid, flush=True); signal.pause()"
)


def a_program(code: str, name: str = "dummy", stage: int = 1) -> Program:
    return Program(name=name, command=(sys.executable, "-u", "-c", code), stage=stage)


@pytest.fixture
def directory(tmp_path: Path):
    yield tmp_path
    assert processes.end_marked(tmp_path) == []


def test_a_program_carries_the_mark_of_its_cluster_and_its_name(directory: Path) -> None:
    process = processes.start(a_program(WAITS), directory)
    environment = psutil.Process(process.pid).environ()
    assert environment[MARK] == str(directory)
    assert environment[PROGRAM] == "dummy"
    process.kill()
    process.wait()


def test_what_a_program_prints_is_in_its_log(directory: Path) -> None:
    process = processes.start(a_program("print('hello')"), directory)
    assert process.wait(timeout=20) == 0
    assert (directory / "logs" / "dummy.log").read_text() == "hello\n"


async def test_the_end_of_a_process_is_waited_for_and_its_status_known(directory: Path) -> None:
    process = processes.start(a_program("raise SystemExit(3)"), directory)
    assert await asyncio.wait_for(processes.exited(process), 20) == 3


async def test_a_process_that_has_already_ended_is_no_error(directory: Path) -> None:
    process = processes.start(a_program("pass"), directory)
    process.wait(timeout=20)
    assert await processes.exited(process) == 0


def test_processes_of_another_cluster_are_not_found(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    process = processes.start(a_program(WAITS), directory)
    other = tmp_path_factory.mktemp("other")
    assert processes.marked(other) == []
    assert [p.pid for p in processes.marked(directory)] == [process.pid]
    process.kill()
    process.wait()


def test_only_the_descendants_of_one_program_are_found_by_its_name(directory: Path) -> None:
    one = processes.start(a_program(WAITS, "one"), directory)
    two = processes.start(a_program(WAITS, "two"), directory)
    assert [p.pid for p in processes.marked(directory, "two")] == [two.pid]
    for process in (one, two):
        process.kill()
        process.wait()


def test_a_grandchild_in_a_session_of_its_own_is_ended_by_the_mark(directory: Path) -> None:
    process = processes.start(a_program(SPAWNS_AND_WAITS), directory)
    grandchild = _first_number(directory / "logs" / "dummy.log", process)
    process.kill()
    process.wait()
    assert psutil.pid_exists(grandchild)
    assert processes.end_marked(directory) == []
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE


def test_a_program_dies_when_its_parent_is_killed(directory: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from hadare.local import processes\n"
        "p = processes.Program(name='child', command=(sys.executable, '-c', 'import signal; signal.pause()'))\n"
        f"child = processes.start(p, Path({str(directory)!r}))\n"
        "print(child.pid, flush=True); child.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    _, alive = psutil.wait_procs([child], timeout=20)
    assert alive == []


def test_a_process_that_ignores_sigterm_is_killed(directory: Path) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    assert processes.end([psutil.Process(process.pid)], grace_s=0.1) == []
    assert not psutil.pid_exists(process.pid)
    process.communicate()


def test_a_large_log_is_moved_aside_and_a_small_one_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("12345")
    processes.rotate(log, limit=5)
    assert log.exists()
    processes.rotate(log, limit=4)
    assert not log.exists()
    assert (tmp_path / "x.log.1").read_text() == "12345"


def test_the_oldest_files_of_a_folder_go_first(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "middle", "old")):
        (tmp_path / name).write_text("12345")
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    processes.trim(tmp_path, limit=10)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["middle", "new"]


def test_this_process_is_never_among_the_marked(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, str(directory))
    assert os.getpid() not in [process.pid for process in processes.marked(directory)]


def _first_number(log: Path, process: subprocess.Popen[bytes]) -> int:
    while not (text := log.read_text()).endswith("\n"):
        assert process.poll() is None
    return int(text)
