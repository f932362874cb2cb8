"""How record, progress and decision become the one status that users see."""

from __future__ import annotations

import dataclasses

from hadare.machines import admission
from hadare.machines.status import in_words, reason_of, state_of
from hadare.model.jobs import Desired, JobProgress, JobRecord, JobState
from hadare.model.plans import Decision


def a_record(desired: Desired = Desired.RUN) -> JobRecord:
    spec = admission.read_spec({"workload": "m:C", "total_steps": 1, "batch_size": 1})
    record = admission.intent_of(spec, "r", submitted_at=0.0, traceparent="").record
    return dataclasses.replace(record, desired=desired)


def progress(state: JobState, reason: str = "as the tracker says") -> JobProgress:
    return JobProgress(job_id="j", name="n", state=state, reason=reason)


WAITS = Decision(
    job_id="j",
    code="price_too_high",
    message="every device costs more than the job is worth",
    position=4,
    blockers=("a", "b", "c", "d"),
    remedy="raise its priority",
)


def test_a_job_that_the_tracker_has_not_seen_is_queued() -> None:
    assert state_of(a_record(), None) is JobState.QUEUED


def test_a_cancelled_job_is_cancelling_before_the_tracker_says_so() -> None:
    assert state_of(a_record(Desired.CANCELLED), progress(JobState.RUNNING)) is JobState.CANCELLING


def test_a_job_that_completed_before_it_was_cancelled_stays_completed() -> None:
    assert state_of(a_record(Desired.CANCELLED), progress(JobState.COMPLETED)) is JobState.COMPLETED


def test_a_waiting_job_shows_the_allocators_reason() -> None:
    reason = reason_of(a_record(), progress(JobState.WAITING), WAITS)
    assert reason.startswith("every device costs more")


def test_a_running_job_shows_the_trackers_reason() -> None:
    assert reason_of(a_record(), progress(JobState.RUNNING), WAITS) == "as the tracker says"


def test_a_job_that_is_not_ready_shows_the_trackers_reason() -> None:
    unready = Decision(job_id="j", code="not_ready", message="no model yet")
    assert reason_of(a_record(), progress(JobState.QUEUED), unready) == "as the tracker says"


def test_a_resumed_job_says_that_it_will_be_placed() -> None:
    assert "next round" in reason_of(a_record(), progress(JobState.PAUSED), None)


def test_a_decision_in_words_says_why_behind_whom_and_what_would_help() -> None:
    assert in_words(WAITS) == (
        "every device costs more than the job is worth; position 4; behind a, b, c and 1 more; raise its priority"
    )
