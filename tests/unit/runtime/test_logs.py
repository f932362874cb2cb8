from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from hadare.runtime import logs, telemetry


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def lines(captured: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    streams = captured.readouterr()
    assert streams.out == ""
    return [json.loads(line) for line in streams.err.splitlines()]


def test_a_line_is_json_on_stderr_with_who_and_when(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("pricing", "p1")
    structlog.get_logger().info("prices changed", round=7)
    (line,) = lines(capsys)
    assert (line["event"], line["level"], line["round"]) == ("prices changed", "info", 7)
    assert (line["service"], line["instance"]) == ("pricing", "p1")
    assert line["timestamp"].endswith("Z")


def test_lines_below_the_level_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("pricing", level="warning")
    structlog.get_logger().info("unseen")
    structlog.get_logger().warning("seen")
    assert [line["event"] for line in lines(capsys)] == ["seen"]


def test_the_current_trace_is_on_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("pricing")
    given = telemetry.new_traceparent()
    with telemetry.continued(given):
        structlog.get_logger().info("inside")
    structlog.get_logger().info("outside")
    inside, outside = lines(capsys)
    assert [inside["trace_id"], inside["span_id"]] == given.split("-")[1:3]
    assert "trace_id" not in outside


def test_an_exception_is_one_line_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("pricing")
    try:
        raise RuntimeError("odd")
    except RuntimeError:
        structlog.get_logger().exception("failed")
    (line,) = lines(capsys)
    assert "RuntimeError: odd" in line["exception"]


def test_what_libraries_log_has_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("pricing")
    logging.getLogger("nats.aio.client").warning("encountered %s", "trouble")
    (line,) = lines(capsys)
    assert (line["event"], line["logger"], line["service"]) == ("encountered trouble", "nats.aio.client", "pricing")


def test_a_logger_made_before_configuring_follows_it(capsys: pytest.CaptureFixture[str]) -> None:
    early = structlog.get_logger("early")
    logs.configure("pricing")
    early.info("now")
    assert [line["service"] for line in lines(capsys)] == ["pricing"]


def test_values_that_json_does_not_know_are_written_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("pricing")
    structlog.get_logger().info("odd", value={1, 2}.__class__)
    assert lines(capsys)[0]["value"] == "<class 'set'>"
