"""Open weights files as the kernel reads them, and its first pass over a fork: how far it went, whether it is sound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hadare.forking.consolidation import COMPLEX, FLOATING, MODEL_PREFIX, Evidence
from hadare.training.tensorfile import Reader, TensorSpec
from hadare.training.weights import FileMeta

# Elements of a chunk: large enough to hide the cost of a call, small enough for the cache.
CHUNK = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A fork's open file (or the base's, with no steps)."""

    fork: int
    steps: int
    reader: Reader
    meta: FileMeta

    def flat(self, name: str) -> Tensor | None:
        """All elements of a tensor, unconverted; ``None`` if the file lacks it."""
        return self.reader.flat(name) if name in self.reader.specs else None


def evidence(start: Source, fork: Source) -> Evidence:
    """First pass over one fork: the norm of its parameters' delta, and whether every number is finite."""
    squares = 0.0
    for name, spec in sorted(fork.reader.specs.items()):
        if spec.dtype not in FLOATING and spec.dtype not in COMPLEX:
            continue
        counts = is_parameter(start, name)
        values = fork.flat(name)
        origin = start.flat(name) if counts else None
        square = _sum_of_squares(values, origin, wide(spec)) if values is not None else 0.0
        if math.isnan(square):
            return Evidence(fork=fork.fork, steps=fork.steps, finite=False, norm=math.inf)
        squares += square if counts else 0.0
    return Evidence(fork=fork.fork, steps=fork.steps, finite=True, norm=math.sqrt(squares))


def _sum_of_squares(values: Tensor, origin: Tensor | None, kind: torch.dtype) -> float:
    """Of ``values − origin``; NaN if an element of it is not finite."""
    scratch = torch.empty(min(CHUNK, len(values)), dtype=kind)
    total = 0.0
    for a, b in spans(len(values), CHUNK):
        part = scratch[: b - a]
        part.copy_(values[a:b])
        if origin is not None:
            part.sub_(origin[a:b])
        square = float(torch.dot(part, part))
        if not math.isfinite(square):
            if not bool(torch.isfinite(part).all()):
                return math.nan
            square = float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2
        total += square
    return total


def is_parameter(start: Source, name: str) -> bool:
    return name.startswith(MODEL_PREFIX) and name not in start.meta.buffers


def wide(spec: TensorSpec) -> torch.dtype:
    """What is computed in: float32, or float64 for what is stored in it."""
    return torch.float64 if spec.dtype == "F64" else torch.float32


def spans(count: int, size: int) -> Iterator[tuple[int, int]]:
    for a in range(0, count, size):
        yield a, min(a + size, count)
