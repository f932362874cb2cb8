"""One run of the command: which cluster it talks to, and in which form it answers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.text import Text

from hadare.client import HadareClient, connect
from hadare.local.directory import holder
from hadare.model.errors import Unavailable
from hadare.wire import codec

T = TypeVar("T")

CLUSTER_FILE = Path(".hadare") / "cluster.json"
_WIDTH_OF_A_PIPE = 200


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster, and the directory of it if it is one of this machine."""

    nats_url: str
    prefix: str
    directory: Path | None = None


@asynccontextmanager
async def open_client(target: Target) -> AsyncIterator[HadareClient]:
    """A client of the cluster, with the credentials of the environment. Raises ``Unavailable``."""
    if target.directory is not None and holder(target.directory) is None:
        raise Unavailable(f"the cluster in {target.directory} is not running; `hadare up` resumes it")
    seed, authority = os.environ.get("HADARE_NATS_SEED_FILE"), os.environ.get("HADARE_NATS_TLS_CA")
    client = await connect(
        target.nats_url,
        target.prefix,
        seed_file=Path(seed) if seed else None,
        tls_ca=Path(authority) if authority else None,
    )
    async with client:
        yield client


@dataclass
class Session:
    """What the options of the command line said, wherever on it they stood."""

    json: bool = False
    nats_url: str | None = None
    prefix: str | None = None
    opener: Callable[[Target], AbstractAsyncContextManager[HadareClient]] = open_client

    def target(self) -> Target:
        """``--nats``, else ``HADARE_NATS_URL``, else the cluster of this directory or one above it."""
        if self.nats_url:
            return Target(self.nats_url, self.prefix or "hadare")
        found = find_local(Path.cwd())
        if found is None:
            raise Unavailable(
                "no cluster is known here: give --nats URL or set HADARE_NATS_URL, or start one with `hadare up`"
            )
        return Target(found.nats_url, self.prefix or found.prefix, found.directory)

    def run(self, act: Callable[[HadareClient], Awaitable[T]]) -> T:
        """Does something with a client of the cluster."""

        async def connected() -> T:
            async with self.opener(self.target()) as client:
                return await act(client)

        return asyncio.run(connected())

    def show(self, document: object, human: Callable[[Console], None]) -> None:
        """The answer: one JSON document on stdout, or what a person reads."""
        if self.json:
            print(document if isinstance(document, str) else codec.dumps(document), flush=True)
        else:
            human(stdout())

    def note(self, text: str) -> None:
        """Something that is not the answer."""
        Console(stderr=True).print(Text(text), soft_wrap=True)


def stdout() -> Console:
    """A terminal as wide as it is; a pipe wide enough for a line to stay one."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_OF_A_PIPE)


def find_local(start: Path) -> Target | None:
    """The cluster of the nearest directory, from ``start`` up, that has one."""
    for folder in (start, *start.parents):
        path = folder / CLUSTER_FILE
        if path.is_file():
            return _read(path)
    return None


def _read(path: Path) -> Target:
    try:
        held: dict[str, Any] = json.loads(path.read_text())
        url = held.get("nats_url") or f"nats://127.0.0.1:{int(held['port'])}"
        return Target(str(url), str(held.get("prefix", "hadare")), path.parent)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unavailable(f"{path} is damaged ({type(error).__name__}: {error}); give --nats URL instead") from error
