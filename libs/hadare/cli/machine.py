"""Commands that start and stop things on this machine: up, down, demo."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import click

from hadare.cli.exit_codes import MissingPart
from hadare.cli.framework import json_option, pass_session
from hadare.cli.session import Session
from hadare.local.options import DEFAULT_DIRECTORY, DemoOptions, UpOptions

_DIRECTORY = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)
_CLUSTER = click.option(
    "--cluster", metavar="SPEC|FILE", help="Nodes x devices : type, such as 2x4:V100,1x2:T4; or a YAML file."
)


@click.command()
@click.option("--dir", "directory", type=_DIRECTORY, default=DEFAULT_DIRECTORY, show_default=True, help="Its files.")
@_CLUSTER
@click.option("--round", "round_s", metavar="SECONDS", type=click.FloatRange(min=0.5), help="Length of a round.")
@click.option("--policy", metavar="NAME", help="Scheduling policy: hadare, hadar, …")
@click.option("--detach", is_flag=True, help="Return once it is ready; `hadare down` ends it.")
@json_option
@pass_session
def up(
    session: Session, directory: Path, cluster: str | None, round_s: float | None, policy: str | None, detach: bool
) -> None:
    """Start a whole cluster on this machine; again in the same directory, it resumes."""
    commands = _commands()
    options = UpOptions(
        directory=directory, cluster=cluster, round_s=round_s, policy=policy, detach=detach, json=session.json
    )
    raise click.exceptions.Exit(commands.up(options))


@click.command()
@click.option("--dir", "directory", type=_DIRECTORY, default=DEFAULT_DIRECTORY, show_default=True, help="Its files.")
@json_option
@pass_session
def down(session: Session, directory: Path) -> None:
    """Stop the cluster of a directory; its jobs go on when it is up again."""
    stopped = _commands().down(directory)
    said = "stopped" if stopped else "nothing was running"
    session.show(
        {"directory": str(directory.resolve()), "stopped": stopped},
        lambda console: console.print(f"{said} in {directory}", highlight=False),
    )


@click.command()
@click.option("--dir", "directory", type=_DIRECTORY, help="Its files. Default: a new folder in .hadare.")
@_CLUSTER
@click.option("--round", "round_s", metavar="SECONDS", type=click.FloatRange(min=0.5), help="Length of a round.")
@click.option(
    "--json", "json_file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="The report."
)
@click.option("--plain", is_flag=True, help="Lines instead of a live picture.")
def demo(
    directory: Path | None, cluster: str | None, round_s: float | None, json_file: Path | None, plain: bool
) -> None:
    """Train three real jobs on five emulated unequal GPUs, and report; exits with 0 if all targets were reached."""
    commands = _commands()
    options = DemoOptions(directory=directory, json_file=json_file, cluster=cluster, round_s=round_s, plain=plain)
    raise click.exceptions.Exit(commands.demo(options))


def _commands() -> ModuleType:
    """Imported late: it needs what only the extra 'local' installs."""
    try:
        from hadare.local import commands
    except ImportError as error:
        raise MissingPart(
            f"this needs the extra 'local' ({error.name or error} is missing): pip install 'hadare[local]'"
        ) from error
    return commands
