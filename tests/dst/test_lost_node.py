"""What a node that is lost was training trains elsewhere within two rounds, whichever way the node is lost."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from builders_dst import RealServices
from hadare.dst import supervisor
from hadare.dst.scenario import Fault, Kind, Scenario, SimJob
from hadare.dst.world import Verdict, simulate
from hadare.machines.nodes import NodeTimes

pytestmark = pytest.mark.timeout(120)

LOST_AT, LOST_S = 21.0, 60.0
NODES = {f"n{number}": ("V100",) for number in range(1, 5)}
_BEGINS = re.compile(r"\s*([\d.]+) (n\d) begins (job-\d)\.(\d+)\.\d+\.\d+ on")


@dataclass(frozen=True)
class Begin:
    at: float
    node: str
    job: str
    round: int


def run(seed: int, *faults: Fault, forks: int = 1) -> Verdict:
    """Two jobs of so many forks each on four nodes: there is always room for what a lost node had."""
    jobs = tuple(SimJob(job_id=f"job-{n}", at=0.5, steps=1500, max_forks=forks) for n in (1, 2))
    return simulate(Scenario(seed=seed, nodes=NODES, jobs=jobs, faults=faults, replicas=2), RealServices())


def begun(verdict: Verdict) -> list[Begin]:
    found = [_BEGINS.match(line) for line in verdict.story]
    return [Begin(float(m[1]), m[2], m[3], int(m[4])) for m in found if m is not None]


def rounds_until_elsewhere(verdict: Verdict, lost: Begin) -> int:
    """Rounds from the one that the node took with it until the job trains on another node."""
    later = [b.round for b in begun(verdict) if b.job == lost.job and b.node != lost.node and b.round > lost.round]
    return min(later) - lost.round


@pytest.mark.parametrize("kind", [Kind.KILL, Kind.PARTITION, Kind.FREEZE])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_forks_of_a_lost_node_train_elsewhere_within_two_rounds(kind: Kind, seed: int) -> None:
    # Until the fault, all is the same in a run without it: so it is known who trains what then.
    lost = max((b for b in begun(run(seed)) if b.at < LOST_AT), key=lambda b: (b.round, b.node))
    verdict = run(seed, Fault(kind=kind, who=lost.node, at=LOST_AT, for_s=LOST_S))
    assert verdict.violations == ()
    assert lost in begun(verdict)
    assert rounds_until_elsewhere(verdict, lost) <= 2
    there = [b for b in begun(verdict) if b.node == lost.node and LOST_AT + 8.0 < b.at < LOST_AT + LOST_S]
    assert there == []


def test_an_allocator_that_notices_too_late_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "TIMES", NodeTimes(suspect_s=40.0, lost_s=50.0))
    lost = max((b for b in begun(run(1)) if b.at < LOST_AT), key=lambda b: (b.round, b.node))
    verdict = run(1, Fault(kind=Kind.PARTITION, who=lost.node, at=LOST_AT, for_s=LOST_S))
    assert rounds_until_elsewhere(verdict, lost) > 2
