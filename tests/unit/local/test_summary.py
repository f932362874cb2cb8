from dataclasses import replace
from io import StringIO

from rich.console import Console

from hadare.local.report import DeviceReport, JobReport, Report
from hadare.local.summary import summary

JOB = JobReport(
    name="charlm",
    job_id="j1",
    state="completed",
    steps=12000,
    target_steps=12000,
    metric_name="cross_entropy",
    metric=1.7475,
    target=1.782,
    one_worker=1.76,
    better="lower",
    reached=True,
    forks=44,
    most_forks=5,
    rounds=14,
    versions=15,
    jct_s=80.5,
    trace="/some/where/trace-j1.json",
)
DEVICE = DeviceReport(
    node="node-t400",
    device=0,
    type="T400",
    nominal_rate=7.9,
    reached_rate=7.8,
    reached=0.987,
    leases=15,
    steps=535,
    trained_s=68.2,
)
REPORT = Report(
    ok=True,
    ttd_s=80.5,
    mean_jct_s=48.8,
    cru=0.818,
    jobs=(JOB,),
    devices=(DEVICE,),
    faults=(),
    timeline="/some/where/timeline.html",
    wall_s=100.0,
)


def printed(report: Report, width: int = 80) -> str:
    file = StringIO()
    Console(file=file, width=width, soft_wrap=True).print(summary(report))
    return file.getvalue()


def test_nothing_is_cut_off_on_a_terminal_of_80_columns() -> None:
    text = printed(REPORT)
    for part in ("12000/12000", "cross_entropy", "1.7475", "≤ 1.7820", "80.5", "98.7%", "81.8%", "ok"):
        assert part in text
    assert "…" not in text


def test_it_says_where_trace_and_timeline_are() -> None:
    assert "/some/where/trace-j1.json" in printed(REPORT)
    assert "/some/where/timeline.html" in printed(REPORT)


def test_a_long_path_stays_in_one_line() -> None:
    path = "/some/where/" + 10 * "deep/and " + "timeline.html"
    assert f"timeline: {path}\n" in printed(replace(REPORT, timeline=path))


def test_a_failed_run_ends_with_its_faults() -> None:
    bad = replace(REPORT, ok=False, faults=("charlm is failed",), jobs=(replace(JOB, reached=False, metric=None),))
    lines = printed(bad).splitlines()
    assert lines[-2:] == ["FAULT: charlm is failed", "FAILED"]
    assert "NO" in printed(bad)
