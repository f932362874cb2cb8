"""``hadare bench chaos``: a real cluster of real processes under a schedule of faults, held to the invariants."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from hadare.cli import tables
from hadare.cli.framework import json_option, pass_session
from hadare.cli.session import Session
from hadare.wire import codec

_FAULTS, _MINUTES = 210, 12.0


@click.command()
@click.option("--seed", default=1, type=click.IntRange(0), show_default=True, help="Which schedule of faults.")
@click.option("--faults", default=_FAULTS, type=click.IntRange(0), show_default=True, help="How many.")
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    help=f"Over which they are spread. Default: {_MINUTES:g}, for fewer faults than {_FAULTS} less in proportion.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the cluster's folder (logs, streams) here, for a look at what went wrong.",
)
@json_option
@pass_session
def chaos(session: Session, seed: int, faults: int, minutes: float | None, keep: Path | None) -> None:
    """Kill, freeze, cut off and confuse a real cluster while it trains, and check that nothing is lost."""
    from hadare.bench.chaos.report import Report
    from hadare.bench.chaos.run import Options, run_chaos

    spread = minutes if minutes is not None else _MINUTES * min(1.0, faults / _FAULTS)
    found = run_chaos(Options(seed=seed, faults=faults, minutes=spread, keep=keep), session.note)

    def human(console: Console, report: Report = found) -> None:
        rows = [
            (kind.kind, str(kind.faults), _seconds(kind.recovery_s_median), _seconds(kind.recovery_s_max))
            for kind in report.by_kind
        ]
        console.print(tables.table(("FAULT", "TIMES", "RECOVERY MEDIAN S", "MAX S"), rows))
        failovers = report.failovers
        console.print(
            f"\n{report.faults} faults of {report.kinds} kinds in {report.seconds:.0f} s (seed {report.seed}), "
            f"{report.jobs} jobs ({', '.join(f'{count} {end}' for end, count in sorted(report.ends.items()))}), "
            f"{report.rounds} rounds, {report.versions} versions\n"
            f"{failovers.count} failovers, median {_seconds(failovers.median_s)} s, longest {_seconds(failovers.max_s)}"
            f" s, longest of {failovers.alone} without another fault near {_seconds(failovers.alone_max_s)} s\n"
            f"{report.steps_counted:,} steps counted, {report.steps_lost:,} lost; {report.node_deaths} nodes died with "
            f"leases, at the cost of {report.steps_lost_with_nodes:,} steps, {report.most_steps_lost_with_a_node:,} at "
            f"most\n{report.doubled_messages:,} messages doubled, {report.held_back_results} results held back, "
            f"{report.replayed_messages} old messages sent again\n{report.violations} violations",
            highlight=False,
            markup=False,
        )
        for violation in report.broken:
            console.print(f"  {violation.law}: {violation.detail}", highlight=False, markup=False)

    session.show(codec.to_plain(found), human)
    if found.violations:
        raise SystemExit(1)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
