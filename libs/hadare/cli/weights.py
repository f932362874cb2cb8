"""Commands about a job's weights: list versions, fetch one as a safetensors file."""

from __future__ import annotations

from pathlib import Path

import click

from hadare.cli import tables
from hadare.cli.framework import cluster_options, pass_session
from hadare.cli.session import Session
from hadare.client import HadareClient
from hadare.model.errors import Rejected
from hadare.wire import api, codec


@click.group()
def weights() -> None:
    """List and fetch the versions of a job's model."""


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
