"""The command ``bench throughput``: how good the estimates of throughputs are, before and after they are measured."""

from __future__ import annotations

import click
from rich.console import Console

from hadare.cli import tables
from hadare.cli.framework import json_option, pass_session
from hadare.cli.session import Session
from hadare.wire import codec


@click.command()
@click.option(
    "--noise", default=0.05, type=click.FloatRange(0, 1), show_default=True, help="Of a round's measurement, relative."
)
@json_option
@pass_session
def throughput(session: Session, noise: float) -> None:
    """Compare estimated throughputs with published ones, each model left out in turn, then measured."""
    from hadare.bench.throughput import measure  # scipy takes long to load: only who measures waits for it

    found = measure(noise)

    def human(console: Console) -> None:
        guess = found.guess
        rows = [("first guess", f"{guess.median_error:.1%}", f"{guess.p90_error:.1%}")]
        rows += [(f"after round {r.round}", f"{r.median_error:.1%}", f"{r.p90_error:.1%}") for r in found.rounds]
        console.print(tables.table(("ESTIMATE", "MEDIAN ERROR", "90TH PERCENTILE"), rows))
        console.print(
            f"\n{guess.cells} published rates; rank correlation of the first guess {guess.spearman:.3f}; "
            f"noise of a measurement {found.noise:.0%}",
            highlight=False,
        )

    session.show(codec.to_plain(found), human)
