"""The command ``bench transfer``: how fast weights go through the object store of NATS on this machine."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
from rich.console import Console

from hadare.cli import tables
from hadare.cli.exit_codes import MissingPart
from hadare.cli.framework import json_option, pass_session
from hadare.cli.session import Session
from hadare.wire import codec


@click.command()
@click.option("--megabytes", default=256.0, type=click.FloatRange(1), show_default=True, help="Size of the file.")
@click.option("--turns", default=3, type=click.IntRange(1), show_default=True, help="The best of so many counts.")
@click.option("--folder", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Where the files lie.")
@json_option
@pass_session
def transfer(session: Session, megabytes: float, turns: int, folder: Path | None) -> None:
    """Time our writer and reader of weights beside the stock client's, on a server of their own."""
    try:
        from hadare.bench.transfer import measure
    except ImportError as error:
        raise MissingPart(
            f"this needs the extra 'local' ({error.name or error} is missing): pip install 'hadare[local]'"
        ) from error
    with tempfile.TemporaryDirectory(prefix="hadare-", dir=folder) as scratch:
        found = measure(Path(scratch), megabytes, turns)

    def human(console: Console) -> None:
        rows = [
            ("put", f"{found.put_mb_s:.0f}", f"{found.stock_put_mb_s:.0f}", f"{found.put_ratio:.1f}"),
            ("get", f"{found.get_mb_s:.0f}", f"{found.stock_get_mb_s:.0f}", f"{found.get_ratio:.1f}"),
        ]
        console.print(
            tables.table(("", "MB/S", "STOCK CLIENT", "RATIO"), rows, right=("MB/S", "STOCK CLIENT", "RATIO"))
        )
        console.print(
            f"\na copy of the file {found.copy_mb_s:.0f} MB/s; load {found.load:.1f} on {found.cores} cores",
            highlight=False,
        )

    session.show({**codec.to_plain(found), "put_ratio": found.put_ratio, "get_ratio": found.get_ratio}, human)
