"""Traces from the span files that the processes of a cluster write: one document a job, and whether it is whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hadare.local.directory import write_json

Span = Mapping[str, Any]

SERVICES = ("hadare-gateway", "hadare-pricing", "hadare-allocator", "hadare-jobtracker", "hadare-node-agent")
"""Who must have worked on every job."""

LAST = "job completed"
"""The tracker's span with which a job's trace reaches its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTrace:
    """A job's spans by start, and what is missing of them."""

    job_id: str
    trace_id: str
    spans: tuple[Span, ...]
    faults: tuple[str, ...]

    @property
    def services(self) -> tuple[str, ...]:
        return tuple(sorted({str(span["service"]) for span in self.spans}))


def read_spans(directory: Path) -> list[Span]:
    """Every span in the files of a directory. A line that was cut off by a kill is left out."""
    spans: list[Span] = []
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                spans.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return spans


def job_trace(spans: Iterable[Span], job_id: str, trace_id: str) -> JobTrace:
    """The trace of one job, checked: every service took part up to its completion, and one root begins it."""
    own = sorted((s for s in spans if s["trace_id"] == trace_id), key=lambda s: (s["start_ns"], s["span_id"]))
    return JobTrace(job_id=job_id, trace_id=trace_id, spans=tuple(own), faults=tuple(_faults(own)))


def _faults(spans: Sequence[Span]) -> Iterable[str]:
    if not spans:
        yield "no span of it was recorded"
        return
    present = {span["service"] for span in spans}
    for service in SERVICES:
        if service not in present:
            yield f"no span of {service}"
    if all(span["name"] != LAST for span in spans):
        yield f"no span '{LAST}'"
    known = {span["span_id"] for span in spans}
    roots = [span for span in spans if not span["parent_span_id"]]
    if len(roots) != 1:
        yield f"{len(roots)} root spans instead of one"
    lost = [span for span in spans if span["parent_span_id"] and span["parent_span_id"] not in known]
    if lost:
        yield f"{len(lost)} spans whose parent was not recorded, the first is '{lost[0]['name']}'"


def write_traces(spans: Sequence[Span], jobs: Mapping[str, str], directory: Path) -> dict[str, JobTrace]:
    """Writes ``trace-<job>.json`` for each job (``jobs``: job to trace id) and returns the traces by job."""
    found = {job: job_trace(spans, job, trace) for job, trace in jobs.items()}
    for job, trace in found.items():
        document = {
            "job_id": job,
            "trace_id": trace.trace_id,
            "services": trace.services,
            "faults": trace.faults,
            "spans": trace.spans,
        }
        write_json(directory / f"trace-{job}.json", document)
    return found
