"""What an earlier agent in the same directory left behind: its processes are ended and its scratch files removed.

Goes by the marker that every fork inherits, and that begins with this directory's name: never by user or program.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from pathlib import Path
from typing import Self

from hadare.model.errors import Broken
from hadare.training.processes import end_fork, marker_of, process_table


class WorkDirectory:
    """An agent's own folder. Only one agent at a time can hold it."""

    def __init__(self, path: Path, node: str) -> None:
        self.path = path.absolute()
        self._place = f"{hashlib.sha256(str(self.path).encode()).hexdigest()[:12]}.{node}."
        self._lock = -1

    def marker_prefix(self, incarnation: str) -> str:
        """What the marker of every process of this incarnation begins with."""
        return f"{self._place}{incarnation}."

    @property
    def weights(self) -> Path:
        return self.path / "weights"

    @property
    def results(self) -> Path:
        return self.path / "results"

    @property
    def code(self) -> Path:
        return self.path / "code"

    @property
    def scratch(self) -> Path:
        return self.path / "scratch"

    def __enter__(self) -> Self:
        """Raises ``Broken`` if another agent lives here or the folder cannot be written."""
        try:
            for folder in (self.path, self.weights, self.results, self.scratch):
                folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise Broken(f"another agent works in {self.path}") from error
        except OSError as error:
            raise Broken(f"cannot work in {self.path}: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def clear(self) -> list[str]:
        """Ends every process of an earlier incarnation and empties the scratch folder; markers of what will not end.

        Blocks for as long as it takes, some seconds at most.
        """
        markers = {marker for pid in process_table() if (marker := marker_of(pid)).startswith(self._place)}
        stuck = [marker for marker in sorted(markers) if not end_fork(0, 0, marker)]
        for folder in (self.scratch, self.results, self.weights):
            for file in folder.glob("*"):
                if file.is_dir() and folder == self.scratch:
                    shutil.rmtree(file, ignore_errors=True)
                elif folder == self.scratch or file.suffix == ".part":
                    file.unlink(missing_ok=True)
        return stuck
