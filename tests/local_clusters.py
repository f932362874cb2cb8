"""A local cluster as a user starts it, by the ``hadare`` command, and what tests want to know of it from outside."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from hadare.client import HadareClient, connect
from hadare.local import processes
from hadare.local.directory import listening, remembered
from hadare.model.events import StoredEvent

HADARE = str(Path(sys.executable).parent / "hadare")

DIGITS: dict[str, Any] = {
    "workload": "hadare.training.workloads.digits:Digits",
    "config": {"batch_norm": True},
    "batch_size": 16,
}


def digits(name: str, total_steps: int) -> dict[str, Any]:
    return {**DIGITS, "name": name, "total_steps": total_steps}


class LocalCluster:
    """A cluster in ``<folder>/.hadare``; every command runs in ``folder`` and finds it there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = folder / ".hadare"

    def command(self, *words: str) -> subprocess.Popen[str]:
        """A command that runs on, with its output in a pipe."""
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        return subprocess.Popen(
            [HADARE, *words],
            cwd=self.folder,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def hadare(self, *words: str, status: int = 0) -> str:
        """Runs a command to its end, which must have the given exit status; its output."""
        process = self.command(*words)
        output, _ = process.communicate(timeout=180)
        assert process.returncode == status, output
        return output

    def json(self, *words: str) -> Any:
        return json.loads(self.hadare(*words, "--json"))

    def up(self, *words: str) -> Any:
        return self.json("up", "--detach", *words)

    def write_job(self, spec: dict[str, Any]) -> str:
        path = self.folder / f"{spec['name']}.yaml"
        path.write_text(json.dumps(spec))
        return str(path)

    @property
    def port(self) -> int:
        cluster = remembered(self.directory)
        assert cluster is not None
        return cluster.port

    def pid_of(self, program: str) -> int:
        found = json.loads((self.directory / "processes.json").read_text())[program]["pid"]
        assert isinstance(found, int)
        return found

    def restarts_of(self, program: str) -> int:
        return int(json.loads((self.directory / "processes.json").read_text())[program]["restarts"])

    def processes(self) -> list[psutil.Process]:
        return processes.marked(self.directory.resolve())

    def assert_gone(self) -> None:
        """No process with its mark, no port, nothing in the temporary folder that its commands were given."""
        assert self.processes() == []
        assert not listening(self.port)
        assert list((self.folder / "tmp").iterdir()) == []

    async def until_event(self, job: str, what: str, count: int = 1) -> None:
        """Until ``what`` has happened to the job ``count`` times."""
        async with self.client() as client, asyncio.timeout(120):
            async for news in client.watch(job):
                count -= isinstance(news, StoredEvent) and news.event.what == what
                if count == 0:
                    return
        raise AssertionError(f"{job} ended before '{what}' had happened often enough")

    @asynccontextmanager
    async def client(self) -> AsyncIterator[HadareClient]:
        async with await connect(f"nats://127.0.0.1:{self.port}") as client:
            yield client


def local_cluster(folder: Path) -> Iterator[LocalCluster]:
    """For fixtures: ends whatever is left, whatever the test did."""
    cluster = LocalCluster(folder)
    yield cluster
    if cluster.directory.is_dir():
        cluster.hadare("down")
        assert cluster.processes() == []
