"""``hadare bench dst``: clusters in virtual time against a seeded adversary, held to the laws."""

from __future__ import annotations

import click
from rich.console import Console

from hadare.bench.dst import Campaign, replay, run_campaign
from hadare.cli.framework import json_option, pass_session
from hadare.cli.session import Session
from hadare.dst.scenario import FAULTS
from hadare.wire import codec


@click.command()
@click.option("--seeds", default=2000, type=click.IntRange(1), show_default=True, help="How many simulations.")
@click.option("--first", default=1, type=click.IntRange(0), show_default=True, help="The first seed.")
@click.option("--faults", default=FAULTS, type=click.IntRange(0), show_default=True, help="Faults in each.")
@click.option("--workers", type=click.IntRange(1), help="Processes; by default one a core.")
@click.option("--replay", "one", type=click.IntRange(0), help="Tell the story of this one seed instead.")
@json_option
@pass_session
def dst(session: Session, seeds: int, first: int, faults: int, workers: int | None, one: int | None) -> None:
    """Simulate whole clusters whose network, disks and processes fail, and hold them to the laws."""
    if one is not None:
        _tell(one, faults)
        return
    found = run_campaign(seeds, first, faults, workers, session.note)

    def human(console: Console) -> None:
        console.print(_summary(found), highlight=False, markup=False)

    session.show(codec.to_plain(found), human)
    if found.violations:
        raise SystemExit(1)


def _tell(seed: int, faults: int) -> None:
    verdict = replay(seed, faults)
    for line in verdict.story:
        click.echo(line)
    click.echo(f"digest {verdict.digest}")
    if verdict.violations:
        raise SystemExit(1)


def _summary(found: Campaign) -> str:
    lines = [
        f"{found.seeds:,} seeds, {found.faults:,} faults, {found.rounds:,} rounds, {found.events:,} events, "
        f"{found.virtual_s / 3600:,.0f} hours in {found.seconds:.0f} s: {found.violations} seeds break a law"
    ]
    for failing in found.failing:
        lines.append(f"seed {failing.seed} at {failing.at_s} s: {failing.law}: {failing.detail}")
        lines += [f"    {fault}" for fault in failing.faults]
    return "\n".join(lines)
