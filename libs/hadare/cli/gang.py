"""``hadare bench gang``: what lockstep over unequal devices reaches."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from hadare.cli import tables
from hadare.cli.exit_codes import MissingPart
from hadare.cli.framework import json_option, pass_session
from hadare.cli.session import Session
from hadare.wire import codec

if TYPE_CHECKING:
    from hadare.bench.gangs import GangCost


@click.command()
@json_option
@pass_session
def gang(session: Session) -> None:
    """Train a fork in lockstep on five unequal emulated devices: its speed, its gradient, the end of a killed rank."""
    cost: GangCost = _gangs().measure(session.note)

    def human(console: Console) -> None:
        rows = [
            (
                speed.gang,
                f"{speed.samples_per_s:.0f}",
                f"{speed.devices_samples_per_s:.0f}",
                f"{speed.reached:.3f}",
                f"{speed.update_ms:.1f}",
                f"{speed.exchange_ms:.1f}",
            )
            for speed in cost.speeds
        ]
        headings = ("GANG", "SAMPLES/S", "DEVICES", "REACHED", "UPDATE MS", "EXCHANGE MS")
        console.print(tables.table(headings, rows, right=headings[1:]))
        console.print(
            f"\ngradient: differs by {cost.gradient_difference:.1e} of its largest value from one device's\n"
            f"a rank killed: all others ended after {cost.killed_s_median * 1e3:.0f} ms (median), "
            f"{cost.killed_s_max * 1e3:.0f} ms at most\n"
            f"load {cost.load:.1f} on {cost.cores} cores",
            highlight=False,
        )

    session.show(codec.to_plain(cost), human)


def _gangs() -> Any:
    try:
        return importlib.import_module("hadare.bench.gangs")
    except ImportError as error:
        raise MissingPart(f"hadare bench gang needs torch: pip install 'hadare[local]' ({error})") from error
