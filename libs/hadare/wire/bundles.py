"""How users' code travels: a plain tar, equal for equal folders, that only holds files and folders below its top.

Not compressed, so that nothing can grow when it is unpacked. Whatever else a tar could hold is refused at both ends.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hadare.model.errors import Rejected

MAX_BYTES = 20 * 2**20
MAX_FILES = 4096
MAX_DEPTH = 32
MAX_NAME = 240

IGNORE_FILE = ".hadareignore"
IGNORED = frozenset(
    {
        *("__pycache__", ".git", ".hg", ".svn", ".hadare", ".venv", "venv", "node_modules", ".DS_Store"),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".idea", ".vscode"),
    }
)
_IGNORED_ENDINGS = (".pyc", ".pyo")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A packed folder. ``data`` is the tar."""

    sha256: str
    data: bytes
    files: int


def pack(folder: Path, but: Path | None = None) -> Bundle:
    """The folder as a bundle, without the file ``but``. Raises ``Rejected`` (400, 413) naming what cannot be sent."""
    found = list(files_of(folder, but))
    if not found:
        raise Rejected(400, f"{folder} holds no files to send")
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, name in found:
            _add(archive, path, name)
    data = target.getvalue()
    if len(data) > MAX_BYTES:
        raise _too_large(folder)
    return Bundle(hashlib.sha256(data).hexdigest(), data, len(found))


def files_of(folder: Path, but: Path | None = None) -> Iterator[tuple[Path, str]]:
    """What ``pack`` would send, by name: (file, name in the bundle). Raises ``Rejected`` (400, 413)."""
    if not folder.is_dir():
        raise Rejected(400, f"there is no folder {folder}")
    patterns = _patterns(folder)
    left_out = but.resolve() if but is not None else None
    count = size = 0
    for path, name in _walk(folder, PurePosixPath(), patterns):
        if path.resolve() == left_out:
            continue
        count, size = count + 1, size + path.stat().st_size
        if count > MAX_FILES:
            raise Rejected(413, f"{folder} holds more than {MAX_FILES} files; list what is not code in {IGNORE_FILE}")
        if size > MAX_BYTES:
            raise _too_large(folder)
        yield path, name


def unpack(data: bytes, target: Path) -> int:
    """Unpacks into the new folder ``target``, read-only; says how many files. Raises ``Rejected`` (400, 413).

    Nothing is written before every entry was checked.
    """
    if len(data) > MAX_BYTES:
        raise Rejected(413, f"a bundle of {len(data)} bytes is over {MAX_BYTES}")
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            members = _checked(archive)
            target.mkdir()
            for member in members:
                _write(archive, member, target)
    except (tarfile.TarError, UnicodeError, ValueError, OverflowError, EOFError) as error:
        raise Rejected(400, f"the bundle is damaged: {error}") from error
    for folder, _, _ in os.walk(target, topdown=False):
        Path(folder).chmod(0o555)
    return len(members)


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """Name, content and whether it may be executed; no owner, no time."""
    content = path.read_bytes()
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
    archive.addfile(member, io.BytesIO(content))


def _walk(folder: Path, prefix: PurePosixPath, patterns: list[str]) -> Iterator[tuple[Path, str]]:
    if len(prefix.parts) > MAX_DEPTH:
        raise Rejected(400, f"{folder} is nested deeper than {MAX_DEPTH} folders")
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        name = prefix / entry.name
        if _is_ignored(entry.name, str(name), patterns):
            continue
        if entry.is_symlink():
            raise Rejected(400, f"{entry.path} is a link: only files and folders can be sent; leave it out")
        if entry.is_dir():
            yield from _walk(Path(entry.path), name, patterns)
        elif entry.is_file():
            _check_name(str(name))
            yield Path(entry.path), str(name)
        else:
            raise Rejected(400, f"{entry.path} is neither a file nor a folder; leave it out")


def _is_ignored(own: str, whole: str, patterns: list[str]) -> bool:
    if own in IGNORED or own == IGNORE_FILE or own.endswith(_IGNORED_ENDINGS):
        return True
    return any(fnmatch.fnmatchcase(own, pattern) or fnmatch.fnmatchcase(whole, pattern) for pattern in patterns)


def _patterns(folder: Path) -> list[str]:
    """Lines of the folder's ``.hadareignore``: patterns of names, or of paths below the folder."""
    file = folder / IGNORE_FILE
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [line.strip().rstrip("/") for line in lines if line.strip() and not line.startswith("#")]


def _checked(archive: tarfile.TarFile) -> list[tarfile.TarInfo]:
    members: list[tarfile.TarInfo] = []
    seen: set[str] = set()
    size = 0
    for member in archive:
        _check_name(member.name)
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
            raise Rejected(400, f"the bundle holds '{member.name[:80]}', which is not a plain file")
        if member.name in seen:
            raise Rejected(400, f"the bundle holds '{member.name[:80]}' twice")
        seen.add(member.name)
        members.append(member)
        size += member.size
        if len(members) > MAX_FILES or size > MAX_BYTES:
            raise Rejected(413, f"the bundle holds more than {MAX_FILES} files or {MAX_BYTES} bytes")
    if clash := sorted(seen & {str(above) for name in seen for above in PurePosixPath(name).parents}):
        raise Rejected(400, f"the bundle holds '{clash[0][:80]}' as a file and as a folder")
    return members


def _check_name(name: str) -> None:
    """A plain path below the top, as any file system can hold it."""
    parts = name.split("/")
    odd = not name.isprintable() or "\\" in name or any(part in ("", ".", "..") for part in parts)
    if odd or len(parts) > MAX_DEPTH + 1 or any(len(part.encode()) > MAX_NAME for part in parts):
        raise Rejected(400, f"'{name[:80]}' is not a name for a file in a bundle")


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    source = archive.extractfile(member)
    assert source is not None  # it is a plain file
    content = source.read(member.size + 1)
    if len(content) != member.size:
        raise Rejected(400, f"the bundle is damaged: '{member.name[:80]}' is cut off")
    path = target / member.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(content)
    path.chmod(0o555 if member.mode & 0o100 else 0o444)


def _too_large(folder: Path) -> Rejected:
    return Rejected(
        413, f"{folder} is larger than {MAX_BYTES // 2**20} MiB; list what is not code in {IGNORE_FILE}, or send less"
    )
