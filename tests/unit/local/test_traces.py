import json
from pathlib import Path
from typing import Any

from hadare.local.traces import LAST, SERVICES, job_trace, read_spans, write_traces

TRACE = "a" * 32


def a_span(number: int, **changes: Any) -> dict[str, Any]:
    span = {
        "trace_id": TRACE,
        "span_id": f"{number:016x}",
        "parent_span_id": f"{number - 1:016x}" if number else "",
        "name": f"work {number}",
        "start_ns": number,
        "end_ns": number + 1,
        "service": SERVICES[number % len(SERVICES)],
    }
    return span | changes


WHOLE = [a_span(0, name=LAST), *(a_span(i) for i in range(1, len(SERVICES)))]


def test_a_trace_over_all_services_with_one_root_is_whole() -> None:
    trace = job_trace(WHOLE, "j1", TRACE)
    assert trace.faults == ()
    assert trace.services == tuple(sorted(SERVICES))


def test_spans_of_other_traces_do_not_belong_to_it() -> None:
    assert len(job_trace([*WHOLE, a_span(9, trace_id="b" * 32)], "j1", TRACE).spans) == len(WHOLE)


def test_a_service_that_took_no_part_is_a_fault() -> None:
    assert job_trace(WHOLE[:-1], "j1", TRACE).faults == (f"no span of {SERVICES[-1]}",)


def test_a_trace_that_does_not_reach_completion_is_a_fault() -> None:
    spans = [a_span(i) for i in range(len(SERVICES))]
    assert job_trace(spans, "j1", TRACE).faults == ("no span 'job completed'",)


def test_a_span_without_its_parent_is_a_fault() -> None:
    (fault,) = job_trace([*WHOLE, a_span(9, parent_span_id="f" * 16)], "j1", TRACE).faults
    assert fault == "1 spans whose parent was not recorded, the first is 'work 9'"


def test_a_second_root_is_a_fault() -> None:
    assert job_trace([*WHOLE, a_span(9, parent_span_id="")], "j1", TRACE).faults == ("2 root spans instead of one",)


def test_a_job_without_spans_is_a_fault() -> None:
    assert job_trace([], "j1", TRACE).faults == ("no span of it was recorded",)


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(WHOLE[0]) + "\n" + json.dumps(WHOLE[1])[:20])
    assert read_spans(tmp_path) == [WHOLE[0]]


def test_each_job_gets_a_file_with_its_spans_by_start(tmp_path: Path) -> None:
    write_traces(WHOLE[::-1], {"j1": TRACE}, tmp_path)
    written = json.loads((tmp_path / "trace-j1.json").read_text())
    assert [span["start_ns"] for span in written["spans"]] == list(range(len(SERVICES)))
    assert written["faults"] == []
