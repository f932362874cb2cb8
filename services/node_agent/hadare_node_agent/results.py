"""Results that nobody has acknowledged yet, on disk, so that they outlive the agent."""

from __future__ import annotations

from pathlib import Path

import structlog

from hadare.model.errors import Rejected
from hadare.model.leases import ForkResult
from hadare.wire import codec

log = structlog.get_logger("hadare.node_agent")

_SUFFIX = ".msgpack"


class ResultStore:
    """One file a result, named by its lease, written whole or not at all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def keep(self, lease: str, result: ForkResult) -> None:
        """Does nothing if the result is kept already. Raises ``OSError``, and leaves no part of a file then."""
        path = self._path(lease)
        if path.exists():
            return
        part = path.with_suffix(".part")
        try:
            part.write_bytes(codec.encode(result))
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise

    def forget(self, lease: str) -> None:
        self._path(lease).unlink(missing_ok=True)

    def kept(self) -> tuple[ForkResult, ...]:
        """What an earlier incarnation left, oldest first. A file that cannot be read is removed, and that is logged."""
        results = []
        for path in sorted(self._directory.glob(f"*{_SUFFIX}"), key=lambda path: (path.stat().st_mtime_ns, path.name)):
            try:
                results.append(codec.decode(path.read_bytes(), ForkResult))
            except Rejected as fault:
                log.warning("a kept result cannot be read", file=path.name, fault=fault.message)
                path.unlink()
        return tuple(results)

    def _path(self, lease: str) -> Path:
        return self._directory / f"{lease}{_SUFFIX}"
