"""Open weights files as the kernel reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hadare.forking.consolidation import MODEL_PREFIX
from hadare.training.tensorfile import Reader, TensorSpec
from hadare.training.weights import FileMeta

# Elements of a chunk: large enough to hide the cost of a call, small enough for a few of them to stay in the cache.
CHUNK = 2**17
# The same where only two are needed.
PLAIN_CHUNK = 2**18


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


def is_parameter(start: Source, name: str) -> bool:
    return name.startswith(MODEL_PREFIX) and name not in start.meta.buffers


def wide(spec: TensorSpec) -> torch.dtype:
    """What is computed in: float32, or float64 for what is stored in it."""
    return torch.float64 if spec.dtype == "F64" else torch.float32


def spans(count: int, size: int) -> Iterator[tuple[int, int]]:
    for a in range(0, count, size):
        yield a, min(a + size, count)
