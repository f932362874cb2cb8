"""Logs: one JSON object a line on stderr, with the service's name and the ids of the current trace.

Configured once by whoever owns the process, never at import; what a library logs goes the same way.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal

import structlog

from hadare.runtime import telemetry

Level = Literal["debug", "info", "warning", "error"]


def configure(service: str, instance: str = "", level: str = "info") -> None:
    """From here on every logger of the process writes JSON lines to stderr. Safe to call again."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        _stamp({"service": service, **({"instance": instance} if instance else {})}),
        _trace_ids,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer(default=str)],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(default=str),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    # Other people's libraries say little of use below a warning, and nats-py repeats what we log ourselves.
    root.setLevel(max(number, logging.WARNING))


def _stamp(fields: Mapping[str, str]) -> Any:
    def add(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for name, value in fields.items():
            event.setdefault(name, value)
        return event

    return add


def _trace_ids(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    current = telemetry.traceparent()
    if current:
        _, trace_id, span_id, _ = current.split("-")
        event.setdefault("trace_id", trace_id)
        event.setdefault("span_id", span_id)
    return event


def _logger_name(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    record = event.get("_record")
    if record is not None:
        event["logger"] = record.name
    return event
