"""Files as patches of another file that both sides hold: what is equal is named, what differs is carried.

A patch is the magic number, the length of a JSON header, the header, and the bytes of its literal parts, one after
the other. The header names the base and the whole by their SHA-256 and lists the parts in order:

    ["copy", offset, length]    bytes of the base
    ["zero", 0, length]         bytes that are zero: what a frozen tensor has changed, in a file of changes
    ["data", 0, length]         bytes of the patch

Whoever applies one knows the whole by its hash, so a wrong patch, or one of another base, makes no file at all. The
parts are chosen along the tensors of safetensors files; the format knows nothing of them. Needs no torch.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import IO, Annotated, Literal

import msgspec

from hadare.model.errors import HadareError

MAGIC = b"HADAREP1"
"""As the length of a safetensors header it would be some 10¹⁸: no file is both."""

WORTH = 0.9
"""A patch is made only if it is at most this part of the whole."""

MOST_HEADER_BYTES = 4 * 2**20
_BLOCK = 2**20
_FIRST = 2**12


class PatchError(HadareError, ValueError):
    """A file is no patch, or not one of this base."""


Count = Annotated[int, msgspec.Meta(ge=0)]
Piece = tuple[Literal["copy", "zero", "data"], Count, Count]


@dataclass(frozen=True, slots=True)
class Header:
    """``parts`` as above. ``base`` and ``whole`` are hashes, ``bytes`` the length of the whole."""

    base: str
    whole: str
    bytes: Count
    parts: list[Piece]


def make(path: Path, base: Path, out: Path, *, base_sha256: str) -> str:
    """Writes ``path`` as a patch of ``base`` and returns its hash; '', and nothing is written, if that is not worth it.

    Both are safetensors files; whatever else they are, there is no patch. A tensor that has changed is found out by its
    first bytes, as a rule, so that this costs next to nothing where all have. Raises ``OSError``.
    """
    with _mapped(path) as new, _mapped(base) as old:
        if new is None or old is None:
            return ""
        tensors, before = _tensors(new), _tensors(old)
        if not tensors or not before:
            return ""
        parts = _merged(_parts(new, old, tensors, before), len(new))
        if sum(length for _, (kind, _, length) in parts if kind == "data") > WORTH * len(new):
            return ""
        whole = sha256(new).hexdigest()
        head = Header(base=base_sha256, whole=whole, bytes=len(new), parts=[part for _, part in parts])
        encoded = msgspec.json.encode(head)
        if len(encoded) > MOST_HEADER_BYTES:
            return ""
        with out.open("wb") as file:
            file.write(MAGIC + len(encoded).to_bytes(8, "little") + encoded)
            for start, (kind, _, length) in parts:
                if kind == "data":
                    _write(file, new, start, length)
    return whole


def header_of(path: Path) -> Header | None:
    """None if the file is not a patch. Raises ``PatchError`` if it says that it is one and its header is wrong."""
    with path.open("rb") as file:
        return _read_header(file, path.stat().st_size)


def apply(patch: Path, base: Path, out: Path, *, base_sha256: str, most_bytes: int, whole_sha256: str = "") -> None:
    """Makes the whole file, which appears only if its hash is right. ``base`` has been checked to be ``base_sha256``.

    ``whole_sha256``: what it must be, if the caller knows better than the patch; ``most_bytes``: how long it may be, as
    a short patch can make a long file. ``out`` may be the patch itself. Raises ``PatchError``, ``OSError``.
    """
    part_file = out.with_name(f".{out.name}.{os.getpid()}.whole")
    try:
        with patch.open("rb") as file, _mapped(base) as old:
            head = _read_header(file, patch.stat().st_size)
            if head is None or head.base != base_sha256 or (whole_sha256 and head.whole != whole_sha256):
                raise PatchError(f"{patch.name} is not a patch that makes this of {base_sha256[:12]}")
            if head.bytes > most_bytes:
                raise PatchError(f"{patch.name} would make {head.bytes} bytes of at most {most_bytes}")
            digest = sha256()
            with part_file.open("wb") as whole:
                for block in _blocks(head, file, old or b""):
                    digest.update(block)
                    whole.write(block)
        if digest.hexdigest() != head.whole:
            raise PatchError(f"{patch.name} does not make what it says: {head.whole[:12]}")
        part_file.replace(out)
    finally:
        part_file.unlink(missing_ok=True)


def _read_header(file: IO[bytes], size: int) -> Header | None:
    if file.read(len(MAGIC)) != MAGIC:
        return None
    length = int.from_bytes(file.read(8), "little")
    if length > min(MOST_HEADER_BYTES, size):
        raise PatchError(f"the header of a patch has {length} bytes")
    try:
        head = msgspec.json.decode(file.read(length), type=Header)
    except (msgspec.DecodeError, ValueError) as error:
        raise PatchError(f"the header of a patch is wrong: {error}") from error
    _check(head, size - length - 16)
    return head


def _check(head: Header, carried: int) -> None:
    """Before a byte is written: what it asks for must be what it says, and no more than there is."""
    if sum(length for _, _, length in head.parts) != head.bytes:
        raise PatchError("the parts of a patch are not as long as the whole")
    if sum(length for kind, _, length in head.parts if kind == "data") != carried:
        raise PatchError("a patch does not hold as many bytes as it says")


def _blocks(head: Header, file: IO[bytes], old: mmap.mmap | bytes) -> Iterator[bytes]:
    for kind, at, length in head.parts:
        if kind == "copy" and at + length > len(old):
            raise PatchError("a patch names bytes that its base does not have")
        for done in range(0, length, _BLOCK):
            count = min(length - done, _BLOCK)
            match kind:
                case "copy":
                    yield old[at + done : at + done + count]
                case "zero":
                    yield bytes(count)
                case "data":
                    yield file.read(count)


def _parts(
    new: mmap.mmap, old: mmap.mmap, tensors: Mapping[str, _Tensor], before: Mapping[str, _Tensor]
) -> Iterator[tuple[int, Piece]]:
    """Where each tensor lies in the new file, and what it is a part of."""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].start):
        known = before.get(name)
        if (
            known is not None
            and known.kind == tensor.kind
            and _same(new, tensor.start, old, known.start, tensor.length)
        ):
            yield tensor.start, ("copy", known.start, tensor.length)
        elif tensor.length and _is_zero(new, tensor.start, tensor.length):
            yield tensor.start, ("zero", 0, tensor.length)


def _merged(known: Iterator[tuple[int, Piece]], size: int) -> list[tuple[int, Piece]]:
    """All of the file: between the parts that are known lie data."""
    found: list[tuple[int, Piece]] = []
    at = 0
    for start, (kind, origin, length) in known:
        if start > at:
            found.append((at, ("data", 0, start - at)))
        where, (before, before_at, before_length) = found[-1] if found else (0, ("data", 0, 0))
        if kind == before == "copy" and where + before_length == start and before_at + before_length == origin:
            found[-1] = (where, ("copy", before_at, before_length + length))
        else:
            found.append((start, (kind, origin, length)))
        at = start + length
    if at < size:
        found.append((at, ("data", 0, size - at)))
    return found


@dataclass(frozen=True, slots=True)
class _Tensor:
    kind: tuple[str, tuple[int, ...]]
    start: int
    length: int


def _tensors(file: mmap.mmap) -> dict[str, _Tensor]:
    """Where the tensors lie; nothing if it is not a safetensors file."""
    head = int.from_bytes(file[:8], "little")
    if head > len(file) - 8:
        return {}
    try:
        entries = json.loads(file[8 : 8 + head])
        found = {}
        for name, entry in entries.items():
            if name == "__metadata__":
                continue
            a, b = (int(at) for at in entry["data_offsets"])
            if not 0 <= a <= b <= len(file) - 8 - head:
                return {}
            found[name] = _Tensor((str(entry["dtype"]), tuple(entry["shape"])), 8 + head + a, b - a)
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
    starts = sorted((one.start, one.length) for one in found.values())
    overlap = any(a + length > b for (a, length), (b, _) in pairwise(starts))
    return {} if overlap else found


def _steps(length: int) -> Iterator[tuple[int, int]]:
    """The beginning first: most of what has changed has changed there."""
    at, size = 0, _FIRST
    while at < length:
        yield at, min(at + size, length)
        at, size = at + size, _BLOCK


def _same(new: mmap.mmap, a: int, old: mmap.mmap, b: int, length: int) -> bool:
    return all(new[a + i : a + j] == old[b + i : b + j] for i, j in _steps(length))


def _is_zero(new: mmap.mmap, a: int, length: int) -> bool:
    return all(not new[a + i : a + j].strip(b"\0") for i, j in _steps(length))


def _write(file: IO[bytes], new: mmap.mmap, start: int, length: int) -> None:
    for at in range(start, start + length, _BLOCK):
        file.write(new[at : min(at + _BLOCK, start + length)])


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap | None]:
    """None for a file that is too short to be one of ours; an empty one cannot be mapped."""
    with ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        if path.stat().st_size < len(MAGIC):
            yield None
            return
        yield stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
