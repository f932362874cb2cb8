"""The command ``bench start``: how long a fork takes to start, cold and from the fork server."""

from __future__ import annotations

import click
from rich.console import Console

from hadare.cli import tables
from hadare.cli.exit_codes import MissingPart
from hadare.cli.framework import json_option, pass_session
from hadare.cli.session import Session
from hadare.wire import codec


@click.command()
@click.option("--workload", metavar="PKG.MODULE:NAME", help="What the fork trains. Default: digits.")
@click.option("--turns", default=5, type=click.IntRange(1), show_default=True, help="Medians are of so many starts.")
@json_option
@pass_session
def start(session: Session, workload: str | None, turns: int) -> None:
    """Time the start of a fork: in a fresh interpreter, by part, and from the fork server of a node."""
    try:
        from hadare.bench.start import WORKLOAD, measure
    except ImportError as error:
        raise MissingPart(
            f"this needs {error.name or error}, which is missing: pip install 'hadare[node-agent,workloads]'"
        ) from error
    found = measure(workload or WORKLOAD, turns)

    def human(console: Console) -> None:
        rows = [(part, f"{spent:.0f}") for part, spent in found.parts_ms.items()]
        rows += [("all of a cold start", f"{found.cold_ms:.0f}"), ("from the fork server", f"{found.server_ms:.0f}")]
        console.print(tables.table(("START", "MEDIAN MS"), rows, right=("MEDIAN MS",)))
        console.print(
            f"\nthe fork server itself starts in {found.server_start_ms:.0f} ms, once a node; slowest fork from it "
            f"{found.server_worst_ms:.0f} ms; load {found.load:.1f} on {found.cores} cores",
            highlight=False,
        )

    session.show(codec.to_plain(found), human)
