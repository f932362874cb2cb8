"""The ``hadare`` command: every command by its name, and what has to be set up around them."""

from __future__ import annotations

import os

import click

from hadare import __version__
from hadare.cli import bench, cluster, doctor, jobs, machine, run, simulate, trace, weights
from hadare.cli.framework import Root
from hadare.runtime import logs

_EPILOG = """
Jobs are named by name or by identifier. The cluster: --nats URL or HADARE_NATS_URL, else the one that `hadare up`
started in this directory or one above it. Exit codes: docs/reference/exit-codes.md.
"""


@click.group(cls=Root, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hadare")
def hadare() -> None:
    """Trains deep-learning jobs on clusters of unequal GPUs and leaves none of them idle."""


COMMANDS = (
    *(machine.up, machine.down, cluster.status, doctor.doctor, machine.demo, run.run),
    *(jobs.submit, jobs.jobs, jobs.job, jobs.watch, jobs.logs, jobs.cancel, jobs.pause, jobs.resume, jobs.delete),
    *(cluster.nodes, cluster.drain, cluster.undrain, cluster.forget, cluster.prices, cluster.rounds, weights.weights),
    bench.bench,
    *(simulate.simulate, trace.trace),
)
for _command in COMMANDS:
    hadare.add_command(_command)


def main() -> None:
    """The entry point."""
    logs.configure("cli", level=os.environ.get("HADARE_LOG_LEVEL", "error"))
    hadare()
