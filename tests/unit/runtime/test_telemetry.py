from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hadare.runtime import telemetry

TRACE = "0af7651916cd43dd8448eb211c80319c"
GIVEN = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def spans_in(tmp_path: Path) -> Iterator[Path]:
    telemetry.configure("tester", "t/1", f"file:{tmp_path}")
    yield tmp_path
    telemetry.shutdown()


def written(folder: Path) -> list[dict[str, Any]]:
    telemetry.shutdown()
    return [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]


def test_off_there_is_no_context_and_nothing_is_injected() -> None:
    with telemetry.span("anything") as span:
        span.set_attribute("ignored", 1)
        assert telemetry.traceparent() == ""
        assert telemetry.inject({}) == {}
    assert not telemetry.enabled()


def test_off_a_given_context_passes_through_and_ends_with_the_block() -> None:
    with telemetry.span("outer", parent=GIVEN):
        with telemetry.span("inner"):
            assert telemetry.inject({"a": "b"}) == {"a": "b", "traceparent": GIVEN}
        assert telemetry.traceparent() == GIVEN
    assert telemetry.traceparent() == ""


def test_off_a_context_that_is_no_context_does_not_pass() -> None:
    with telemetry.span("outer", parent="00-nonsense-01"):
        assert telemetry.traceparent() == ""


def test_off_an_exception_passes_through() -> None:
    with pytest.raises(KeyError), telemetry.span("fails", parent=GIVEN):
        raise KeyError("x")
    assert telemetry.traceparent() == ""


def test_off_metrics_cost_nothing_and_raise_nothing() -> None:
    telemetry.count("hadare.test.nothing")
    telemetry.observe("hadare.test.nothing_either", 1.0)


def test_a_new_traceparent_is_valid_and_new() -> None:
    one, two = telemetry.new_traceparent(), telemetry.new_traceparent()
    assert telemetry.extract({"traceparent": one}) == one
    assert one != two


NO_CONTEXT = [
    None,
    {},
    {"traceparent": ""},
    {"traceparent": "x"},
    {"Traceparent": GIVEN},
    {"traceparent": GIVEN + "\n"},
]


@pytest.mark.parametrize("headers", NO_CONTEXT)
def test_a_header_that_is_no_context_is_none(headers: dict[str, str] | None) -> None:
    assert telemetry.extract(headers) == ""


def test_spans_go_to_a_file_one_a_line(spans_in: Path) -> None:
    with (
        telemetry.span("outer", attributes={"hadare.job": "j1"}),
        telemetry.span("inner", kind="client", links=[GIVEN, "nonsense"]),
    ):
        pass
    inner, outer = sorted(written(spans_in), key=lambda span: str(span["name"]))
    assert inner["trace_id"] == outer["trace_id"]
    assert inner["parent_span_id"] == outer["span_id"]
    assert outer["parent_span_id"] == ""
    assert (inner["kind"], outer["kind"]) == ("client", "internal")
    assert inner["links"] == [{"trace_id": TRACE, "span_id": "b7ad6b7169203331"}]
    assert outer["attributes"] == {"hadare.job": "j1"}
    assert (outer["service"], outer["instance"]) == ("hadare-tester", "t/1")
    assert outer["start_ns"] <= inner["start_ns"] <= inner["end_ns"] <= outer["end_ns"]


def test_the_file_of_a_process_has_a_safe_name(spans_in: Path) -> None:
    with telemetry.span("one"):
        pass
    written(spans_in)
    assert [path.name.startswith("tester-t_1-") for path in spans_in.iterdir()] == [True]


def test_a_given_parent_wins_over_the_current_span(spans_in: Path) -> None:
    with telemetry.span("outer"), telemetry.span("elsewhere", parent=GIVEN):
        assert telemetry.traceparent().split("-")[1] == TRACE
    elsewhere = next(span for span in written(spans_in) if span["name"] == "elsewhere")
    assert (elsewhere["trace_id"], elsewhere["parent_span_id"]) == (TRACE, "b7ad6b7169203331")


def test_a_parent_that_is_no_context_leaves_the_current_span_in_place(spans_in: Path) -> None:
    with telemetry.span("outer"), telemetry.span("inner", parent="nonsense"):
        pass
    inner, outer = sorted(written(spans_in), key=lambda span: str(span["name"]))
    assert inner["parent_span_id"] == outer["span_id"]


def test_continuing_makes_no_span(spans_in: Path) -> None:
    with telemetry.continued(GIVEN), telemetry.span("inner"):
        pass
    assert [(span["name"], span["parent_span_id"]) for span in written(spans_in)] == [("inner", "b7ad6b7169203331")]


def test_an_exception_fails_its_span_with_its_type(spans_in: Path) -> None:
    with pytest.raises(KeyError), telemetry.span("fails"):
        raise KeyError("x")
    failed = written(spans_in)[0]
    assert failed["status"] == "error"
    assert failed["events"][0]["attributes"]["exception.type"] == "KeyError"


def test_configuring_again_without_an_endpoint_turns_it_off(spans_in: Path) -> None:
    telemetry.configure("tester", "t1", None)
    assert not telemetry.enabled()
    with telemetry.span("unseen"):
        assert telemetry.traceparent() == ""
    assert written(spans_in) == []
