"""Files that a task writes beside its model, such as pictures and vocabularies: where to, and how they travel.

They are bytes in the fork's weights file (``artifact.<path>``), so they come in, are checked and are kept with the
version that they belong to. A version has what its forks wrote, and what its base had.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from hadare.training.protocol import ARTIFACTS_VARIABLE
from hadare.training.sources import Source
from hadare.training.tensorfile import Reader, TensorSpec, WeightsError

ARTIFACT_PREFIX = "artifact."
MOST_BYTES = 16 * 2**20
MOST_FILES = 256
_LONGEST_NAME = 512


def artifacts() -> Path:
    """The folder whose files are handed in with each result: at most 256 files, 16 MiB together.

    It is the environment's ``HADARE_ARTIFACTS``, or ``artifacts`` in the working directory where that is not set.
    """
    folder = Path(os.environ.get(ARTIFACTS_VARIABLE) or "artifacts")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def collect(folder: Path) -> tuple[dict[str, Tensor], list[str]]:
    """The files of a folder as tensors of a weights file, and what was left out and why.

    Regular files only, no links; in the order of their names while they fit.
    """
    found: dict[str, Tensor] = {}
    left_out: list[str] = []
    room = MOST_BYTES
    for path in sorted(_files(folder)) if folder.is_dir() else []:
        name = path.relative_to(folder).as_posix()
        if not is_name(name):
            left_out.append(f"{name[:80]!r}: not a name that can be kept")
        elif len(found) >= MOST_FILES:
            left_out.append(f"{name}: more than {MOST_FILES} files")
        else:
            try:
                content = _content(path, room + 1)
            except OSError as error:
                left_out.append(f"{name}: {error.strerror}")
                continue
            if len(content) > room:
                left_out.append(f"{name}: more than {MOST_BYTES // 2**20} MiB together")
            elif content:
                found[ARTIFACT_PREFIX + name] = torch.frombuffer(content, dtype=torch.uint8).clone()
                room -= len(content)
    return found, left_out


def _content(path: Path, most: int) -> bytearray:
    """Its first bytes as they are now: a thread of the task may still write to it, or have deleted it. Raises
    ``OSError``."""
    with path.open("rb") as file:
        return bytearray(file.read(most))


def _files(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in names:
            path = Path(where, name)
            if path.is_file() and not path.is_symlink():
                yield path


def is_name(name: str) -> bool:
    """Whether a name stays within the folder that it is written to."""
    path = PurePosixPath(name)
    plain = name.isprintable() and "\\" not in name and 0 < len(name) <= _LONGEST_NAME
    return plain and not path.is_absolute() and ".." not in path.parts and path.as_posix() == name


class Artifacts:
    """The files of a version that is being made: of each name, that of the fork with most steps that wrote it; else the
    base's. Of the base's files those go that no longer fit, the last by name first. Where one has a file and another a
    folder of the same name, the name is whose it would be if both were files."""

    def __init__(self, start: Source, forks: Sequence[Source]) -> None:
        self._owners: dict[str, Reader] = {}
        self._folders: set[str] = set()
        self.specs: dict[str, TensorSpec] = {}
        self._room = MOST_BYTES
        for source in [*sorted(forks, key=lambda fork: (-fork.steps, fork.fork)), start]:
            for name, spec in sorted(source.reader.specs.items()):
                if name.startswith(ARTIFACT_PREFIX):
                    self._take(name, spec, source.reader)

    def content(self, name: str) -> Tensor:
        return self._owners[name].flat(name)

    def _take(self, name: str, spec: TensorSpec, owner: Reader) -> None:
        folders = _folders_of(name)
        known = name in self.specs or name in self._folders or not folders.isdisjoint(self.specs)
        sound = is_name(name.removeprefix(ARTIFACT_PREFIX)) and spec.dtype == "U8"
        if sound and not known and len(self.specs) < MOST_FILES and spec.bytes <= self._room:
            self.specs[name] = spec
            self._owners[name] = owner
            self._folders |= folders
            self._room -= spec.bytes


def _folders_of(name: str) -> set[str]:
    """Names that must not be files, so that this one can be written."""
    return {str(parent) for parent in PurePosixPath(name).parents}


def listed(version: Path) -> dict[str, int]:
    """The files that a version carries, and their sizes in bytes. Raises ``WeightsError``."""
    reader = Reader(version)
    names = [name for name in reader.specs if name.startswith(ARTIFACT_PREFIX)]
    return {name.removeprefix(ARTIFACT_PREFIX): reader.specs[name].bytes for name in sorted(names)}


def extract(version: Path, folder: Path) -> dict[str, int]:
    """Writes the files of a version into a folder. Raises ``WeightsError`` if a name would lead out of it, or if a file
    cannot be written."""
    reader, found = Reader(version), listed(version)
    if odd := [name for name in found if not is_name(name)]:
        raise WeightsError(f"{odd[0][:80]!r} is not a name of a file that can be written")
    for name in found:
        place = folder / name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(reader.flat(ARTIFACT_PREFIX + name).numpy().tobytes())
        except OSError as error:
            raise WeightsError(f"{place} cannot be written: {error.strerror}") from error
    return found
