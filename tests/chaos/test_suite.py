"""The chaos suite in short, and whether its checker would notice: bugs are planted in real processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hadare.bench.chaos.plan import Kind
from hadare.bench.chaos.report import Report
from hadare.bench.chaos.run import Options, run_chaos

pytestmark = [pytest.mark.chaos, pytest.mark.e2e, pytest.mark.timeout(600)]

COUNTS_DOUBLES = """
from dataclasses import replace
from hadare.machines import ledger
from hadare.machines.tracker import TrackerMachine

counted_once = TrackerMachine._count

def count(self, job, event):
    opened = job.book.progress.open
    entry = ledger.find(opened, event.result.key.fork)
    if entry.outcome != "received":
        return counted_once(self, job, event)
    again = replace(entry, steps=entry.steps + event.result.steps)
    return [*job.book.change(open=ledger._with(opened, again)), *self._accept(event)]

TrackerMachine._count = count
"""

# Three things keep an old lease out: the fence, the newer lease that holds the device, and the memory of what was done.
TAKES_ANY_LEASE = """
from hadare.machines import leases
from hadare.machines.lease_orders import Fences
from hadare.machines.lease_outbox import Outbox

Fences.refusal = lambda self, lease: ""
leases.supersedes = lambda new, old: True
Outbox.__contains__ = lambda self, lease: False
"""


def planted(folder: Path, bug: str) -> dict[str, str]:
    """The environment of a program that runs ``bug`` at its start."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(bug)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))}


def laws_broken(report: Report) -> set[str]:
    return {violation.law for violation in report.broken}


def test_twelve_faults_of_twelve_kinds_lose_nothing(tmp_path: Path) -> None:
    report = run_chaos(Options(seed=1, faults=12, minutes=0.6, steps=1200, jobs=2, keep=tmp_path / "cluster"), print)
    assert report.broken == ()
    assert report.faults + report.missed == 12  # on a busy machine a fault may find no fork to kill
    assert report.kinds >= 9
    assert report.ends["completed"] >= 1
    assert report.steps_counted > 0


def test_a_tracker_that_counts_doubled_results_is_caught(tmp_path: Path) -> None:
    bug = {"jobtracker": planted(tmp_path / "bug", COUNTS_DOUBLES)}
    options = Options(faults=6, minutes=0.4, steps=1200, jobs=1, kinds=(Kind.DOUBLE,), extra=bug)
    assert "steps are those that were trained" in laws_broken(run_chaos(options, print))


def test_an_agent_that_takes_leases_of_old_rounds_is_caught(tmp_path: Path) -> None:
    bug = {"node_agent": planted(tmp_path / "bug", TAKES_ANY_LEASE)}
    options = Options(faults=20, minutes=0.5, steps=1200, jobs=2, kinds=(Kind.REPLAY,), extra=bug)
    assert "an old round's lease is refused" in laws_broken(run_chaos(options, print))


def test_wall_clocks_that_jump_by_an_hour_cost_no_step_no_lease_and_no_reign(tmp_path: Path) -> None:
    options = Options(faults=16, minutes=0.6, steps=1200, jobs=2, kinds=(Kind.JUMP_CLOCK,), keep=tmp_path / "cluster")
    report = run_chaos(options, print)
    assert report.broken == ()
    assert report.faults == 16
    assert report.node_deaths == 0
    assert report.failovers.count == 0
    assert report.steps_counted > 0
