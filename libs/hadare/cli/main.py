"""The ``hadare`` command: every command by its name, and what has to be set up around them."""

from __future__ import annotations

import os

import click

from hadare import __version__
from hadare.cli.framework import Root
from hadare.runtime import logs

_EPILOG = """
Jobs are named by name or by identifier. The cluster: --nats URL or HADARE_NATS_URL, else the one that `hadare up`
started in this directory or one above it. Exit codes: docs/reference/exit-codes.md.
"""


COMMANDS = {
    **dict.fromkeys(("up", "down", "demo"), "machine"),
    **dict.fromkeys(("status", "nodes", "drain", "undrain", "forget", "prices", "rounds"), "cluster"),
    **dict.fromkeys(("submit", "jobs", "job", "watch", "logs", "cancel", "pause", "resume", "delete"), "jobs"),
    **{name: name for name in ("bench", "doctor", "run", "simulate", "trace", "weights")},
}
"""Every command, and the module that has it under the same name."""


@click.group(
    cls=Root,
    lazy={name: f"{module}:{name}" for name, module in COMMANDS.items()},
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="hadare")
def hadare() -> None:
    """Trains deep-learning jobs on clusters of unequal GPUs and leaves none of them idle."""


def main() -> None:
    """The entry point."""
    logs.configure("cli", level=os.environ.get("HADARE_LOG_LEVEL", "error"))
    hadare()
