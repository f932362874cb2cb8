"""Each invariant, broken by the least that breaks it: the checker names the law."""

from dataclasses import replace
from typing import Any

import pytest

from builders_chaos import (
    NODE,
    a_manifest,
    a_page,
    a_parent,
    a_progress,
    an_evidence,
    job_event,
    lease_ended,
    lease_started,
)
from builders_local import a_calibration
from hadare.bench.chaos.checks import judge
from hadare.bench.chaos.cluster import Life
from hadare.bench.chaos.evidence import Evidence
from hadare.bench.chaos.users import Promise
from hadare.model.jobs import JobState, ObjectRef
from hadare.model.leases import ForkResult, LeaseKey


def laws_broken(evidence: Evidence) -> set[str]:
    return {violation.law for violation in judge(evidence, {})}


def test_a_run_in_which_all_went_well_breaks_no_law() -> None:
    assert judge(an_evidence(), {"digits": a_calibration()}) == []


def test_a_job_that_has_not_ended_is_named_with_its_reason() -> None:
    waiting = a_progress(state=JobState.WAITING, reason="no node is ready")
    found = judge(an_evidence(progress={"j1": waiting}), {})
    assert "digits-1 is waiting: no node is ready" in [v.detail for v in found if v.law == "every accepted job ends"]


def test_an_accepted_job_that_nobody_knows_is_a_violation() -> None:
    promises = [Promise("j1", "digits", "digits-1"), Promise("j2", "digits", "digits-2")]
    assert laws_broken(an_evidence(promises=promises)) == {"every accepted job ends"}


def test_a_job_that_failed_by_trouble_of_the_cluster_is_a_violation() -> None:
    evidence = an_evidence(progress={"j1": a_progress(state=JobState.FAILED, reason="three rounds in a row")})
    assert laws_broken(evidence) == {"trouble of the cluster is no failure of the job"}


def test_a_poisonous_job_may_fail_but_says_why() -> None:
    failed = a_progress(state=JobState.FAILED, reason="three rounds", error="ValueError: lr")
    evidence = an_evidence(promises=[Promise("j1", "poison", "poison-1")], progress={"j1": failed})
    assert laws_broken(evidence) == set()
    silent = replace(evidence, progress={"j1": replace(failed, error="")})
    assert laws_broken(silent) == {"a failure has its reason"}


@pytest.mark.parametrize(("acts", "state"), [(["cancel"], JobState.FAILED), ([], JobState.CANCELLED)])
def test_what_a_user_asked_for_is_what_happened(acts: list[str], state: JobState) -> None:
    promise = Promise("j1", "digits", "digits-1", acts)
    evidence = an_evidence(promises=[promise], progress={"j1": a_progress(state=state)})
    assert "users' actions win" in laws_broken(evidence)


def test_a_fork_that_is_in_two_versions_is_counted_twice() -> None:
    evidence = an_evidence()
    again = a_manifest(2, 800, a_parent(2, 200), a_parent(1, 300))
    manifests = {**evidence.manifests, ("j1", 2): again}
    progress = {"j1": a_progress(steps=800)}
    assert laws_broken(replace(evidence, manifests=manifests, progress=progress)) == {"a fork is counted once"}


def test_a_fork_that_counts_more_steps_than_it_made_is_caught() -> None:
    evidence = an_evidence()
    manifests = {**evidence.manifests, ("j1", 2): a_manifest(2, 700, a_parent(2, 400))}
    found = laws_broken(replace(evidence, manifests=manifests, progress={"j1": a_progress(steps=700)}))
    assert found == {"steps are those that were trained"}


def test_a_lease_that_a_restarted_agent_ran_again_may_count_for_either_time_but_not_for_both() -> None:
    evidence = an_evidence(
        lives=[Life(NODE, 42, 5.0, 16.0), Life(NODE, 43, 17.0)],
        node_events=[*an_evidence().node_events, lease_started(2, 18.0), lease_ended(2, 19.0, 40)],
    )
    assert laws_broken(evidence) == set()
    manifests = {**evidence.manifests, ("j1", 2): a_manifest(2, 540, a_parent(2, 240))}
    both = replace(evidence, manifests=manifests, progress={"j1": a_progress(steps=540)})
    assert laws_broken(both) == {"steps are those that were trained"}


