"""Reads traces: which form a file has, and its rows. A bad row is refused with its line (or path) and column.

Forms: ours (CSV or JSON), the JSON traces that ship with the project, Gavel's (CSV with ``job_type``), Philly's (CSV
with ``gpu_hours``) and Tiresias' (CSV with ``duration_s`` and ``model``). docs/how-to/simulate.md describes them.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from hadare.model.errors import Rejected
from hadare.simulator.cells import Cells
from hadare.simulator.jobs import TraceRow
from hadare.simulator.synthetic import of_size

MOST_JOBS = 100_000
MOST_BYTES = 64_000_000
SHIPPED = {
    "static_480": "static_480.json",
    "poisson_120": "poisson_120.json",
    "tiresias_60": "tiresias_60.csv",
    "gavel_physical": "gavel_physical.csv",
}
"""Traces that come with the project, by name."""

_BATCH = re.compile(r"^(?P<model>.+?) \(batch size (?P<batch>\d+)\)$")

Reader = Callable[[Cells], TraceRow]


def read_trace(name: str) -> tuple[TraceRow, ...]:
    """The trace of that name or file, by arrival; ``FILE#PART`` for one of the traces in a file.

    Raises ``Rejected`` (400) with line and column.
    """
    name, _, part = name.partition("#")
    text, source = _text_of(name)
    rows = _read_json(text, source) if source.endswith(".json") else _read_csv(text, source, part)
    if not rows:
        raise Rejected(400, f"{source}: there is no job in it")
    if len(rows) > MOST_JOBS:
        raise Rejected(413, f"{source}: {len(rows)} jobs are more than {MOST_JOBS}")
    _refuse_doubles(rows)
    return tuple(sorted(rows, key=lambda row: (row.arrival_s, row.job_id)))


def _text_of(name: str) -> tuple[str, str]:
    if name in SHIPPED:
        file = SHIPPED[name]
        return resources.files("hadare.tables").joinpath("traces", file).read_text(encoding="utf-8"), file
    path = Path(name)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise Rejected(413, f"{name}: larger than {MOST_BYTES} bytes")
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(SHIPPED)
        raise Rejected(400, f"cannot read the trace: {error} (shipped traces: {known})") from error


def _refuse_doubles(rows: Iterable[TraceRow]) -> None:
    seen: dict[str, str] = {}
    for row in rows:
        if row.job_id in seen:
            raise Rejected(400, f"{row.place}: the job {row.job_id} is there already, at {seen[row.job_id]}")
        seen[row.job_id] = row.place


# --- forms ---


def _ours(cells: Cells) -> TraceRow:
    return TraceRow(
        job_id=_job_id(cells, "job"),
        arrival_s=cells.number("arrival_s"),
        model=cells.text("model"),
        batch_size=cells.whole("batch_size"),
        gang=cells.whole("gang", least=1, default=1),
        total_steps=cells.whole("total_steps", least=1),
        priority=cells.number("priority", default=1.0, least=1e-3),
        deadline_s=cells.number("deadline_s", default=0.0) or None,
        place=cells.place,
    )


def _project_json(cells: Cells) -> TraceRow:
    model, _ = _job_type(cells)
    return TraceRow(
        job_id=_job_id(cells, "id"),
        arrival_s=cells.number("arrival_time_s"),
        model=model,
        batch_size=cells.whole("batch_size", default=0),
        gang=cells.whole("scale_factor", least=1),
        total_steps=cells.whole("total_steps", least=1),
        place=cells.place,
    )


def _gavel(cells: Cells) -> TraceRow:
    model, batch = _job_type(cells)
    return TraceRow(
        job_id=_job_id(cells, "job"),
        arrival_s=cells.number("submit_s"),
        model=model,
        batch_size=batch,
        gang=cells.whole("num_gpus", least=1),
        total_steps=cells.whole("total_steps", least=1),
        priority=cells.number("priority", default=1.0, least=1e-3),
        place=cells.place,
    )


def _philly(cells: Cells) -> TraceRow:
    """Philly says nothing of models: a job's GPU-hours choose one of the paper's size classes."""
    hours = cells.number("gpu_hours")
    model, batch = of_size(hours)
    return TraceRow(
        job_id=_job_id(cells, "job"),
        arrival_s=cells.number("submit_s"),
        model=model,
        batch_size=batch,
        gang=cells.whole("num_gpus", least=1),
        gpu_hours=max(hours, 1 / 3600),
        place=cells.place,
    )


def _tiresias(cells: Cells) -> TraceRow:
    gang = cells.whole("num_gpus", least=1)
    return TraceRow(
        job_id=_job_id(cells, "job"),
        arrival_s=cells.number("submit_s"),
        model=cells.text("model"),
        batch_size=32,
        gang=gang,
        gpu_hours=cells.number("duration_s", least=1e-9) * gang / 3600,
        place=cells.place,
    )


_FORMS: Sequence[tuple[frozenset[str], Reader]] = (
    (frozenset({"job", "arrival_s", "model", "batch_size", "total_steps"}), _ours),
    (frozenset({"id", "arrival_time_s", "job_type", "scale_factor", "total_steps"}), _project_json),
    (frozenset({"job", "submit_s", "job_type", "num_gpus", "total_steps"}), _gavel),
    (frozenset({"job", "submit_s", "num_gpus", "gpu_hours"}), _philly),
    (frozenset({"job", "submit_s", "num_gpus", "duration_s", "model"}), _tiresias),
)
"""By the columns that a form needs; the first that fits is it."""


def _form_of(columns: Iterable[str], place: str) -> Reader:
    have = frozenset(columns)
    for needed, reader in _FORMS:
        if needed <= have:
            return reader
    nearest, _ = min(_FORMS, key=lambda form: (len(form[0] - have), sorted(form[0])))
    missing = ", ".join(sorted(nearest - have))
    raise Rejected(400, f"{place}: no known form of a trace; the nearest lacks the columns {missing}")


def _read_csv(text: str, source: str, part: str) -> list[TraceRow]:
    lines = csv.reader(text.splitlines())
    header = [name.strip() for name in next(lines, [])]
    reader = _form_of(header, f"{source} line 1")
    rows: list[TraceRow] = []
    for values in lines:
        if not values:
            continue
        place = f"{source} line {lines.line_num}"
        if len(values) != len(header):
            raise Rejected(400, f"{place}: {len(values)} columns, the header has {len(header)}")
        fields: dict[str, Any] = dict(zip(header, values, strict=True))
        own = str(fields.get("vc") or fields.get("trace") or "")
        if part and part != own:
            continue
        row = reader(Cells(fields, place, {name: number for number, name in enumerate(header, 1)}))
        rows.append(row if part else _within(row, own))
    return rows


def _within(row: TraceRow, part: str) -> TraceRow:
    """A job of a file with several traces (or virtual clusters) in it is named after its own as well."""
    if not part:
        return row
    stem = re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-")
    return replace(row, job_id=f"{stem}-{row.job_id}")


def _read_json(text: str, source: str) -> list[TraceRow]:
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise Rejected(400, f"{source} line {error.lineno}, column {error.colno}: {error.msg}") from error
    jobs = plain.get("jobs") if isinstance(plain, dict) else plain
    if not isinstance(jobs, list):
        raise Rejected(400, f"{source}: a list of jobs is expected at $.jobs")
    rows = []
    for number, job in enumerate(jobs):
        place = f"{source} $.jobs[{number}]"
        if not isinstance(job, dict):
            raise Rejected(400, f"{place}: a job is a map of its fields")
        rows.append(_form_of(job, place)(Cells(job, place, {})))
    return rows


def _job_id(cells: Cells, column: str) -> str:
    """A job's name as HadarE names jobs; a bare number gets as many digits as keep its order."""
    text = cells.text(column)
    if text.isdigit():
        return f"job-{int(text):05d}"
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-")
    if not slug:
        raise cells.fault(column, f"'{text}' is no name for a job")
    return slug


def _job_type(cells: Cells) -> tuple[str, int]:
    text = cells.text("job_type")
    match = _BATCH.match(text)
    return (match["model"], int(match["batch"])) if match else (text, 0)
