"""The command ``bench round``: what the boundary between two rounds costs on this machine."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from hadare.cli import tables
from hadare.cli.exit_codes import MissingPart
from hadare.cli.framework import json_option, pass_session
from hadare.cli.session import Session
from hadare.wire import codec

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("round")
@click.option("--params", default=1_000_000, type=click.IntRange(100), show_default=True, help="Size of the model.")
@click.option("--forks", default=3, type=click.IntRange(1, 16), show_default=True, help="Forks, each on its own node.")
@click.option("--rounds", default=15, type=click.IntRange(2), show_default=True, help="Boundaries that are measured.")
@click.option("--round", "round_s", default=2.0, type=click.FloatRange(min=0.5), show_default=True, help="In seconds.")
@click.option(
    "--optimizer", type=click.Choice(["sgd", "adamw"]), default="sgd", show_default=True, help="Its state travels."
)
@click.option("--average", is_flag=True, help="The job keeps an average of its versions.")
@click.option("--bf16", is_flag=True, help="Forks hand in what they changed, in half the bytes.")
@click.option("--frozen", is_flag=True, help="Nearly all parameters are frozen: they need not travel.")
@click.option("--raw", is_flag=True, help="Also put and fetch the same bytes by themselves, to compare.")
@click.option("--warm-up", default=3, type=click.IntRange(1), show_default=True, help="Rounds that do not count.")
@click.option("--dir", "directory", type=_FOLDER, help="Keep the cluster's files here. Default: nothing is kept.")
@json_option
@pass_session
def boundary(
    session: Session,
    params: int,
    forks: int,
    rounds: int,
    round_s: float,
    optimizer: str,
    average: bool,
    bf16: bool,
    frozen: bool,
    raw: bool,
    warm_up: int,
    directory: Path | None,
) -> None:
    """Measure the time from the last step of a round to the first step of the next, by phase, on a real cluster."""
    try:
        from hadare.bench.round import RoundOptions, measure
    except ImportError as error:
        raise MissingPart(
            f"this needs the extra 'local' ({error.name or error} is missing): pip install 'hadare[local]'"
        ) from error
    options = RoundOptions(
        params=params,
        forks=forks,
        rounds=rounds,
        round_s=round_s,
        optimizer=optimizer,
        average=average,
        bf16=bf16,
        frozen=frozen,
        raw=raw,
        warm_up=warm_up,
        directory=directory,
    )
    cost = measure(options, session.note)

    def human(console: Console) -> None:
        rows = [(phase, f"{spent:.1f}") for phase, spent in cost.phases_ms.items()]
        console.print(tables.table(("PHASE", "MEDIAN MS"), rows, right=("MEDIAN MS",)))
        console.print(
            f"\nmedian {cost.boundary_ms_median:.1f} ms, 90th percentile {cost.boundary_ms_p90:.1f} ms, "
            f"{cost.boundaries} boundaries; load {cost.load:.1f} on {cost.cores} cores; "
            f"a fork sent {cost.result_bytes / 1e6:.2f} MB",
            highlight=False,
        )
        if cost.raw_ratio is not None:
            console.print(
                f"the same bytes by themselves {cost.raw_ms:.0f} ms: a boundary takes {cost.raw_ratio:.2f} times that",
                highlight=False,
            )

    session.show({**codec.to_plain(cost), "raw_ratio": cost.raw_ratio}, human)