def test_a_lease_that_runs_twice_in_one_life_of_its_agent_is_caught() -> None:
    again = [lease_started(2, 16.0), lease_ended(2, 18.0, 200)]
    evidence = an_evidence(node_events=[*an_evidence().node_events, *again])
    assert laws_broken(evidence) == {"a lease runs once"}
    told_twice = an_evidence(node_events=[*an_evidence().node_events, *an_evidence().node_events])
    assert laws_broken(told_twice) == set()


def counted_in_round_2(steps: int, **changes: Any) -> Evidence:
    """Its agent told of a start in round 2, and of no end."""
    events = [event for event in an_evidence().node_events if event.event.what == "lease_started"]
    ended = lease_ended(1, 13.2, 300)
    manifests = {**an_evidence().manifests, ("j1", 2): a_manifest(2, 300 + steps, a_parent(2, steps))}
    fields: dict[str, Any] = {
        "node_events": [events[0], ended, events[1]],
        "manifests": manifests,
        "progress": {"j1": a_progress(steps=300 + steps)},
        "lives": [Life(NODE, 42, 5.0, 15.5), Life(NODE, 43, 17.0)],
    }
    return an_evidence(**(fields | changes))


def test_a_result_whose_agent_died_before_it_could_tell_counts_what_a_device_makes_in_a_round_at_most() -> None:
    assert laws_broken(counted_in_round_2(250)) == set()
    assert laws_broken(counted_in_round_2(900)) == {"steps are those that were trained"}


def test_a_result_that_counts_and_of_which_an_agent_that_lives_has_told_nothing_is_caught() -> None:
    silent = counted_in_round_2(250, lives=[Life(NODE, 42, 5.0)], node_events=[lease_started(1, 10.0)])
    assert "steps are those that were trained" in laws_broken(silent)


def test_a_lease_that_begins_beside_one_of_its_round_is_caught_though_their_agent_died() -> None:
    lives = [Life(NODE, 42, 5.0, 15.5), Life(NODE, 43, 17.0)]
    handing_back = [lease_started(1, 10.0), lease_started(2, 13.1), lease_ended(2, 15.2, 200)]
    assert laws_broken(an_evidence(lives=lives, node_events=handing_back)) == set()
    doubled = [*handing_back, lease_started(2, 15.25, fork=1), lease_started(2, 15.3, fork=2)]
    assert laws_broken(an_evidence(lives=lives, node_events=doubled)) == {"a device runs one lease"}


def test_steps_that_no_fork_has_made_are_caught() -> None:
    assert laws_broken(an_evidence(progress={"j1": a_progress(steps=501)})) == {"steps are those of the counted forks"}


def test_a_gap_in_the_chain_of_versions_is_caught() -> None:
    manifests = dict(an_evidence().manifests)
    del manifests["j1", 1]
    assert "versions form one chain" in laws_broken(an_evidence(manifests=manifests))


def test_two_leases_at_once_on_one_device_are_caught() -> None:
    events = [lease_started(1, 10.0), lease_ended(1, 13.2, 300), lease_started(2, 12.9), lease_ended(2, 15.0, 200)]
    assert laws_broken(an_evidence(node_events=events)) == {"a device runs one lease"}


def test_a_lease_may_begin_while_the_result_of_the_one_before_is_uploaded() -> None:
    assert "a device runs one lease" not in laws_broken(an_evidence())


def test_a_lease_that_died_with_its_agent_is_over_when_the_agent_is() -> None:
    lives = [Life(NODE, 42, 5.0, 14.0), Life(NODE, 43, 14.2)]
    events = [lease_started(1, 10.0), lease_started(2, 14.5), lease_ended(2, 15.0, 200)]
    assert laws_broken(an_evidence(lives=lives, node_events=events)) == set()


