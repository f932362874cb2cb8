"""The command ``run``: one job file, one worker, no cluster. What a cluster's result is measured against."""

from __future__ import annotations

import dataclasses
import os
import sys
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
from hadare.cli.jobs import CODE_FOLDER, JOB_FILE
from hadare.cli.sending import localise
from hadare.cli.session import Session
from hadare.machines.admission import read_spec
from hadare.model.errors import Rejected
from hadare.model.jobs import JobSpec

if TYPE_CHECKING:
    from hadare.training.trainer import Standing


@click.command()
@click.argument("file", metavar="JOB.yaml", type=JOB_FILE)
@click.option("--set", "settings", metavar="PATH=VALUE", multiple=True, help="Put a value over the file's.")
@click.option("--code", metavar="DIR", type=CODE_FOLDER, help="Import the workload from this folder.")
@click.option("--start-from", metavar="FILE", help="A safetensors file with the first weights.")
@click.option("--steps", type=click.IntRange(min=1), help="Train so many steps. Default: the file's total_steps.")
@click.option("--round-steps", type=click.IntRange(min=1), help="With a guard: so many between two choices.")
@click.option("--seed", type=click.IntRange(min=0), help="Default: the file's seed.")
@click.option("--device", default="cpu", show_default=True, help="A torch device, such as cuda:0.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="The weights.")
@json_option
@pass_session
def run(
    session: Session,
    file: Path,
    settings: tuple[str, ...],
    code: Path | None,
    start_from: str | None,
    steps: int | None,
    round_steps: int | None,
    seed: int | None,
    device: str,
    output: Path | None,
) -> None:
    """Train a job file with one local worker, without a cluster."""
    local = localise(read_job_file(file, settings), code, start_from)
    spec = read_spec(local.checked(), local.job.name)
    if spec.start_from is not None and local.weights is None:
        raise Rejected(400, f"start_from: '{spec.start_from}' is known to a cluster only; give a file")
    train = _trainer()
    _settle(spec, local.code)
    total = spec.total_steps if steps is None else steps
    with _bar(session, total) as progress:
        options = {
            "round_steps": round_steps,
            "seed": seed,
            "steps": steps,
            "out": output,
            "device": device,
            "start": local.weights,
        }
        result = _trained(lambda: train(spec, progress=progress, **options))
    document = {"workload": spec.workload, **dataclasses.asdict(result), "path": str(output) if output else None}

    def human(console: Console) -> None:
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items()) or "no metrics"
        speed = f"{result.steps} steps in {tables.duration(result.seconds)}, {result.steps_per_s:.1f} steps/s"
        kept = "; kept " + ", ".join(f"{n} × {count}" for n, count in result.chosen.items()) if result.chosen else ""
        console.print(f"{metrics}; loss {result.loss:.4f}; {speed}{kept}", highlight=False)

    session.show(document, human)


def _settle(spec: JobSpec, code: Path | None) -> None:
    """Makes this process what a fork would be. Labels of nodes mean nothing here. Raises ``JobFailed``."""
    import torch

    from hadare.training.needs import Unmet, check_data, check_requirements

    torch.set_num_threads(1)  # as many as a fork has: more only wait for one another where the steps are small
    try:
        check_requirements(spec.requirements)
        check_data([name for name in spec.data if "/" in name], {})
    except Unmet as unmet:
        raise JobFailed(str(unmet)) from unmet
    os.environ.update(spec.env)
    if code is not None:
        sys.path.insert(0, str(code.resolve()))


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
    from hadare.training.failures import failure_of
    from hadare.training.granted import NotFinite
    from hadare.training.tensorfile import WeightsError

    try:
        return train()
    except Rejected:
        raise
    except (NotFinite, WeightsError) as error:
        raise JobFailed(str(error)) from error
    except (Exception, SystemExit) as error:  # the job's own code may raise anything
        failure = failure_of(error)
        raise JobFailed(f"{failure.message}\n{failure.tail}".strip()) from error


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
