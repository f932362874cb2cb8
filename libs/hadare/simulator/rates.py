"""True rates: a table of measured throughputs by model, batch size and gang, and what is assumed where it is silent.

The shipped table is Gavel's (OSDI'20, MIT): steps/s of all workers of a gang together, on V100, P100 and K80. Assumed,
and flagged: a gang that is in no row runs at W times the one-device row; a type without a column runs at the
performance-memory index's ratio to the types that have one; a model without a row runs at that index alone.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from math import exp, isfinite, log
from pathlib import Path

from hadare.model.errors import Rejected
from hadare.scheduling.devices import canonical_type, pmi, relative_speed
from hadare.simulator.jobs import SimJob, TraceRow
from hadare.simulator.models import model_of

_STEPS, _SPREAD = "_steps_s", "_unconsolidated_steps_s"
_KEYS = ("model", "batch_size_per_gpu", "num_gpus")
UNKNOWN_MODEL_RATE = 10.0
"""Steps/s on a V100 of a model that no row knows: its trace has durations, so only ratios matter."""

Key = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class RateTable:
    """``rows``: steps/s of a whole gang by (model, batch size, gang) and type; ``spread`` likewise over servers."""

    rows: Mapping[Key, Mapping[str, float]]
    spread: Mapping[Key, Mapping[str, float]] = field(default_factory=dict)

    def fork_rates(self, model: str, batch: int, types: Iterable[str]) -> tuple[dict[str, float], list[str]]:
        """Of one device on its own, and what had to be assumed."""
        return _over_types(self.rows.get((model, batch, 1), {}), types, model)

    def gang_rates(
        self, model: str, batch: int, gang: int, types: Iterable[str]
    ) -> tuple[dict[str, float], dict[str, float], list[str]]:
        """Of one rank, what spreading leaves of it, and what had to be assumed."""
        row = self.rows.get((model, batch, gang), {})
        if not row:
            rates, flags = self.fork_rates(model, batch, types)
            return rates, {}, [*flags, *([f"no row for a gang of {gang}"] if gang > 1 else [])]
        rates, flags = _over_types({name: value / gang for name, value in row.items()}, types, model)
        apart = self.spread.get((model, batch, gang), {})
        return rates, {name: min(1.0, apart[name] / row[name]) for name in row if name in apart}, flags


def _over_types(row: Mapping[str, float], types: Iterable[str], model: str) -> tuple[dict[str, float], list[str]]:
    """The row for these types. A type that the table has a column for but the row no figure: cannot run."""
    wanted = sorted(set(types))
    if not row:
        return {name: UNKNOWN_MODEL_RATE * relative_speed(name) for name in wanted}, [f"no rates for {model}"]
    known = {name: value for name, value in row.items() if value > 0}
    level = exp(sum(log(value / pmi(name)) for name, value in known.items()) / max(len(known), 1))
    rates, flags = {}, []
    for name in wanted:
        if name in row:
            if row[name] > 0:
                rates[name] = row[name]
        else:
            rates[name] = level * pmi(name)
            flags.append(f"no rate on {name}: scaled by its index")
    return rates, flags


def jobs_of(rows: Iterable[TraceRow], table: RateTable, types: Iterable[str]) -> tuple[SimJob, ...]:
    """The trace's jobs with their rates on the cluster's types. Raises ``Rejected`` for a job that no type can run."""
    types = sorted({canonical_type(name) for name in types})
    return tuple(_job(row, table, types) for row in rows)


def _job(row: TraceRow, table: RateTable, types: list[str]) -> SimJob:
    forks, flags = table.fork_rates(row.model, row.batch_size, types)
    gangs, spread, more = table.gang_rates(row.model, row.batch_size, row.gang, types)
    if not forks or not gangs:
        where = f"{row.place}: " if row.place else ""
        raise Rejected(400, f"{where}{row.model} of batch {row.batch_size} can run on none of {', '.join(types)}")
    facts = model_of(row.model)
    steps = row.total_steps or max(1, round(row.gpu_hours * 3600 * _reference_rate(row, table)))
    return SimJob(
        job_id=row.job_id,
        arrival_s=row.arrival_s,
        model=row.model,
        batch_size=row.batch_size,
        total_steps=steps,
        gang=row.gang,
        fork_rates=forks,
        gang_rates=gangs,
        spread=spread,
        gflop_per_sample=facts.gflop_per_sample,
        model_bytes=facts.megabytes * 1_000_000,
        restart_s=facts.restart_s,
        priority=row.priority,
        deadline_s=row.deadline_s,
        flags=tuple(dict.fromkeys([*flags, *more])),
    )


def _reference_rate(row: TraceRow, table: RateTable) -> float:
    """Steps/s of one V100: what a trace's GPU-hours are taken to be hours of."""
    return table.rows.get((row.model, row.batch_size, 1), {}).get("V100", UNKNOWN_MODEL_RATE)


def shipped_table() -> RateTable:
    """Gavel's measurements."""
    text = resources.files("hadare.tables").joinpath("traces", "throughput_gavel.csv").read_text(encoding="utf-8")
    return parse_table(text, "throughput_gavel.csv")


def read_table(path: Path) -> RateTable:
    """A file in the form of the shipped one. Raises ``Rejected`` (400) with line and column."""
    try:
        return parse_table(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(400, f"cannot read the throughputs: {error}") from error


def parse_table(text: str, source: str) -> RateTable:
    """The text of a table. An empty cell or 0: cannot run there."""
    reader = csv.DictReader(text.splitlines())
    header = reader.fieldnames or []
    missing = [name for name in _KEYS if name not in header]
    if missing:
        raise Rejected(400, f"{source} line 1: the column {missing[0]} is missing")
    apart = {name: canonical_type(name[: -len(_SPREAD)]) for name in header if name.endswith(_SPREAD)}
    whole = {name: canonical_type(name[: -len(_STEPS)]) for name in header if name.endswith(_STEPS)}
    whole = {name: kind for name, kind in whole.items() if name not in apart}
    rows: dict[Key, dict[str, float]] = {}
    spread: dict[Key, dict[str, float]] = {}
    for line, row in enumerate(reader, start=2):
        place = f"{source} line {line}"
        number = [int(_number(row[name] or "0", f"{place}, column {name}")) for name in _KEYS[1:]]
        key = (row["model"], number[0], number[1])
        rows[key] = {kind: _number(row[name] or "0", f"{place}, column {name}") for name, kind in whole.items()}
        spread[key] = {kind: _number(row[name], f"{place}, column {name}") for name, kind in apart.items() if row[name]}
    return RateTable(rows, {key: {k: v for k, v in value.items() if v > 0} for key, value in spread.items()})


def _number(text: str, place: str) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = -1.0
    if not (isfinite(value) and value >= 0):
        raise Rejected(400, f"{place}: '{text}' is no number from 0 up")
    return value
