"""A file that is being fetched: what has come lies beside its place until it is whole, and is gone on with later.

A part is named by the content that it will have, so nobody goes on with another's, and has one owner at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from hadare.model.errors import Rejected
from hadare.model.jobs import ObjectRef

_BLOCK = 2**20
PART_SUFFIX, _MARK = ".part", ".mark"


class Part:
    """``done`` bytes of ``path`` are here; ``mark`` is what the store noted beside them. All methods block.

    ``with Part(ref, path) as part: part.append(...); part.finish()``. What has come stays for a later attempt, unless
    the block ends by ``Rejected``: then it is of no use.
    """

    def __init__(self, ref: ObjectRef, path: Path) -> None:
        self._ref = ref
        self._path = path
        self._marks: Path | None = None
        self._place, self._file = self._open()
        self.done = 0
        self.mark: dict[str, Any] = {}
        self._digest = hashlib.sha256()
        self._recall()
        self._file.truncate(self.done)
        self._file.seek(self.done)

    def __enter__(self) -> Part:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._marks is None or isinstance(error, Rejected):
            self._remove()
        self._file.close()

    def append(self, chunks: Sequence[bytes], mark: Mapping[str, Any] | None = None) -> None:
        """``mark`` is what an attempt after this one needs to know to go on behind these chunks."""
        self._write(chunks)
        if self._marks is not None:
            self._file.flush()
            self._marks.write_text(json.dumps({"done": self.done, "mark": dict(mark or {})}))

    def _write(self, chunks: Sequence[bytes]) -> None:
        for chunk in chunks:
            self._file.write(chunk)
            self._digest.update(chunk)
            self.done += len(chunk)

    def restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self.done, self.mark, self._digest = 0, {}, hashlib.sha256()

    def finish(self, chunks: Sequence[bytes] = ()) -> None:
        """Adds the last chunks and moves the whole file to its place. Raises ``Rejected`` (404) if it is not what was
        announced."""
        self._write(chunks)
        if self._digest.hexdigest() != self._ref.sha256:
            raise Rejected(404, f"object '{self._ref.name}' does not have the content that it should have")
        # Not forced to disk, which can cost more than the transfer: whoever finds a file after a crash hashes it.
        self._file.flush()
        self._place.replace(self._path)
        if self._marks is not None:
            self._marks.unlink(missing_ok=True)

    def _open(self) -> tuple[Path, BinaryIO]:
        """The part that an attempt before has left or that one after finds; one that nobody finds if it is taken."""
        name = self._path.with_name(f".{self._path.name[:64]}.{self._ref.sha256[:16]}{PART_SUFFIX}")
        # One step: its owner may just be moving it away.
        file = os.fdopen(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(name.stat(), os.fstat(file.fileno())):  # else its owner has just finished
                self._marks = name.with_suffix(_MARK)
                return name, file
        file.close()
        handle, alone = tempfile.mkstemp(prefix=f".{self._path.name[:64]}.", suffix=PART_SUFFIX, dir=self._path.parent)
        os.close(handle)
        return Path(alone), Path(alone).open("r+b")

    def _recall(self) -> None:
        """What is wrong with an old part costs a transfer from the start, no more: the whole is hashed anyway."""
        if self._marks is None:
            return
        try:
            noted = json.loads(self._marks.read_text())
            done, mark = int(noted["done"]), dict(noted["mark"])
        except (OSError, ValueError, TypeError, KeyError):
            return
        if not 0 <= done <= self._file.seek(0, os.SEEK_END):
            return
        self._file.seek(0)
        while self.done < done and (block := self._file.read(min(_BLOCK, done - self.done))):
            self._digest.update(block)
            self.done += len(block)
        self.mark = mark

    def _remove(self) -> None:
        self._place.unlink(missing_ok=True)
        if self._marks is not None:
            self._marks.unlink(missing_ok=True)


def remove_old_parts(folder: Path, min_age_s: float) -> int:
    """Parts that nobody has added to for so long, by this machine's clock; says how many files went."""
    removed = 0
    for path in [*folder.glob(f".*{PART_SUFFIX}"), *folder.glob(f".*{_MARK}")]:
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime >= min_age_s:
                path.unlink()
                removed += 1
    return removed
