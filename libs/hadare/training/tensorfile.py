"""Safetensors files, written as a stream: tensor after tensor, and visible only when complete.

The layout is the published one: a little-endian length, a JSON header, the bytes. Reading is left to safetensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hadare.model.errors import HadareError

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES: Mapping[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}

MAX_HEADER_BYTES = 64 * 2**20
_KEY = "hadare"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's place in a file's spec: safetensors dtype and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].itemsize


class WeightsError(HadareError, ValueError):
    """A file is not a weights file, or not one of this model."""


def layout(specs: Mapping[str, TensorSpec]) -> list[str]:
    """The order of the tensors in a file: wide ones first, so that each is aligned; then by name."""
    return sorted(specs, key=lambda name: (-DTYPES[specs[name].dtype].itemsize, name))


class Writer:
    """Writes one file under a temporary name; leaving the block without an error gives it its name.

    It is not forced to disk: what must outlive a crash of the machine is in the weights store.

    Tensors are appended in the order of ``layout``, in pieces of any length.
    """

    def __init__(self, path: Path, specs: Mapping[str, TensorSpec], meta: Mapping[str, object]) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._length = 0
        self._expected = sum(spec.bytes for spec in specs.values())
        self._header = _header(specs, meta)
        self._file: IO[bytes]

    def __enter__(self) -> Self:
        self._file = self._partial.open("wb")
        try:
            self._write(memoryview(self._header))
        except BaseException:
            self._abandon()
            raise
        self._expected += self._length
        return self

    def append(self, piece: Tensor) -> None:
        """The next elements, in row-major order."""
        flat = piece.detach().cpu().contiguous().reshape(-1)
        if flat.dtype == torch.bool:
            flat = flat.view(torch.uint8)
        self._write(memoryview(flat.view(torch.uint8).numpy().data))

    def _write(self, data: memoryview) -> None:
        self._file.write(data)
        self._length += len(data)

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        if kind is not None:
            self._abandon()
            return
        try:
            self._file.close()  # writes what is buffered: this is where a small file finds the disk full
            if self._length != self._expected:
                raise ValueError(f"{self._length} bytes written where the header promises {self._expected}")
            self._partial.replace(self._path)
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Leaves nothing behind, also on a disk that is full."""
        with suppress(OSError):
            self._file.close()
        self._partial.unlink(missing_ok=True)

    @property
    def bytes(self) -> int:
        """The length of the file so far."""
        return self._length


def _document(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise WeightsError(f"the metadata is not JSON: {error}") from error


def _mapped(path: Path) -> Any:
    try:
        return safe_open(str(path), framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path.name} is not a weights file: {error}") from error


def _header(specs: Mapping[str, TensorSpec], meta: Mapping[str, object]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {_KEY: json.dumps(meta, sort_keys=True, separators=(",", ":"))}}
    offset = 0
    for name in layout(specs):
        spec = specs[name]
        end = offset + spec.bytes
        entries[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"header of {len(text)} bytes is over {MAX_HEADER_BYTES}")
    return len(text).to_bytes(8, "little") + text


class Reader:
    """A memory-mapped file: tensors are views of the page cache. Raises ``WeightsError`` if it is no such file."""

    def __init__(self, path: Path) -> None:
        self._file = _mapped(path)
        self.meta = _document((self._file.metadata() or {}).get(_KEY, "{}"))
        self.specs: dict[str, TensorSpec] = {}
        for name in self._file.keys():  # noqa: SIM118 - not a dict
            piece = self._file.get_slice(name)
            dtype = str(piece.get_dtype())
            if dtype not in DTYPES:
                raise WeightsError(f"{path.name}: tensor {name!r} has the unsupported type {dtype}")
            self.specs[name] = TensorSpec(dtype, tuple(piece.get_shape()))

    def tensor(self, name: str) -> Tensor:
        """The whole tensor, a view of the mapped file: do not write to it."""
        found: Tensor = self._file.get_tensor(name)
        return found

    def flat(self, name: str) -> Tensor:
        """The tensor's elements in row-major order; a complex number is two."""
        whole = self.tensor(name)
        return (torch.view_as_real(whole) if whole.is_complex() else whole).reshape(-1)
