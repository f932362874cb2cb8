"""The group ``trace``: what traces of jobs there are, what is in one, and new ones made to order."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import click
from rich.console import Console

from hadare.cli import tables
from hadare.cli.framework import json_option, pass_session
from hadare.cli.session import Session
from hadare.cli.simulate import read_rows
from hadare.simulator.jobs import TraceRow
from hadare.simulator.rates import shipped_table
from hadare.simulator.study import nodes_of, prepare
from hadare.simulator.synthetic import Synthetic
from hadare.simulator.traces import SHIPPED, read_trace

_COLUMNS = ("job", "arrival_s", "model", "batch_size", "gang", "total_steps", "priority")
_REFERENCE = nodes_of([("reference", [("V100", 1)], {})])


@click.group()
def trace() -> None:
    """Look at traces of jobs for `hadare simulate`, and make new ones."""


@trace.command("list")
@json_option
@pass_session
def list_(session: Session) -> None:
    """List the traces that come with HadarE."""
    found = {name: _summary(read_trace(name)) for name in SHIPPED}

    def human(console: Console) -> None:
        rows = [(name, s["jobs"], f"{s['last_arrival_s'] / 3600:.1f}", s["largest_gang"]) for name, s in found.items()]
        columns = ("TRACE", "JOBS", "LAST ARRIVAL h", "LARGEST GANG")
        console.print(tables.table(columns, rows, right=columns[1:]))

    session.show({"traces": found}, human)


@trace.command()
@click.argument("name", metavar="FILE|NAME")
@json_option
@pass_session
def show(session: Session, name: str) -> None:
    """Say what is in a trace: jobs, models, gangs, arrivals. Also a check: a bad row is named with line and column."""
    found = _summary(read_rows(name, 0, None))

    def human(console: Console) -> None:
        rows = [(key.replace("_", " "), _plain(value)) for key, value in found.items()]
        console.print(tables.table(("", ""), rows))

    session.show(found, human)


@trace.command()
@click.option("--jobs", default=120, type=click.IntRange(1, 100_000), show_default=True)
@click.option(
    "--interval", default=0.0, type=click.FloatRange(0), show_default=True, help="Mean seconds between arrivals."
)
@click.option("--gang", default=8, type=click.IntRange(1), show_default=True, help="The largest gang.")
@click.option("--seed", default=0, show_default=True)
def make(jobs: int, interval: float, gang: int, seed: int) -> None:
    """Print a synthetic trace in our own form (CSV): the paper's size classes and models."""
    rows = Synthetic(jobs=jobs, interval_s=interval, seed=seed, most_gang=gang).rows()
    made = prepare(rows, shipped_table(), _REFERENCE)
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(_COLUMNS)
    for job in made:
        out.writerow(
            (
                job.job_id,
                f"{job.arrival_s:g}",
                job.model,
                job.batch_size,
                job.gang,
                job.total_steps,
                f"{job.priority:g}",
            )
        )
    click.echo(text.getvalue(), nl=False)


def _summary(rows: Sequence[TraceRow]) -> dict[str, Any]:
    return {
        "jobs": len(rows),
        "first_arrival_s": rows[0].arrival_s,
        "last_arrival_s": rows[-1].arrival_s,
        "largest_gang": max(row.gang for row in rows),
        "gangs": dict(sorted(Counter(row.gang for row in rows).items())),
        "models": dict(sorted(Counter(row.model for row in rows).items())),
        "median_interval_s": median([b.arrival_s - a.arrival_s for a, b in pairwise(rows)] or [0.0]),
    }


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {count}" for key, count in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
