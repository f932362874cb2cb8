from typing import Any

import pytest

from builders_local import a_calibration, a_job_status, a_lease_end, an_event
from hadare.local.history import spans, trainings
from hadare.local.report import Facts, Report, judge
from hadare.model.jobs import JobState
from hadare.wire.api import JobStatus

EVENTS = [
    an_event("submitted", 1.0),
    an_event("consolidated", 5.0, forks=3),
    an_event("consolidated", 9.0, forks=2),
    an_event("completed", 11.0),
]


def judged(job: JobStatus | None = None, **changes: Any) -> Report:
    fields: dict[str, Any] = {
        "jobs": [job or a_job_status()],
        "spans": spans(EVENTS),
        "job_events": EVENTS,
        "round_events": [],
        "trainings": trainings([a_lease_end(10.0)]),
        "devices": [("n1", 0, "V100")],
        "targets": {"digits": a_calibration()},
    }
    return judge(Facts(**(fields | changes)), {"j1": "trace.json"}, [])


def test_a_job_that_has_its_steps_and_its_target_is_reached_and_all_is_well() -> None:
    report = judged()
    assert report.ok
    assert report.jobs[0].reached
    assert report.jobs[0].trace == "trace.json"


def test_forks_are_counted_over_all_rounds_and_at_their_most() -> None:
    job = judged().jobs[0]
    assert (job.forks, job.most_forks, job.rounds, job.versions) == (5, 3, 3, 4)


def test_times_come_from_the_journal() -> None:
    report = judged()
    assert (report.ttd_s, report.mean_jct_s, report.cru) == (10.0, 10.0, 0.4)


def test_a_metric_on_the_worse_side_of_the_target_is_a_fault() -> None:
    report = judged(a_job_status(metrics={"accuracy": 0.9399}))
    assert not report.ok
    assert report.faults == ("digits: accuracy 0.9399 is below its target 0.9400",)


def test_for_a_loss_the_worse_side_is_above() -> None:
    target = a_calibration(metric="mse", better="lower", values={0: 0.10, 1: 0.11, 2: 0.12})
    good = judged(a_job_status(metrics={"mse": 0.13}), targets={"digits": target})
    bad = judged(a_job_status(metrics={"mse": 0.1301}), targets={"digits": target})
    assert good.ok
    assert bad.faults == ("digits: mse 0.1301 is above its target 0.1300",)


def test_a_failed_job_is_a_fault_whatever_its_metrics() -> None:
    report = judged(a_job_status(state=JobState.FAILED))
    assert report.faults == ("digits is failed, not completed",)
    assert not report.jobs[0].reached


def test_missing_steps_are_a_fault() -> None:
    assert judged(a_job_status(steps=99)).faults == ("digits ended with 99 of 100 steps",)


def test_metrics_of_an_older_version_do_not_count() -> None:
    assert judged(a_job_status(metrics_version=2)).faults == ("digits has no metrics of its last version",)


@pytest.mark.parametrize(("steps", "ok"), [(95, True), (94, False)])
def test_a_device_under_95_percent_of_its_rate_is_a_fault(steps: int, ok: bool) -> None:
    report = judged(trainings=trainings([a_lease_end(10.0, steps=steps)]))
    assert report.ok is ok


def test_a_device_that_never_trained_is_a_fault() -> None:
    report = judged(devices=[("n1", 0, "V100"), ("n2", 0, "T4")])
    assert report.faults == ("n2/0 (T4) never trained",)


def test_a_broken_trace_is_a_fault() -> None:
    facts = Facts(jobs=[], spans={}, job_events=[], round_events=[], trainings=[], devices=[], targets={})
    assert judge(facts, {}, ["no trace"]).faults == ("no trace",)
