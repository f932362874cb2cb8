"""Open weights files as the kernel reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from hadare.forking.consolidation import MODEL_PREFIX
from hadare.training.tensorfile import Reader, TensorSpec
from hadare.training.weights import FileMeta

# Elements of a chunk: large enough to hide the cost of a call, small enough for a few of them to stay in the cache.
CHUNK = 2**17
# The same where only two are needed.
PLAIN_CHUNK = 2**18


class Flat(Protocol):
    """All elements of a tensor, of which parts can be had."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Moved:
    """A tensor that is known by what it differs from another (``transport``): parts of it are made as they are read."""

    origin: Tensor
    change: Tensor

    def __len__(self) -> int:
        return len(self.change)

    def __getitem__(self, part: slice, /) -> Tensor:
        return torch.add(self.origin[part], self.change[part])


@dataclass(frozen=True, kw_only=True)
class Source:
    """A fork's open file (or the base's, with no steps). ``base``: what its changes are of, if it holds such."""

    fork: int
    steps: int
    reader: Reader
    meta: FileMeta
    base: Reader | None = None

    @cached_property
    def specs(self) -> dict[str, TensorSpec]:
        """Of the tensors as they were before they were rounded for the way."""
        narrow = {*self.meta.deltas, *self.meta.rounded}
        return {n: TensorSpec("F32", s.shape) if n in narrow else s for n, s in self.reader.specs.items()}

    def flat(self, name: str) -> Flat | None:
        """All elements of a tensor, unconverted; ``None`` if the file lacks it."""
        if name not in self.reader.specs:
            return None
        if name in self.meta.deltas:
            assert self.base is not None
            return Moved(self.base.flat(name), self.reader.flat(name))
        return self.reader.flat(name)


def is_parameter(start: Source, name: str) -> bool:
    return name.startswith(MODEL_PREFIX) and name not in start.meta.buffers


def wide(spec: TensorSpec) -> torch.dtype:
    """What is computed in: float32, or float64 for what is stored in it."""
    return torch.float64 if spec.dtype == "F64" else torch.float32


def spans(count: int, size: int) -> Iterator[tuple[int, int]]:
    for a in range(0, count, size):
        yield a, min(a + size, count)
