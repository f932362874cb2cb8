"""The wall clock that a chaos run gives its processes: it jumps by what a file says, in a process that goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hadare.bench.chaos import cluster

FOLDER = Path(cluster.__file__).parent / "wall_clock"

TELL = """
import datetime, sys, time
for _ in sys.stdin:
    now = datetime.datetime.now(datetime.UTC)
    late = datetime.datetime.fromisoformat("2020-01-01T00:00:00+00:00")
    assert isinstance(late, datetime.datetime) and isinstance(now, datetime.date) and now > late
    walls = time.time(), time.time_ns() / 1e9, now.timestamp(), time.mktime(time.localtime()), time.mktime(
        datetime.datetime.now().timetuple())
    print(*walls, time.monotonic(), flush=True)
"""


def told(process: subprocess.Popen[str]) -> list[float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return [float(word) for word in process.stdout.readline().split()]


def process_with_clock(tmp_path: Path, *folders: Path) -> tuple[subprocess.Popen[str], Path]:
    clock = tmp_path / "clock"
    clock.write_text("0")
    path = os.pathsep.join(str(folder) for folder in (FOLDER, *folders))
    env = {**os.environ, "PYTHONPATH": path, "CHAOS_WALL_CLOCK": str(clock)}
    command = [sys.executable, "-c", TELL]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True), clock


def test_all_that_tells_the_date_jumps_in_a_live_process_and_the_monotonic_clock_stays(tmp_path: Path) -> None:
    process, clock = process_with_clock(tmp_path)
    with process:
        before = told(process)
        clock.write_text("-3600")
        after = before
        while max(after[:-1]) > before[0] - 1800:  # it looks at its file every few hundredths of a second
            after = told(process)
        process.communicate("")
    assert all(-3601.5 < late - early < -3590 for early, late in zip(before[:-1], after[:-1], strict=True))
    assert 0 <= after[-1] - before[-1] < 10


def test_another_start_script_on_the_path_still_runs(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    process, _ = process_with_clock(tmp_path, other)
    with process:
        process.communicate("")
    assert (tmp_path / "ran").exists()
