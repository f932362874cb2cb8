"""A cluster's directory: the one place for its files, what it remembers over restarts, and who holds it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
from msgspec import Meta

from hadare.local.spec import ClusterSpec
from hadare.model.errors import Rejected
from hadare.model.fields import Text

HOST = "127.0.0.1"

_LOOKS, _LOOK_S = 20, 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """File ``cluster.json``: with it, ``up`` in the same directory brings the same cluster back."""

    schema: int = 1
    port: Annotated[int, Meta(ge=1, le=65535)]
    spec: ClusterSpec
    policy: Text = "hadare"
    round_s: Annotated[float, Meta(gt=0)] = 20.0
    prefix: Text = "hadare"

    @property
    def nats_url(self) -> str:
        return f"nats://{HOST}:{self.port}"


def remembered(directory: Path) -> LocalCluster | None:
    """What the directory holds of a former start. Raises ``Rejected`` (400) if that cannot be read."""
    path = directory / "cluster.json"
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=LocalCluster)
    except (OSError, msgspec.DecodeError) as error:
        raise Rejected(400, f"{path} is damaged: {error}") from error


def remember(directory: Path, cluster: LocalCluster) -> None:
    """Writes ``cluster.json``, whole or not at all, with the URL for programs that look for it."""
    write_json(directory / "cluster.json", {"nats_url": cluster.nats_url, **msgspec.to_builtins(cluster)})


def write_json(path: Path, document: Any) -> None:
    """Replaces a JSON file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    unfinished.replace(path)


def free_port() -> int:
    """A TCP port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def listening(port: int) -> bool:
    """Whether something accepts connections on the port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Holds the directory as its only supervisor. Raises ``Rejected`` (409) if another one does."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("a+") as lock:
        if not _locked(lock):
            pid = holder(directory)
            raise Rejected(409, f"a cluster is already running in {directory} (process {pid}); `hadare down` ends it")
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _locked(lock: IO[str]) -> bool:
    """Takes the lock; whoever only looks who holds it (``holder``) does so for a moment, which is waited out."""
    for _ in range(_LOOKS):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOOK_S)
        else:
            return True
    return False


def holder(directory: Path) -> int | None:
    """The process id of the supervisor that holds the directory now, if there is one."""
    path = directory / "lock"
    if not path.exists():
        return None
    with path.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = lock.read().strip()
            return int(text) if text.isdigit() else None
    return None
