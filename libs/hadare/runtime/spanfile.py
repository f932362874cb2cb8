"""Spans as JSON lines in a file, one file a process: a trace without a collector."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Link

MOST_BYTES = 64 * 2**20

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class SpanFile(SpanExporter):
    """Appends each ended span as a line to ``DIRECTORY/<service>-<instance>-<pid>.jsonl``; times are Unix ns.

    A file that has grown to ``most_bytes`` becomes ``….before.jsonl``, in place of the one before it: a process keeps
    twice as much at most, however long it runs.
    """

    def __init__(self, directory: str, service: str, instance: str, most_bytes: int = MOST_BYTES) -> None:
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / _UNSAFE.sub("_", f"{service}-{instance}-{os.getpid()}.jsonl")
        self._most_bytes = most_bytes
        self._file = self._path.open("a", encoding="utf-8")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            self._file.writelines(json.dumps(_as_map(span), default=str) + "\n" for span in spans)
            self._file.flush()
            if self._file.tell() >= self._most_bytes:
                self._begin_anew()
        except (OSError, ValueError):  # a full disk, or a file that is closed: tracing must not stop the service
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def _begin_anew(self) -> None:
        self._file.close()
        self._path.replace(self._path.with_suffix(".before.jsonl"))
        self._file = self._path.open("a", encoding="utf-8")

    def shutdown(self) -> None:
        self._file.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - the SDK names it
        self._file.flush()
        return True


def _as_map(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    assert context is not None
    resource = span.resource.attributes
    return {
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "parent_span_id": f"{span.parent.span_id:016x}" if span.parent else "",
        "name": span.name,
        "kind": span.kind.name.lower(),
        "start_ns": span.start_time,
        "end_ns": span.end_time,
        "status": span.status.status_code.name.lower(),
        "message": span.status.description or "",
        "service": resource.get("service.name", ""),
        "instance": resource.get("service.instance.id", ""),
        "attributes": _plain(span.attributes),
        "events": [
            {"name": event.name, "at_ns": event.timestamp, "attributes": _plain(event.attributes)}
            for event in span.events
        ],
        "links": [_link(link) for link in span.links],
    }


def _link(link: Link) -> dict[str, str]:
    return {"trace_id": f"{link.context.trace_id:032x}", "span_id": f"{link.context.span_id:016x}"}


def _plain(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: list(v) if isinstance(v, tuple) else v for name, v in (attributes or {}).items()}
