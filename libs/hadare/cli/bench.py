"""The group ``bench``: measurements that anybody can repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from hadare.cli import tables
from hadare.cli.framework import json_option, pass_session
from hadare.cli.lazy import LazyGroup
from hadare.cli.session import Session
from hadare.wire import codec

if TYPE_CHECKING:
    from hadare.bench.decide import Decisions


@click.group(
    cls=LazyGroup,
    lazy={
        "chaos": "chaos:chaos",
        "consolidate": "forking:consolidate",
        "dst": "dst:dst",
        "gang": "gang:gang",
        "paper": "paper:paper",
        "quality": "forking:quality",
        "recover": "recover:recover",
        "round": "boundary:boundary",
        "start": "start:start",
        "throughput": "estimates:throughput",
        "transfer": "transfer:transfer",
    },
)
def bench() -> None:
    """Measure HadarE on this machine."""


@bench.command()
@click.option("--instances", default=500, type=click.IntRange(1), show_default=True, help="Random rounds for quality.")
@click.option("--repeat", default=7, type=click.IntRange(1), show_default=True, help="Decisions timed in each case.")
@click.option("--quick", is_flag=True, help="Leave out the round of 20,000 jobs and the larger integer programmes.")
@json_option
@pass_session
def decide(session: Session, instances: int, repeat: int, quick: bool) -> None:
    """Time the decisions of the policies, and compare plans with the exact optimum of their rounds."""
    from hadare.bench.decide import measure  # scipy takes long to load: only who measures waits for it

    found = measure(instances, repeat, said=session.note, huge=not quick)

    def human(console: Console) -> None:
        console.print(_times(found), "", _summary(found), sep="\n", highlight=False)

    session.show(codec.to_plain(found), human)


def _times(found: Decisions) -> Table:
    rows = [
        (c.policy, f"{c.jobs:,}", f"{c.devices:,}", str(c.types), f"{c.median_ms:.1f}", f"{c.cpu_ms:.1f}")
        for c in found.cases
    ]
    return tables.table(("POLICY", "JOBS", "DEVICES", "TYPES", "MEDIAN MS", "CPU MS"), rows)


def _summary(found: Decisions) -> str:
    q, forks = found.quality, found.quality_forks
    scale = ", ".join(f"{at.jobs} jobs {at.ratio:.4f}" for at in found.quality_at_scale)
    return "\n".join(
        (
            f"time grows with jobs^{found.growth_exponent:.2f}; peak memory {found.peak_memory_mb:.0f} MB",
            f"hadar, {q.instances} rounds: V/V* {q.mean_ratio:.4f} in the mean, {q.worst_ratio:.4f} at worst, "
            f"{q.infeasible} infeasible (greedy {q.greedy_mean_ratio:.4f}, {q.greedy_worst_ratio:.4f})",
            f"hadar at scale, V over HiGHS' bound: {scale}",
            f"hadare, {forks.instances} rounds: V/V* {forks.mean_ratio:.4f} in the mean (it does not maximise V)",
        )
    )
