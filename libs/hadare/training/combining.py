"""Combines the forks' tensors, chunk by chunk: the norm of what a fork changed, and the mean that becomes a version.

The mean is taken around the fork with most steps, ``x_L + Σ w_f (x_f − x_L)``: exact where forks agree (frozen tensors,
a single fork), and everything is rounded once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor

from hadare.forking.consolidation import (
    COMPLEX,
    FLOATING,
    MODEL_PREFIX,
    OPTIMIZER_PREFIX,
    Evidence,
    Rule,
    Scalar,
    combine_scalars,
    largest,
    rule_for,
    weights,
)
from hadare.training.tensorfile import DTYPES, Reader, TensorSpec, Writer, Written, layout
from hadare.training.weights import FileMeta, meta_document

# Elements of a chunk: large enough to hide the cost of a call, small enough for the cache.
_CHUNK = 2**20
# Elements that the scratch of all forks together may hold.
_SCRATCH = 16 * 2**20


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
        counts = _is_parameter(start, name)
        values = fork.flat(name)
        origin = start.flat(name) if counts else None
        square = _sum_of_squares(values, origin, _wide(spec)) if values is not None else 0.0
        if math.isnan(square):
            return Evidence(fork=fork.fork, steps=fork.steps, finite=False, norm=math.inf)
        squares += square if counts else 0.0
    return Evidence(fork=fork.fork, steps=fork.steps, finite=True, norm=math.sqrt(squares))


def _sum_of_squares(values: Tensor, origin: Tensor | None, wide: torch.dtype) -> float:
    """Of ``values − origin``; NaN if an element of it is not finite."""
    scratch = torch.empty(min(_CHUNK, len(values)), dtype=wide)
    total = 0.0
    for a, b in _spans(len(values), _CHUNK):
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


def _is_parameter(start: Source, name: str) -> bool:
    return name.startswith(MODEL_PREFIX) and name not in start.meta.buffers


def _wide(spec: TensorSpec) -> torch.dtype:
    """What is computed in: float32, or float64 for what is stored in it."""
    return torch.float64 if spec.dtype == "F64" else torch.float32


def _spans(count: int, size: int) -> Iterator[tuple[int, int]]:
    for a in range(0, count, size):
        yield a, min(a + size, count)


class Combiner:
    """Second pass: writes the version that ``forks`` (all of them sound, in order of id) make of ``start``."""

    def __init__(self, start: Source, forks: Sequence[Source], outer_rate: float) -> None:
        self._start = start
        self._forks = forks
        self._rate = outer_rate
        self._steps = {f.fork: f.steps for f in forks}
        self._leader = next(f for f in forks if f.fork == largest(self._steps))
        self._chunk = max(2**12, min(_CHUNK, _SCRATCH // len(forks)))
        self._scratch: dict[torch.dtype, Tensor] = {}
        self._products = dict.fromkeys(self._steps, 0.0)
        self._square = 0.0
        self.weights = weights(self._steps)
        self.notes: list[str] = []

    def agreement(self, fork: int, norm: float) -> float:
        """Cosine of the fork's delta (of length ``norm``) with the mean delta; 0 if one of them is zero."""
        length = norm * math.sqrt(self._square)
        return max(-1.0, min(1.0, self._products[fork] / length)) if length > 0 else 0.0

    def write(self, out: Path, *, base: str, user: Mapping[str, Scalar]) -> Written:
        """Streams the version into ``out`` and says what it hashes to."""
        specs = {n: s for n, s in self._start.reader.specs.items() if n.startswith(MODEL_PREFIX)}
        for fork in self._forks:
            specs.update({n: s for n, s in fork.reader.specs.items() if n.startswith(OPTIMIZER_PREFIX)})
        writer = Writer(out, specs, meta_document(self._meta(base, user)))
        with writer:
            for name in layout(specs):
                for piece in self._combined(name, specs[name]):
                    writer.append(piece)
        return writer.written

    def _meta(self, base: str, user: Mapping[str, Scalar]) -> FileMeta:
        scales = [f.meta.scaler for f in self._forks if f.meta.scaler > 0]
        return FileMeta(
            spec=self._leader.meta.spec,
            aliases=self._start.meta.aliases,
            buffers=self._start.meta.buffers,
            wide_complex=self._leader.meta.wide_complex,
            scalars=combine_scalars({f.fork: f.meta.scalars for f in self._forks}, self._steps),
            scaler=min(scales, default=0.0),
            base=base,
            user=dict(user),
        )

    def _combined(self, name: str, spec: TensorSpec) -> Iterator[Tensor]:
        match rule_for(name, spec.dtype):
            case Rule.AVERAGE:
                yield from self._averaged(name, spec)
            case Rule.MAXIMUM:
                yield reduce(torch.maximum, [flat for f in self._forks if (flat := f.flat(name)) is not None])
            case Rule.SUM_OF_INCREMENTS:
                origin = self._start.reader.flat(name)
                yield origin + sum((f.reader.flat(name) - origin for f in self._forks), torch.zeros_like(origin))
            case Rule.SAME_OR_LARGEST:
                yield self._followed(name)

    def _followed(self, name: str) -> Tensor:
        flats = {f.fork: flat for f in self._forks if (flat := f.flat(name)) is not None}
        followed = flats[largest({fork: self._steps[fork] for fork in flats})]
        if any(not torch.equal(flat, followed) for flat in flats.values()):
            self.notes.append(f"{name} differs between the forks; the largest fork's was kept")
        return followed

    def _averaged(self, name: str, spec: TensorSpec) -> Iterator[Tensor]:
        parameter = _is_parameter(self._start, name)
        flats = {f.fork: f.flat(name) for f in self._forks}
        origin = self._start.flat(name) if parameter else None
        count = max(len(flat) for flat in flats.values() if flat is not None)
        dtype = DTYPES[spec.dtype].to_real()
        for a, b in _spans(count, self._chunk):
            mean = self._mean(flats, origin, (a, b), _wide(spec))
            yield mean if mean.dtype == dtype else mean.to(dtype)

    def _mean(
        self, flats: Mapping[int, Tensor | None], origin: Tensor | None, span: tuple[int, int], wide: torch.dtype
    ) -> Tensor:
        """One chunk of the mean; for parameters (``origin`` given) also what the agreement is made of.

        A state that a fork's optimiser has not created is zero, as it would be had it been created and never used.
        """
        a, b = span
        rows = self._rows(wide)[:, : b - a]
        middle, mean, delta = rows[-3], rows[-2], rows[-1]
        _fill(middle, flats[self._leader.fork], a, b)
        mean.zero_()
        apart = {fork: row for fork, row in zip(flats, rows, strict=False) if fork != self._leader.fork}
        for fork, row in apart.items():
            _fill(row, flats[fork], a, b)
            mean.add_(row.sub_(middle), alpha=self.weights[fork])
        if origin is None:
            return mean.add_(middle)
        middle_delta = torch.sub(middle, origin[a:b], out=delta)
        mean_delta = mean + middle_delta
        self._compare(apart, middle_delta, mean_delta)
        if self._rate == 1.0:
            return mean.add_(middle)
        return mean_delta.mul_(self._rate).add_(origin[a:b])

    def _compare(self, apart: Mapping[int, Tensor], middle_delta: Tensor, mean_delta: Tensor) -> None:
        common = float(torch.dot(middle_delta, mean_delta))
        for fork in self._products:
            own = float(torch.dot(apart[fork], mean_delta)) if fork in apart else 0.0
            self._products[fork] += common + own
        self._square += float(torch.dot(mean_delta, mean_delta))

    def _rows(self, wide: torch.dtype) -> Tensor:
        if wide not in self._scratch:
            self._scratch[wide] = torch.empty((len(self._forks) + 3, self._chunk), dtype=wide)
        return self._scratch[wide]


def _fill(row: Tensor, flat: Tensor | None, a: int, b: int) -> None:
    if flat is None:
        row.zero_()
    else:
        row.copy_(flat[a:b])
