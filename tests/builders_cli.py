"""The ``hadare`` command run against a gateway in memory, whose state outlives each run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from click.testing import CliRunner, Result

from builders_gateway import Others, a_gateway
from hadare.cli.main import hadare
from hadare.cli.session import Session, Target
from hadare.client import HadareClient
from hadare.runtime.memory import MemoryHub

T = TypeVar("T")

JOB = "workload: pkg.mod:TinyNet\ntotal_steps: 100\nbatch_size: 8\n"


def all_commands(group: click.Group, path: str = "hadare") -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, by the whole line that calls it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            assert command.help
            yield from all_commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


class Cli:
    """Runs commands in an empty directory."""

    def __init__(self, folder: Path) -> None:
        self.hub = MemoryHub()
        self.folder = folder
        self.targets: list[Target] = []

    def __call__(self, *arguments: str, nats: str | None = "nats://memory") -> Result:
        session = Session(opener=self._open, nats_url=nats)
        return CliRunner().invoke(hadare, list(arguments), obj=session, env={"HADARE_NATS_URL": None})

    def json(self, *arguments: str, code: int = 0) -> Any:
        """What the command prints with ``--json``: exactly one document."""
        result = self(*arguments, "--json")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def others(self, act: Callable[[Others], Awaitable[T]]) -> T:
        """Lets the other services do something between two commands."""

        async def doing() -> T:
            return await act(Others(self.hub))

        return asyncio.run(doing())

    def file(self, text: str = JOB, name: str = "job.yaml") -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    @asynccontextmanager
    async def _open(self, target: Target) -> AsyncIterator[HadareClient]:
        self.targets.append(target)
        async with a_gateway(self.hub):
            client = HadareClient(self.hub.connect("client"), timeout_s=2.0, patience_s=2.0)
            async with client:
                yield client
