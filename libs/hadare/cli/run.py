"""The command ``run``: one job file, one worker, no cluster. What a cluster's result is measured against."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hadare.cli import tables
from hadare.cli.exit_codes import JobFailed, MissingPart
from hadare.cli.framework import json_option, pass_session
from hadare.cli.job_files import read_job_file
from hadare.cli.jobs import JOB_FILE
from hadare.cli.session import Session
from hadare.machines.admission import read_spec

if TYPE_CHECKING:
    from hadare.training.trainer import Standing


@click.command()
@click.argument("file", metavar="JOB.yaml", type=JOB_FILE)
@click.option("--set", "settings", metavar="PATH=VALUE", multiple=True, help="Put a value over the file's.")
@click.option("--steps", type=click.IntRange(min=1), help="Train so many steps. Default: the file's total_steps.")
@click.option("--seed", type=click.IntRange(min=0), help="Default: the file's seed.")
@click.option("--device", default="cpu", show_default=True, help="A torch device, such as cuda:0.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="The weights.")
@json_option
@pass_session
def run(
    session: Session,
    file: Path,
    settings: tuple[str, ...],
    steps: int | None,
    seed: int | None,
    device: str,
    output: Path | None,
) -> None:
    """Train a job file with one local worker, without a cluster."""
    job = read_job_file(file, settings)
    spec = read_spec(job.checked(), job.name)
    train = _trainer()
    total = spec.total_steps if steps is None else steps
    with _bar(session, total) as progress:
        result = _trained(lambda: train(spec, seed=seed, steps=steps, progress=progress, out=output, device=device))
    document = {"workload": spec.workload, **dataclasses.asdict(result), "path": str(output) if output else None}

    def human(console: Console) -> None:
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items()) or "no metrics"
        speed = f"{result.steps} steps in {tables.duration(result.seconds)}, {result.steps_per_s:.1f} steps/s"
        console.print(f"{metrics}; loss {result.loss:.4f}; {speed}", highlight=False)

    session.show(document, human)


def _trainer() -> Callable[..., Any]:
    try:
        from hadare.training.local import run_local
    except ImportError as error:
        raise MissingPart(
            f"training needs {error.name or error}, which is missing: pip install 'hadare[node-agent,workloads]'"
        ) from error
    return run_local


def _trained(train: Callable[[], Any]) -> Any:
    """Raises what the training failed of with a job's exit code: the job is at fault, not the command."""
    from hadare.training.task import WorkloadError
    from hadare.training.trainer import NotFinite

    try:
        return train()
    except WorkloadError as error:
        tail = f"\n{error.failure.tail.rstrip()}" if error.failure.tail else ""
        raise JobFailed(f"{error.failure.message}{tail}") from error
    except NotFinite as error:
        raise JobFailed(str(error)) from error


@contextmanager
def _bar(session: Session, total: int) -> Iterator[Callable[[Standing], None]]:
    """What the trainer reports to: a bar on a terminal, else nothing."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=session.json or not console.is_terminal) as progress:
        task = progress.add_task("steps", total=total, rate="")

        def show(standing: Standing) -> None:
            rate = f"loss {standing.loss:.4f}, {standing.steps_per_s:.1f} steps/s"
            progress.update(task, completed=standing.steps, rate=rate)

        yield show
