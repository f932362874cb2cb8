"""Combines the forks' tensors, chunk by chunk: the mean that becomes a version, and what is kept beside it.

The mean is taken around the fork with most steps, ``x_L + Σ w_f (x_f − x_L)``: exact where forks agree (frozen tensors,
a single fork), and everything is rounded once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hadare.forking.consolidation import (
    COMPLEX,
    FLOATING,
    MODEL_PREFIX,
    OPTIMIZER_PREFIX,
    Rule,
    Scalar,
    combine_scalars,
    largest,
    rule_for,
    weights,
)
from hadare.forking.outer import Outer
from hadare.training.artifacts import Artifacts
from hadare.training.evidence import Ledger, Unsound, check_sound, squares_in_double
from hadare.training.sources import CHUNK, PLAIN_CHUNK, Flat, Source, is_parameter, spans, wide
from hadare.training.tensorfile import DTYPES, TensorSpec, Writer, layout
from hadare.training.weights import EMA_PREFIX, MOMENTUM_PREFIX, FileMeta, meta_document

# Elements that the scratch of all forks together may hold.
_SCRATCH = 2**23


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """How a version is made of the mean: the outer step, and what is kept beside the model.

    ``memory`` is the share of the momentum that stays from one version to the next; 0 keeps none. ``ema_decay`` is
    what stays of the average of versions; ``None`` keeps none. Without ``compare`` nobody asks for the agreement.
    """

    outer: Outer = field(default_factory=Outer)
    memory: float = 0.0
    ema_decay: float | None = None
    compare: bool = True


class _Chunk(NamedTuple):
    """How far the mean is from the leader, the leader, and rows of how far each other fork is from it, in order of id;
    two more rows are free."""

    offset: Tensor
    middle: Tensor
    rows: Tensor


class Combiner:
    """Writes the version that ``forks`` (in order of id) make of ``start``, and looks at them on the way."""

    def __init__(self, start: Source, forks: Sequence[Source], how: Making | None = None) -> None:
        self._start = start
        self._forks = forks
        self._how = how or Making()
        self._comparing = self._how.compare
        self._steps = {f.fork: f.steps for f in forks}
        self._leader = next(f for f in forks if f.fork == largest(self._steps))
        self._chunk = max(2**12, min(CHUNK, _SCRATCH // len(forks)))
        self._scratch: dict[torch.dtype, Tensor] = {}
        self.ledger = Ledger(self._steps, self._leader.fork)
        self.weights = weights(self._steps)
        self._shares = [w for fork, w in self.weights.items() if fork != self._leader.fork]
        self.notes: list[str] = []
        self._artifacts = Artifacts(start, forks)

    def write(self, out: Path, *, base: str, user: Mapping[str, Scalar]) -> int:
        """Streams the version into ``out`` and says how many bytes.

        Raises ``Unsound`` and writes nothing if a fork holds a value that is not finite.
        """
        specs = self._specs()
        writer = Writer(out, specs, meta_document(self._meta(base, user)))
        with writer:
            for name in layout(specs):
                for piece in self.combined(name, specs[name]):
                    writer.append(piece)
        return writer.bytes

    def combined(self, name: str, spec: TensorSpec) -> Iterator[Tensor]:
        """A tensor of the version, in pieces that are valid until the next is asked for."""
        if name in self._artifacts.specs:
            yield self._artifacts.content(name)
            return
        if name.startswith(MOMENTUM_PREFIX):
            yield from self._momentum(MODEL_PREFIX + name.removeprefix(MOMENTUM_PREFIX), name, spec)
            return
        if name.startswith(EMA_PREFIX):
            yield from self._ema(MODEL_PREFIX + name.removeprefix(EMA_PREFIX), name, spec)
            return
        match rule_for(name, spec.dtype):
            case Rule.AVERAGE if name.startswith(OPTIMIZER_PREFIX):
                yield from self.plain_mean(name, spec)
            case Rule.AVERAGE:
                yield from self._averaged(name, spec)
            case Rule.MAXIMUM:
                flats = {f.fork: f.reader.flat(name) for f in self._forks if name in f.reader.specs}
                check_sound(flats)
                yield reduce(torch.maximum, flats.values())
            case Rule.SUM_OF_INCREMENTS:
                yield self._counted(name)
            case Rule.SAME_OR_LARGEST:
                yield self._followed(name)

    def plain_mean(self, name: str, spec: TensorSpec) -> Iterator[Tensor]:
        """``Σ w_f x_f``: one reading of each fork. Exact to a rounding, which is enough for an optimiser's states."""
        flats = {f.fork: f.flat(name) for f in self._forks}
        count = max(len(flat) for flat in flats.values() if flat is not None)
        kind, dtype = wide(spec), DTYPES[spec.dtype].to_real()
        mean, part = torch.empty((2, min(count, PLAIN_CHUNK)), dtype=kind)
        for a, b in spans(count, PLAIN_CHUNK):
            total = mean[: b - a].zero_()
            for fork, flat in flats.items():
                if flat is not None:
                    total.add_(_part(flat, a, b, part[: b - a]), alpha=self.weights[fork])
            _check(total, flats, a, b)
            yield total if kind == dtype else total.to(dtype)

    def _specs(self) -> dict[str, TensorSpec]:
        model = {n: s for n, s in self._start.reader.specs.items() if n.startswith(MODEL_PREFIX)}
        specs = dict(model)
        for fork in self._forks:
            specs.update({n: s for n, s in fork.specs.items() if n.startswith(OPTIMIZER_PREFIX)})
        specs.update(self._artifacts.specs)
        smooth = {n: _kept(s) for n, s in model.items() if s.dtype in FLOATING or s.dtype in COMPLEX}
        for name, spec in smooth.items():
            plain = name.removeprefix(MODEL_PREFIX)
            if self._how.memory and is_parameter(self._start, name):
                specs[MOMENTUM_PREFIX + plain] = spec
            if self._how.ema_decay is not None:
                specs[EMA_PREFIX + plain] = spec
        return specs

    def _meta(self, base: str, user: Mapping[str, Scalar]) -> FileMeta:
        scales = [f.meta.scaler for f in self._forks if f.meta.scaler > 0]
        return FileMeta(
            spec=self._leader.meta.spec,
            aliases=self._start.meta.aliases,
            buffers=self._start.meta.buffers,
            wide_complex=self._wide_complex(),
            scalars=combine_scalars({f.fork: f.meta.scalars for f in self._forks}, self._steps),
            scaler=min(scales, default=0.0),
            base=base,
            user=dict(user),
        )

    def _wide_complex(self) -> tuple[str, ...]:
        """The model's as the base says; states of the optimiser may be in any of the forks."""
        ours = {name for name in self._start.meta.wide_complex if name.startswith(MODEL_PREFIX)}
        states = {n for f in self._forks for n in f.meta.wide_complex if n.startswith(OPTIMIZER_PREFIX)}
        return tuple(sorted(ours | states))

    def _counted(self, name: str) -> Tensor:
        """What is not there yet has counted nothing."""
        flats = [f.reader.flat(name) for f in self._forks if name in f.reader.specs]
        known = name in self._start.reader.specs
        origin = self._start.reader.flat(name) if known else torch.zeros_like(flats[0])
        return origin + sum((flat - origin for flat in flats), torch.zeros_like(origin))

    def _followed(self, name: str) -> Tensor:
        flats = {f.fork: f.reader.flat(name) for f in self._forks if name in f.reader.specs}
        followed = flats[largest({fork: self._steps[fork] for fork in flats})]
        if any(not torch.equal(flat, followed) for flat in flats.values()):
            self.notes.append(f"{name} differs between the forks; the largest fork's was kept")
        return followed

    def _averaged(self, name: str, spec: TensorSpec) -> Iterator[Tensor]:
        dtype = DTYPES[spec.dtype].to_real()
        for _, values, _ in self._made(name, spec, compare=self._comparing):
            yield values if values.dtype == dtype else values.to(dtype)

    def _momentum(self, model: str, name: str, spec: TensorSpec) -> Iterator[Tensor]:
        for (a, b), _, delta in self._made(model, self._start.reader.specs[model], want_delta=True):
            assert delta is not None
            yield self._moved(name, delta, a, b).to(DTYPES[spec.dtype].to_real())

    def _ema(self, model: str, name: str, spec: TensorSpec) -> Iterator[Tensor]:
        """It begins at the first version: an untrained model has no place in it."""
        decay = self._how.ema_decay or 0.0
        old = self._start.flat(name)
        for (a, b), values, _ in self._made(model, self._start.reader.specs[model]):
            smooth = values if old is None else values + decay * (old[a:b].to(values.dtype) - values)
            yield smooth.to(DTYPES[spec.dtype].to_real())

    def _made(
        self, name: str, spec: TensorSpec, *, compare: bool = False, want_delta: bool = False
    ) -> Iterator[tuple[tuple[int, int], Tensor, Tensor | None]]:
        """Chunk by chunk: where it lies, the version's values, and for parameters, if it is wanted or needed, the mean
        delta from the base."""
        parameter = is_parameter(self._start, name)
        flats = {f.fork: f.flat(name) for f in self._forks}
        origin = self._start.reader.flat(name) if parameter else None
        count = max(len(flat) for flat in flats.values() if flat is not None)
        plain = self._how.outer.is_average
        momentum = MOMENTUM_PREFIX + name.removeprefix(MODEL_PREFIX)
        for a, b in spans(count, self._chunk):
            chunk = self._chunk_of(flats, (a, b), wide(spec))
            delta, small = None, True
            if origin is not None and compare:
                small = self._note(flats, chunk, origin[a:b], (a, b))
            if origin is not None and (want_delta or not plain):
                delta = self._delta(chunk, origin[a:b])
            if delta is None or plain:
                values = chunk.offset.add_(chunk.middle)
            else:
                assert origin is not None
                values = self._stepped(delta, momentum, a, b).add_(origin[a:b])
            if origin is None or not compare:
                small = _check(values, flats, a, b)
            if not small:
                self._mend(values, delta, flats, (a, b))
            yield (a, b), values, delta

    def _mend(
        self, values: Tensor, delta: Tensor | None, flats: Mapping[int, Flat | None], span: tuple[int, int]
    ) -> None:
        """Finite numbers so large that their differences are not. Raises ``Unsound`` naming the fork with the largest,
        if an outer step or a momentum needs these differences."""
        parts = {fork: flat[slice(*span)].double() for fork, flat in flats.items() if flat is not None}
        if delta is None or self._how.outer.is_average:
            mean = sum(self.weights[fork] * part for fork, part in parts.items())
            values.copy_(torch.as_tensor(mean))
        if not all(bool(torch.isfinite(made).all()) for made in (values, delta) if made is not None):
            raise Unsound([max(parts, key=lambda fork: float(parts[fork].abs().max()))])

    def _delta(self, chunk: _Chunk, origin: Tensor) -> Tensor:
        """The mean delta, in the last row."""
        leader = torch.sub(chunk.middle, origin, out=chunk.rows[-2])
        return torch.add(chunk.offset, leader, out=chunk.rows[-1])

    def _note(self, flats: Mapping[int, Flat | None], chunk: _Chunk, origin: Tensor, span: tuple[int, int]) -> bool:
        """What the chunk says of the forks; false if its numbers are huge. Raises ``Unsound``."""
        torch.sub(chunk.middle, origin, out=chunk.rows[-2])
        if self.ledger.add(chunk.rows[:-1], chunk.offset, self._shares):
            return True
        parts = {fork: None if flat is None else flat[slice(*span)] for fork, flat in flats.items()}
        check_sound(parts)
        self.ledger.add_squares(squares_in_double(parts, origin))
        return False

    def _chunk_of(self, flats: Mapping[int, Flat | None], span: tuple[int, int], kind: torch.dtype) -> _Chunk:
        """A state that a fork's optimiser has not created is zero, as if it had been created and never used."""
        a, b = span
        scratch = self._rows(kind)[:, : b - a]
        offset, rows = scratch[1], scratch[2:]
        middle = _part(flats[self._leader.fork], a, b, scratch[0])
        others = [fork for fork in flats if fork != self._leader.fork]
        for fork, row in zip(others, rows, strict=False):
            torch.sub(_part(flats[fork], a, b, row), middle, out=row)
        if others:
            torch.mv(rows[:-2].t(), torch.tensor(self._shares, dtype=kind), out=offset)
        else:
            offset.zero_()
        return _Chunk(offset, middle, rows)

    def _moved(self, name: str, delta: Tensor, a: int, b: int) -> Tensor:
        """The momentum after this round."""
        old = self._start.flat(name)
        return delta if old is None else torch.add(delta, old[a:b].to(delta.dtype), alpha=self._how.memory)

    def _stepped(self, delta: Tensor, momentum: str, a: int, b: int) -> Tensor:
        outer = self._how.outer
        if not outer.momentum:
            return delta * outer.rate
        return torch.add(delta, self._moved(momentum, delta, a, b), alpha=outer.momentum).mul_(outer.rate)

    def _rows(self, kind: torch.dtype) -> Tensor:
        if kind not in self._scratch:
            self._scratch[kind] = torch.empty((len(self._forks) + 3, self._chunk), dtype=kind)
        return self._scratch[kind]


def _kept(spec: TensorSpec) -> TensorSpec:
    """How momentum and average of a tensor are stored: never in half precision."""
    return TensorSpec("F32", spec.shape) if spec.dtype in ("F16", "BF16") else spec


def _part(flat: Flat | None, a: int, b: int, row: Tensor) -> Tensor:
    """Elements a to b, in the row if they have to be converted, else as they lie in the file."""
    if flat is None:
        return row.zero_()
    part = flat[a:b]
    return part if part.dtype == row.dtype else row.copy_(part)


def _check(mean: Tensor, flats: Mapping[int, Flat | None], a: int, b: int) -> bool:
    """A mean is finite if what it is of is; its sum says so for less than looking at each number. False if the sum is
    not, though all numbers are. Raises ``Unsound``."""
    if math.isfinite(float(mean.sum())):
        return True
    check_sound({fork: None if flat is None else flat[a:b] for fork, flat in flats.items()})
    return False
