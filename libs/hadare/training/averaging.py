"""The arithmetic of consolidation: streams the forks' memory-mapped files and writes one version.

One pass, chunk by chunk, so that memory does not grow with the model: it averages the forks and sees what they changed.
If one of them turns out to be broken, the pass is done again without it. The rules are those of
``hadare.forking.consolidation``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from hadare.forking.consolidation import OPTIMIZER_PREFIX, Claim, Evidence, Scalar, judge, largest, screen
from hadare.forking.outer import AVERAGE, CANDIDATES, DILOCO, FASTEST, Outer, ema_decay
from hadare.model.jobs import HalfLife
from hadare.training.combining import Combiner, Making
from hadare.training.evidence import Unsound
from hadare.training.sources import Source
from hadare.training.tensorfile import Reader, WeightsError
from hadare.training.transport import check_packed
from hadare.training.weights import read_meta, spec_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkFile:
    """A fork's result as it lies on disk, complete and with its hash checked."""

    fork: int
    path: Path
    steps: int
    attempt: int = 0
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``max_steps`` is what a fork can have done at most in the round. ``ema_half_life``: an average of the versions is
    kept too, in which a version's part halves after so many steps, or each ``"round"``."""

    outer: Outer = field(default_factory=Outer)
    ema_half_life: HalfLife = None
    max_norm_ratio: float = 5.0
    max_steps: int | None = None
    base_sha256: str = ""
    user: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A fork that went into the version. ``agreement`` is the cosine of its delta with the mean delta."""

    fork: int
    steps: int
    weight: float
    delta_norm: float
    agreement: float
    transport_error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidation:
    """What became of the forks. With nobody accepted there is no new version: the base stays, ``bytes`` is 0."""

    accepted: tuple[Accepted, ...] = ()
    rejected: dict[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    bytes: int = 0


@torch.no_grad()
def consolidate(base: Path, forks: Sequence[ForkFile], out: Path, options: Options | None = None) -> Consolidation:
    """Makes ``out`` of ``base`` and ``forks``: their mean weighted by steps, tensor by tensor as the rules say.

    The order of ``forks`` changes no bit of the result. Raises ``WeightsError`` if the base is unreadable.
    """
    options = options or Options()
    return _Round(base, forks, options).average(out, Making(outer=options.outer, memory=options.outer.momentum))


@torch.no_grad()
def consolidate_candidates(
    base: Path, forks: Sequence[ForkFile], folder: Path, options: Options | None = None
) -> dict[str, tuple[Path, Consolidation]]:
    """The versions that a guard chooses among (``forking.outer.choose``), by the candidate's name, one file each.

    All carry the momentum on, so that the choice of one round does not bind the next. If no fork is sound there is the
    average alone, with nobody accepted. The fork with most steps is left out if it is the only one: it is the average;
    so is a candidate whose step leads to infinity.
    """
    work = _Round(base, forks, options or Options())
    memory = DILOCO.momentum
    average = folder / f"{AVERAGE}.safetensors"
    found = {AVERAGE: (average, work.average(average, Making(memory=memory)))}
    if not work.sound:
        return found
    makings = {name: (work.sound, Making(outer=outer, memory=memory)) for name, outer in CANDIDATES.items()}
    del makings[AVERAGE]
    if len(work.sound) > 1:
        leader = largest({fork.fork: fork.steps for fork in work.sound})
        makings[FASTEST] = ([fork for fork in work.sound if fork.fork == leader], Making(memory=memory))
    for name, (sources, making) in makings.items():
        out = folder / f"{name}.safetensors"
        try:
            found[name] = (out, work.make(sources, out, making))
        except Unsound:  # the average of the same forks stands
            out.unlink(missing_ok=True)
    return found


class _Round:
    """The forks of one base: those that are still taken to be ``sound``, and why the others are not."""

    def __init__(self, base: Path, forks: Sequence[ForkFile], options: Options) -> None:
        self._options = options
        self._start = _source(base, fork=-1, steps=0)
        # What counts nothing by its claims alone is left out before a tensor is read.
        sources, self._rejected = _open(self._start, forks, options)
        self.sound = [sources[fork] for fork in sorted(sources)]

    def average(self, out: Path, making: Making) -> Consolidation:
        """The version of all sound forks, after dropping those that prove to be broken. Nobody left: no version."""
        while self.sound:
            try:
                made = self.make(self.sound, out, making)
            except Unsound as error:
                self._reject(dict.fromkeys(error.forks, "not finite"))
                continue
            seen = [Evidence(fork=a.fork, steps=a.steps, finite=True, norm=a.delta_norm) for a in made.accepted]
            verdict = judge(seen, max_norm_ratio=self._options.max_norm_ratio)
            if not verdict.rejected:
                return made
            out.unlink()
            self._reject(verdict.rejected)
        return Consolidation(rejected=self._reasons())

    def make(self, forks: Sequence[Source], out: Path, making: Making) -> Consolidation:
        """The version of exactly these forks."""
        outer = making.outer.of_round([fork.steps for fork in forks])
        combiner = Combiner(self._start, forks, replace(making, outer=outer, ema_decay=self._decay()))
        length = combiner.write(out, base=self._options.base_sha256, user=self._options.user)
        return Consolidation(
            accepted=tuple(_accepted(combiner, fork) for fork in forks),
            rejected=self._reasons(),
            notes=tuple(combiner.notes),
            bytes=length,
        )

    def _decay(self) -> float | None:
        half_life = self._options.ema_half_life
        return None if half_life is None else ema_decay(sum(fork.steps for fork in self.sound), half_life)

    def _reject(self, reasons: Mapping[int, str]) -> None:
        self._rejected.update(reasons)
        self.sound = [fork for fork in self.sound if fork.fork not in reasons]

    def _reasons(self) -> dict[int, str]:
        return dict(sorted(self._rejected.items()))


def _accepted(combiner: Combiner, source: Source) -> Accepted:
    fork = source.fork
    seen = combiner.ledger.evidence(fork)
    return Accepted(
        fork=fork,
        steps=seen.steps,
        weight=combiner.weights[fork],
        delta_norm=seen.norm,
        agreement=combiner.ledger.agreement(fork),
        transport_error=source.meta.transport_error,
    )


def _source(path: Path, *, fork: int, steps: int, base: Reader | None = None) -> Source:
    reader = Reader(path)
    meta = read_meta(reader)
    if base is not None:
        check_packed(meta, reader, base)
    return Source(fork=fork, steps=steps, reader=reader, meta=meta, base=base)


def _open(start: Source, forks: Sequence[ForkFile], options: Options) -> tuple[dict[int, Source], dict[int, str]]:
    chosen: dict[int, ForkFile] = {}
    for file in sorted(forks, key=lambda f: (f.fork, f.attempt, f.sha256, str(f.path))):
        chosen.setdefault(file.fork, file)
    sources: dict[int, Source] = {}
    rejected: dict[int, str] = {}
    claims = []
    for fork, file in chosen.items():
        if file.steps <= 0:  # its file is not even read
            claims.append(Claim(fork=fork, steps=file.steps, spec=""))
            continue
        try:
            sources[fork] = _source(file.path, fork=fork, steps=file.steps, base=start.reader)
        except WeightsError as error:
            rejected[fork] = f"unreadable: {error}"
            continue
        claims.append(Claim(fork=fork, steps=file.steps, spec=_spec(sources[fork]), base=sources[fork].meta.base))
    verdict = screen(claims, spec=_spec(start), base=options.base_sha256, max_steps=options.max_steps)
    rejected.update(verdict.rejected)
    rejected.update(_odd_optimizers(start, {fork: sources[fork] for fork in verdict.kept}))
    return {fork: sources[fork] for fork in verdict.kept if fork not in rejected}, rejected


def _spec(source: Source) -> str:
    """Computed from the file's header: what a file says of itself proves nothing."""
    return spec_hash(source.specs, source.meta.aliases)


def _odd_optimizers(start: Source, forks: Mapping[int, Source]) -> dict[int, str]:
    """Forks whose optimiser states have another dtype or shape than the base's, or than a larger fork's, or hold a
    number that is not finite."""
    expected = dict(start.specs)
    odd = {}
    for fork in sorted(forks, key=lambda f: (-forks[f].steps, f)):
        states = {n: spec for n, spec in forks[fork].specs.items() if n.startswith(OPTIMIZER_PREFIX)}
        numbers = forks[fork].meta.scalars.items()
        broken = [name for name, value in numbers if isinstance(value, float) and not math.isfinite(value)]
        if other := [name for name, spec in states.items() if expected.get(name, spec) != spec]:
            odd[fork] = f"its optimiser state {other[0]} has another type or shape"
        elif broken:
            odd[fork] = f"its optimiser state {broken[0]} is not finite"
        else:
            expected.update(states)
    return odd