def test_a_lease_that_never_ends_though_its_agent_lives_is_left_behind() -> None:
    events = [*an_evidence().node_events, lease_started(3, 20.0)]
    assert laws_broken(an_evidence(node_events=events)) == {"nothing is left behind"}


def test_a_plan_that_takes_more_than_there_is_is_caught() -> None:
    assert laws_broken(an_evidence(pages=[a_page(1, count=2)])) == {"a device is in one lease a round"}


def test_a_lease_of_an_old_leader_is_caught() -> None:
    epochs = {("j1.1.0.0", NODE): 2, ("j1.2.0.0", NODE): 1}
    assert laws_broken(an_evidence(epochs=epochs)) == {"an old leader's lease is refused"}


def test_a_lease_of_an_old_round_is_caught() -> None:
    events = [
        lease_started(2, 10.0),
        lease_ended(2, 12.0, 200),
        lease_started(1, 12.5),
        lease_ended(1, 15.0, 300),
    ]
    assert laws_broken(an_evidence(node_events=events)) == {"an old round's lease is refused"}


def a_result(round_no: int) -> ForkResult:
    return ForkResult(
        kind="train",
        key=LeaseKey(job_id="j1", round=round_no, fork=0),
        epoch=1,
        node=NODE,
        device_type="V100",
        steps=100,
        object=ObjectRef(name="o", sha256="0" * 64, bytes=1),
    )


def test_a_result_that_was_acknowledged_and_is_in_no_version_is_caught() -> None:
    assert laws_broken(an_evidence(acknowledged={"j1.2.0.0": a_result(2)})) == set()
    evidence = an_evidence(acknowledged={"j1.3.0.0": a_result(3)})
    assert laws_broken(evidence) == {"what was acknowledged is counted"}


def test_a_version_that_history_does_not_tell_or_tells_twice_is_caught() -> None:
    told = list(an_evidence().job_events)
    law = {"history tells each version once"}
    assert laws_broken(an_evidence(job_events=told[1:])) == law
    assert laws_broken(an_evidence(job_events=[told[0], *told])) == law


def test_a_job_that_ends_twice_is_caught() -> None:
    told = [*an_evidence().job_events, job_event("failed")]
    assert laws_broken(an_evidence(job_events=told)) == {"history tells each end once"}


@pytest.mark.parametrize(("steps", "broken"), [(690, set()), (1500, {"a lost node costs its part of one round"})])
def test_a_node_that_dies_may_cost_its_part_of_one_round(steps: int, broken: set[str]) -> None:
    """100 steps a second, rounds of 3 s, 4 s of slack."""
    evidence = an_evidence(
        node_events=[*an_evidence().node_events, lease_started(3, 20.0)],
        lives=[Life(NODE, 42, 5.0, 24.0)],
        reported={"j1.3.0.0": (NODE, steps)},
    )
    assert laws_broken(evidence) == broken


def test_a_job_that_gets_nowhere_in_silence_is_caught() -> None:
    lost = [job_event("round_lost") for _ in range(11)]
    told = list(an_evidence().job_events)
    assert laws_broken(an_evidence(job_events=[*lost, *told])) == {"no job stalls unnoticed"}
    assert laws_broken(an_evidence(job_events=[*lost[:6], job_event("stalled"), *lost[6:], *told])) == set()


def test_a_model_that_is_worse_than_one_workers_is_caught() -> None:
    evidence = an_evidence(progress={"j1": a_progress(metrics={"accuracy": 0.9})})
    assert {v.law for v in judge(evidence, {"digits": a_calibration()})} == {"models reach their targets"}


def test_a_model_whose_average_is_good_enough_reaches_its_target() -> None:
    evidence = an_evidence(progress={"j1": a_progress(metrics={"accuracy": 0.9, "ema.accuracy": 0.97})})
    assert judge(evidence, {"digits": a_calibration()}) == []


def test_what_cannot_be_read_and_what_is_left_are_violations() -> None:
    evidence = an_evidence(unreadable=["j1 version 2: gone"], left=["process 7"])
    assert laws_broken(evidence) == {"every version is readable", "nothing is left behind"}
