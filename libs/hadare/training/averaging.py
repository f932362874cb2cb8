"""The arithmetic of consolidation: streams the forks' memory-mapped files and writes one version.

Two passes. The first reads what the forks changed and drops those that are broken; the second averages the rest, chunk
by chunk, so that memory does not grow with the model. The rules are ``hadare.forking.consolidation``'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from hadare.forking.consolidation import OPTIMIZER_PREFIX, Claim, Evidence, Scalar, judge, largest, screen
from hadare.forking.outer import CANDIDATES, DILOCO, FASTEST, Outer, ema_decay
from hadare.training.combining import Combiner, Making
from hadare.training.sources import Source, evidence
from hadare.training.tensorfile import Reader, WeightsError
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
    kept too, in which a version's part halves after so many steps."""

    outer: Outer = field(default_factory=Outer)
    ema_half_life: float | None = None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidation:
    """What became of the forks. With nobody accepted there is no new version: ``sha256`` is empty, the base stays."""

    accepted: tuple[Accepted, ...] = ()
    rejected: dict[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sha256: str = ""
    bytes: int = 0


@torch.no_grad()
def consolidate(base: Path, forks: Sequence[ForkFile], out: Path, options: Options | None = None) -> Consolidation:
    """Makes ``out`` of ``base`` and ``forks``: their mean weighted by steps, tensor by tensor as the rules say.

    The order of ``forks`` changes no bit of the result. Raises ``WeightsError`` if the base is unreadable.
    """
    options = options or Options()
    sound = _sift(base, forks, options)
    if not sound.forks:
        return Consolidation(rejected=sound.rejected)
    making = Making(outer=options.outer, memory=options.outer.momentum, ema_decay=_decay(sound, options))
    return _make(sound, sound.forks, out, making, options)


@torch.no_grad()
def consolidate_candidates(
    base: Path, forks: Sequence[ForkFile], folder: Path, options: Options | None = None
) -> dict[str, tuple[Path, Consolidation]]:
    """The versions that a guard chooses among (``forking.outer.choose``), by the candidate's name, one file each.

    All carry the momentum on, so that the choice of one round does not bind the next. Empty if no fork is sound. The
    fork with most steps alone is left out if it is the only one: it is the average.
    """
    options = options or Options()
    sound = _sift(base, forks, options)
    if not sound.forks:
        return {}
    decay = _decay(sound, options)
    found = {}
    for name, outer in CANDIDATES.items():
        making = Making(outer=outer, memory=DILOCO.momentum, ema_decay=decay)
        out = folder / f"{name}.safetensors"
        found[name] = (out, _make(sound, sound.forks, out, making, options))
    if len(sound.forks) > 1:
        leader = largest({fork.fork: fork.steps for fork in sound.forks})
        making = Making(memory=DILOCO.momentum, ema_decay=decay)
        out = folder / f"{FASTEST}.safetensors"
        alone = [fork for fork in sound.forks if fork.fork == leader]
        found[FASTEST] = (out, _make(sound, alone, out, making, options))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sound:
    """What the first pass left."""

    start: Source
    forks: list[Source]
    seen: Mapping[int, Evidence]
    rejected: dict[int, str]


def _sift(base: Path, forks: Sequence[ForkFile], options: Options) -> _Sound:
    start = _source(base, fork=-1, steps=0)
    # 1. Leave out what counts nothing by its claims alone.
    sources, rejected = _open(start, forks, options)
    # 2. Read what the rest changed, and drop the broken ones.
    seen = {fork: evidence(start, source) for fork, source in sources.items()}
    verdict = judge(seen.values(), max_norm_ratio=options.max_norm_ratio)
    rejected.update(verdict.rejected)
    kept = [sources[fork] for fork in verdict.kept]
    return _Sound(start=start, forks=kept, seen=seen, rejected=dict(sorted(rejected.items())))


def _decay(sound: _Sound, options: Options) -> float | None:
    steps = sum(fork.steps for fork in sound.forks)
    return None if options.ema_half_life is None else ema_decay(steps, options.ema_half_life)


def _make(sound: _Sound, forks: Sequence[Source], out: Path, making: Making, options: Options) -> Consolidation:
    # 3. Average those that are left into the new version.
    combiner = Combiner(sound.start, forks, making)
    written = combiner.write(out, base=options.base_sha256, user=options.user)
    return Consolidation(
        accepted=tuple(_accepted(combiner, sound.seen[fork.fork]) for fork in forks),
        rejected=sound.rejected,
        notes=tuple(combiner.notes),
        sha256=written.sha256,
        bytes=written.bytes,
    )


def _accepted(combiner: Combiner, e: Evidence) -> Accepted:
    agreement = combiner.agreement(e.fork, e.norm)
    return Accepted(fork=e.fork, steps=e.steps, weight=combiner.weights[e.fork], delta_norm=e.norm, agreement=agreement)


def _source(path: Path, *, fork: int, steps: int) -> Source:
    reader = Reader(path)
    return Source(fork=fork, steps=steps, reader=reader, meta=read_meta(reader))


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
            sources[fork] = _source(file.path, fork=fork, steps=file.steps)
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
    return spec_hash(source.reader.specs, source.meta.aliases)


def _odd_optimizers(start: Source, forks: Mapping[int, Source]) -> dict[int, str]:
    """Forks whose optimiser states have another dtype or shape than the base's, or than the largest fork's."""
    if not forks:
        return {}
    leader = forks[largest({f: source.steps for f, source in forks.items()})]
    expected = {**leader.reader.specs, **start.reader.specs}
    odd = {}
    for fork, source in forks.items():
        for name, spec in source.reader.specs.items():
            if name.startswith(OPTIMIZER_PREFIX) and expected.get(name, spec) != spec:
                odd[fork] = f"its optimiser state {name} has another type or shape"
    return odd
