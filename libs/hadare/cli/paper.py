"""The command ``bench paper``: the paper's study, redone in simulation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from hadare.bench.paper import POLICIES, Paper, Row, run_paper
from hadare.cli import tables
from hadare.cli.framework import json_option, pass_session
from hadare.cli.session import Session


@click.command()
@click.option("--quick", is_flag=True, help="Fewer jobs, mixes and seeds: a first look in a minute or two.")
@click.option("--seeds", default=3, type=click.IntRange(1, 100), show_default=True, help="Of loads and mixes.")
@click.option(
    "--workers", default=os.cpu_count() or 1, type=click.IntRange(1), help="Processes.  [default: one a core]"
)
@click.option("--policy", default=",".join(POLICIES), metavar="NAME[,NAME…]", show_default=True)
@json_option
@pass_session
def paper(session: Session, quick: bool, seeds: int, workers: int, policy: str) -> None:
    """Redo the paper's study in simulation: traces, loads, small clusters, round lengths, scale."""
    names = [name.strip() for name in policy.split(",") if name.strip()]
    if not set(names) <= set(POLICIES):
        workers = 1  # a policy of someone else's is known to this process alone
    found = run_paper(quick=quick, seeds=seeds, policies=names, say=session.note, workers=workers)
    session.show(asdict(found), lambda console: _print(console, found))


def _print(console: Console, found: Paper) -> None:
    parts = (
        ("Traces, rates known, no costs", found.traces),
        ("Traces, rates measured, all costs", found.costs),
        ("Loads", found.loads),
        ("Length of a round, all costs", found.rounds),
    )
    for title, rows in parts:
        console.print(f"\n{title}", style="bold")
        console.print(_rows(rows))
    console.print("\nSmall clusters: means over mixes and seeds", style="bold")
    console.print(_small(found.small))
    console.print("\nDecisions", style="bold")
    console.print(_scale(found.scale))


def _rows(rows: Sequence[Row]) -> Table:
    columns = ("CASE", "SEED", "POLICY", "TTD h", "JCT h", "CRU", "TTD ×", "JCT ×", "TTD/BOUND", "JCT/BOUND", "ms")
    cells = [
        (
            row.case,
            row.seed,
            row.policy,
            f"{row.ttd_h:.2f}",
            f"{row.mean_jct_h:.3f}",
            f"{row.cru:.3f}",
            _ratio(row.ttd_vs_gavel),
            _ratio(row.jct_vs_gavel),
            _ratio(row.ttd_vs_bound),
            _ratio(row.jct_vs_bound),
            f"{row.decision_ms:.1f}",
        )
        for row in rows
    ]
    return tables.table(columns, cells, right=columns[3:])


def _small(rows: Sequence[dict[str, Any]]) -> Table:
    columns = ("CLUSTER", "COSTS", "POLICY", "TTD h", "JCT h", "CRU", "TTD ×", "JCT ×", "CRU ×")
    cells = [
        (
            *(row["cluster"], row["costs"], row["policy"], f"{row['ttd_h']:.2f}", f"{row['mean_jct_h']:.2f}"),
            *(
                f"{row['cru']:.3f}",
                _ratio(row["ttd_vs_gavel"]),
                _ratio(row["jct_vs_gavel"]),
                _ratio(row["cru_vs_gavel"]),
            ),
        )
        for row in rows
    ]
    return tables.table(columns, cells, right=columns[3:])


def _scale(rows: Sequence[dict[str, Any]]) -> Table:
    columns = ("JOBS", "DEVICES", "POLICY", "MEDIAN ms")
    cells = [(row["jobs"], row["devices"], row["policy"], f"{row['decision_ms']:.1f}") for row in rows]
    return tables.table(columns, cells, right=("JOBS", "DEVICES", "MEDIAN ms"))


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value else ""
