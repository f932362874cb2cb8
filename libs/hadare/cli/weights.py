"""Commands about a job's weights: list versions, fetch one, compare two, hand one to the world outside."""

from __future__ import annotations

import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Literal

import click

from hadare.cli import tables
from hadare.cli.exit_codes import MissingPart
from hadare.cli.framework import cluster_options, pass_session
from hadare.cli.session import Session
from hadare.client import HadareClient
from hadare.model.errors import Rejected
from hadare.wire import api, codec


@click.group()
def weights() -> None:
    """List, fetch, compare and export the versions of a job's model."""


@weights.command("list")
@click.argument("job", metavar="JOB")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many versions.")
@cluster_options
@pass_session
def list_versions(session: Session, job: str, limit: int) -> None:
    """List the versions of a job's model, newest first."""

    async def act(client: HadareClient) -> list[api.VersionInfo]:
        found: list[api.VersionInfo] = []
        async for version in client.weights_list(job):
            found.append(version)
            if len(found) == limit:
                break
        return found

    found = session.run(act)
    session.show({"versions": codec.to_plain(found)}, lambda console: console.print(tables.of_versions(found)))


@weights.command()
@click.argument("job", metavar="JOB")
@click.option("--version", type=click.IntRange(min=0), help="Which version. Default: the newest.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Where to.")
@cluster_options
@pass_session
def get(session: Session, job: str, version: int | None, output: Path | None) -> None:
    """Fetch a version as a safetensors file (default: NAME-vVERSION.safetensors here); its hash is checked."""
    if output is not None and not output.parent.is_dir():
        raise Rejected(400, f"there is no folder {output.parent}")

    async def act(client: HadareClient) -> tuple[api.WeightsRef, Path]:
        part = (output or Path(f"{job}.safetensors")).absolute()
        part = part.with_name(f".{part.name}.part")
        try:
            found = await client.weights_get(job, part, version)
            path = output or Path(f"{found.name}-v{found.version}.safetensors")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return found, path

    found, path = session.run(act)
    document = {**codec.to_plain(found), "path": str(path), "sha256": found.weights.sha256}
    session.show(
        document,
        lambda console: console.print(
            f"{path}: version {found.version} of {found.name}, {found.steps} steps, {tables.size(found.weights.bytes)}",
            highlight=False,
        ),
    )


@weights.command()
@click.argument("job", metavar="JOB")
@click.option("--version", type=click.IntRange(min=0), help="Which version. Default: the newest.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "torch"]),
    default="safetensors",
    show_default=True,
    help="torch: as torch.load(weights_only=True) reads it.",
)
@click.option("--ema", is_flag=True, help="The average of the job's versions instead of the version itself.")
@click.option("--best", is_flag=True, help="The version or the average, whichever was evaluated as better.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Where to.")
@cluster_options
@pass_session
def export(
    session: Session,
    job: str,
    version: int | None,
    form: Literal["safetensors", "torch"],
    ema: bool,
    best: bool,
    output: Path | None,
) -> None:
    """Write a version as a plain state dict: the model's tensors under the model's names, nothing else."""
    tools = _tools()
    if output is not None and not output.parent.is_dir():
        raise Rejected(400, f"there is no folder {output.parent}")
    with tempfile.TemporaryDirectory(prefix="hadare-") as scratch:
        fetched = Path(scratch) / "version"
        found = session.run(lambda client: client.weights_get(job, fetched, version))
        if ema and not tools.keeps_average(fetched):
            raise Rejected(
                400, f"--ema: job '{found.name}' keeps no average of its versions (consolidation.ema_half_life)"
            )
        ending = "safetensors" if form == "safetensors" else "pt"
        path = output or Path(f"{found.name}-v{found.version}-state.{ending}")
        ema = ema or (best and found.metrics.get(tools.AVERAGE_IS_BETTER, 0.0) > 0)
        tensors: int = tools.export(fetched, path, form, ema=ema)
    document = {
        **{"job_id": found.job_id, "name": found.name, "version": found.version, "steps": found.steps},
        **{"path": str(path), "format": form, "ema": ema, "tensors": tensors},
    }
    session.show(
        document,
        lambda console: console.print(
            f"{path}: {tensors} tensors of {'the average at ' if ema else ''}version {found.version} of {found.name}",
            highlight=False,
        ),
    )


@weights.command()
@click.argument("job", metavar="JOB")
@click.option("--version", type=click.IntRange(min=0), help="Which version. Default: the newest.")
@click.option(
    "-o", "--output", metavar="DIR", type=click.Path(file_okay=False, path_type=Path), help="Write them here, too."
)
@cluster_options
@pass_session
def artifacts(session: Session, job: str, version: int | None, output: Path | None) -> None:
    """List the files that a job's task has written beside its model, and write them to a folder."""
    tools = _tools("artifacts")
    with tempfile.TemporaryDirectory(prefix="hadare-") as scratch:
        fetched = Path(scratch) / "version"
        found = session.run(lambda client: client.weights_get(job, fetched, version))
        files: dict[str, int] = tools.listed(fetched) if output is None else tools.extract(fetched, output)
    document = {
        **{"job_id": found.job_id, "name": found.name, "version": found.version, "steps": found.steps},
        **{"path": None if output is None else str(output), "files": files},
    }
    session.show(document, lambda console: console.print(tables.table(("FILE", "SIZE"), _sizes(files))))


def _sizes(files: dict[str, int]) -> list[tuple[str, str]]:
    return [(name, tables.size(count)) for name, count in files.items()]


@weights.command()
@click.argument("job", metavar="JOB")
@click.argument("old", metavar="OLD", type=click.IntRange(min=0))
@click.argument("new", metavar="[NEW]", type=click.IntRange(min=0), required=False)
@cluster_options
@pass_session
def diff(session: Session, job: str, old: int, new: int | None) -> None:
    """Show how far each tensor moved from version OLD to version NEW (default: the newest)."""
    tools = _tools()
    with tempfile.TemporaryDirectory(prefix="hadare-") as scratch:
        folder = Path(scratch)

        async def act(client: HadareClient) -> tuple[api.WeightsRef, api.WeightsRef]:
            first = await client.weights_get(job, folder / "old", old)
            return first, await client.weights_get(job, folder / "new", new)

        first, second = session.run(act)
        found = tools.diff(folder / "old", folder / "new")
    rows = [
        {
            **{"name": one.name, "dtype": one.dtype, "elements": one.elements, "norm": one.norm},
            **{"change": one.change, "relative": one.relative if one.norm else None},
        }
        for one in found
    ]
    document = {"job_id": first.job_id, "old": first.version, "new": second.version, "tensors": rows}
    session.show(document, lambda console: console.print(tables.of_diff(found)))


def _tools(name: str = "exporting") -> ModuleType:
    try:
        return import_module(f"hadare.training.{name}")
    except ImportError as error:
        raise MissingPart(
            f"this needs {error.name or error}, which is missing: pip install 'hadare[node-agent]'"
        ) from error
