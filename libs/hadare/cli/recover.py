"""The command ``bench recover``: how long each control service takes to know again what it knew."""

from __future__ import annotations

import click
from rich.console import Console

from hadare.cli import tables
from hadare.cli.framework import json_option, pass_session
from hadare.cli.session import Session
from hadare.wire import codec


@click.command()
@click.option("--jobs", default=2000, type=click.IntRange(1), show_default=True, help="Jobs in the state of record.")
@click.option("--turns", default=3, type=click.IntRange(1), show_default=True, help="Starts of each service.")
@json_option
@pass_session
def recover(session: Session, jobs: int, turns: int) -> None:
    """Time each control service from its connection until it is ready, on a real NATS server that is full of jobs."""
    from hadare.bench.recover import measure  # loads every service: only who measures waits for it

    found = measure(jobs, turns, session.note)

    def human(console: Console) -> None:
        rows = [(one.service, f"{one.median_s:.2f}", f"{one.worst_s:.2f}", f"{one.cpu_s:.2f}") for one in found]
        heads = ("SERVICE", "MEDIAN S", "WORST S", "CPU S")
        console.print(tables.table(heads, rows, right=heads[1:]))
        console.print(f"\n{jobs} jobs; load {found[-1].load:.1f} on {found[-1].cores} cores", highlight=False)

    session.show({"services": codec.to_plain(found)}, human)
