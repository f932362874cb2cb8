"""A node that fails everything, and a job that fails everywhere, in one cluster: each is told from the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders_dst import RealServices
from hadare.dst.scenario import Fault, Kind, SimJob, draw
from hadare.dst.world import Verdict, simulate

pytestmark = pytest.mark.timeout(120)

MENDED_AT = 140.0


def run(*others: Fault, broken: bool = False) -> Verdict:
    """Four nodes, the first of which fails every lease from 20 s on, until it is mended."""
    scenario = draw(1, 0)
    poison = Fault(kind=Kind.POISON, who="n1", at=20.0, for_s=MENDED_AT - 20.0)
    nodes = {f"n{number}": ("V100",) for number in range(1, 5)}
    jobs = tuple(replace(job, at=0.5, steps=1500, until=0.0) for job in scenario.jobs)
    if broken:
        jobs += (SimJob(job_id="job-broken", at=0.5, steps=300, broken=True),)
    return simulate(replace(scenario, nodes=nodes, jobs=jobs, faults=(poison, *others)), RealServices())


def said(verdict: Verdict, text: str) -> list[float]:
    """When it was said."""
    return [float(line.split()[0]) for line in verdict.story if text in line]


def test_a_poisonous_node_is_taken_out_within_six_rounds_and_works_again_once_it_was_put_back() -> None:
    verdict = run()
    assert verdict.violations == ()
    out, begun = said(verdict, "n1 is quarantined"), said(verdict, "n1 begins")
    assert 20.0 < out[0] < 80.0
    assert not [at for at in begun if out[0] + 10.0 < at < MENDED_AT]
    assert [at for at in begun if at > MENDED_AT]


def test_a_poisonous_node_stays_out_when_the_allocator_is_started_again() -> None:
    verdict = run(Fault(kind=Kind.KILL, who="allocator", at=90.0, for_s=4.0))
    assert verdict.violations == ()
    assert not [at for at in said(verdict, "n1 begins") if 90.0 < at < MENDED_AT]


def test_a_job_that_fails_everywhere_ends_and_takes_no_healthy_node_out() -> None:
    verdict = run(broken=True)
    assert verdict.violations == ()
    assert said(verdict, "job-broken failed")
    assert not [node for node in ("n2", "n3", "n4") if said(verdict, f"{node} is quarantined")]
