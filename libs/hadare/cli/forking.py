"""``hadare bench consolidate`` and ``quality``: what making one model of forks costs, and what it is worth."""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from hadare.cli import tables
from hadare.cli.exit_codes import MissingPart
from hadare.cli.framework import json_option, pass_session
from hadare.cli.session import Session
from hadare.model.errors import Rejected
from hadare.wire import codec

if TYPE_CHECKING:
    from hadare.bench.quality import Cell, Quality

_BYTES_A_PARAMETER = 4


@click.command()
@click.option("--params", default=100_000_000, type=click.IntRange(1), show_default=True, help="float32 parameters.")
@click.option("--forks", default=5, type=click.IntRange(1, 64), show_default=True)
@click.option("--turns", default=3, type=click.IntRange(1), show_default=True, help="Times that each is measured.")
@click.option("--folder", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Where the files lie.")
@json_option
@pass_session
def consolidate(session: Session, params: int, forks: int, turns: int, folder: Path | None) -> None:
    """Time the kernel that averages forks, against reading their files once."""
    kernel = _with_torch("consolidate")
    with tempfile.TemporaryDirectory(prefix="hadare-", dir=folder) as scratch:
        needed = params * _BYTES_A_PARAMETER * (forks + 1) / 1e6
        if kernel.free_mb(Path(scratch)) < needed:
            raise Rejected(400, f"the files take {needed:.0f} MB, which {scratch} does not have: choose --folder")
        found = kernel.measure(Path(scratch), params, forks, turns)

    def human(console: Console) -> None:
        console.print(
            f"{forks} forks of {params:,} parameters: reading {found.read_only_s:.3f} s; "
            f"average {found.average_s:.3f} s ({found.average_s / found.read_only_s:.2f} ×); "
            f"with checks {found.checked_s:.3f} s ({found.checked_s / found.read_only_s:.2f} ×)",
            f"memory copies {found.memcpy_gb_s:.1f} GB/s; anonymous memory {found.anonymous_mb:.0f} MB",
            sep="\n",
            highlight=False,
        )

    session.show(codec.to_plain(found), human)


@click.command()
@click.option("--quick", is_flag=True, help="At most five minutes: shorter runs, fewer seeds.")
@click.option(
    "--workload", "only", multiple=True, metavar="NAME", help="Only these, such as digits. Default: all five."
)
@click.option("--seeds", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--tuned/--same-rate", default=None, help="Also at each setting's best rate. Default: unless --quick.")
@click.option("--workers", type=click.IntRange(1, 256), help="Processes that share the work. Default: one a core.")
@json_option
@pass_session
def quality(
    session: Session, quick: bool, only: tuple[str, ...], seeds: int, tuned: bool | None, workers: int | None
) -> None:
    """Measure what forking is worth: five unequal workers in virtual time, against one worker."""
    bench = _with_torch("quality")
    unknown = sorted(set(only) - set(bench.NAMES))
    if unknown:
        raise Rejected(400, f"there is no workload {unknown[0]!r}; there are {', '.join(bench.NAMES)}")
    found = bench.measure(
        only or bench.NAMES,
        quick=quick,
        seeds=seeds,
        tuned=tuned,
        workers=workers or os.cpu_count() or 1,
        said=session.note,
    )
    session.show(codec.to_plain(found), lambda console: console.print(_table(found)))


def _table(found: Quality) -> Table:
    rows = [
        (c.workload, c.setting, c.rate, c.equal_steps.text(), c.equal_wall.text(), _reached(c)) for c in found.cells
    ]
    return tables.table(("WORKLOAD", "SETTING", "RATE", "EQUAL STEPS", "EQUAL WALL TIME", "TIME TO TARGET"), rows)


def _reached(cell: Cell) -> str:
    there = f"{cell.to_target.mean:.2f}" if cell.to_target.count else "-"
    return f"{there} ({cell.to_target.count} of {cell.seeds})"


def _with_torch(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"hadare.bench.{name}")
    except ImportError as error:
        raise MissingPart(
            f"this needs {error.name or error}, which is missing: pip install 'hadare[node-agent,workloads]'"
        ) from error
