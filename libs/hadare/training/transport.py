"""Fork results on their way to the tracker in half the bytes: what a fork changed, and its optimiser's state, in bf16.

A change is a difference from the base that both sides hold, so rounding it costs a two-hundredth of the change, not of
the weight. The kernel adds it to the base as it reads (``sources``); nothing is unpacked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from hadare.forking.consolidation import MODEL_PREFIX, OPTIMIZER_PREFIX, Rule, rule_for
from hadare.training.sources import PLAIN_CHUNK, spans
from hadare.training.tensorfile import Reader, TensorSpec, WeightsError, Writer, layout
from hadare.training.weights import FileMeta, meta_document, read_meta

_NARROW = "BF16"


@dataclass(frozen=True, slots=True)
class Packed:
    """The file, and the error that rounding makes: ``‖rounded − change‖ / ‖change‖`` over the parameters."""

    bytes: int
    error: float


@torch.no_grad()
def pack(path: Path, base: Path) -> Packed:
    """Replaces a fork's file by what it changed of ``base``. Raises ``WeightsError`` if they are of different models.

    float32 parameters and floating buffers become differences, float32 optimiser states that are averaged are rounded;
    everything else stays as it is.
    """
    packing = _Packing(Reader(path), Reader(base))
    out = path.with_name(f"{path.name}.packed")
    length = packing.write(out)
    out.replace(path)
    return Packed(bytes=length, error=packing.error)


class _Packing:
    def __init__(self, full: Reader, base: Reader) -> None:
        self._full, self._base = full, base
        self.meta = read_meta(full)
        self._deltas = [
            name for name, spec in full.specs.items() if name.startswith(MODEL_PREFIX) and _rounds(name, spec)
        ]
        self._rounded = [
            name for name, spec in full.specs.items() if name.startswith(OPTIMIZER_PREFIX) and _rounds(name, spec)
        ]
        for name in self._deltas:
            if base.specs.get(name) != full.specs[name]:
                raise WeightsError(f"{name} is not in the base as it is in the result")
        self._lost = self._all = 0.0

    @property
    def error(self) -> float:
        return math.sqrt(self._lost / self._all) if self._all > 0 else 0.0

    def write(self, out: Path) -> int:
        """The error is part of the metadata, which comes first: so the changes are measured before they are written."""
        self._measure()
        narrow = {*self._deltas, *self._rounded}
        specs = {n: TensorSpec(_NARROW, s.shape) if n in narrow else s for n, s in self._full.specs.items()}
        meta = replace(self.meta, deltas=tuple(self._deltas), rounded=tuple(self._rounded), transport_error=self.error)
        with Writer(out, specs, meta_document(meta)) as writer:
            for name in layout(specs):
                for piece in self._pieces(name):
                    writer.append(piece)
        return writer.bytes

    def _pieces(self, name: str) -> Iterator[Tensor]:
        if name in self._deltas:
            for change in self._changes(name):
                yield change.to(torch.bfloat16)
        elif name in self._rounded:
            flat = self._full.flat(name)
            for a, b in spans(len(flat), PLAIN_CHUNK):
                yield flat[a:b].to(torch.bfloat16)
        else:
            yield self._full.tensor(name)

    def _changes(self, name: str) -> Iterator[Tensor]:
        after, before = self._full.flat(name), self._base.flat(name)
        for a, b in spans(len(after), PLAIN_CHUNK):
            yield after[a:b] - before[a:b]

    def _measure(self) -> None:
        for name in self._deltas:
            if name not in self.meta.buffers:
                for change in self._changes(name):
                    self._all += float(torch.dot(change, change))
                    lost = change.to(torch.bfloat16).float().sub_(change)
                    self._lost += float(torch.dot(lost, lost))


def _rounds(name: str, spec: TensorSpec) -> bool:
    return spec.dtype == "F32" and rule_for(name, spec.dtype) is Rule.AVERAGE


def check_packed(meta: FileMeta, reader: Reader, base: Reader) -> None:
    """Raises ``WeightsError`` if a file that says that it holds changes does not hold changes of this base."""
    for name in (*meta.deltas, *meta.rounded):
        if name not in reader.specs or reader.specs[name].dtype != _NARROW:
            raise WeightsError(f"{name} is said to be rounded, and is not")
    for name in meta.deltas:
        if not name.startswith(MODEL_PREFIX) or base.specs.get(name) != TensorSpec("F32", reader.specs[name].shape):
            raise WeightsError(f"{name} is said to be a change of the base, which has no such tensor")
