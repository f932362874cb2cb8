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
from hadare.training.combining import Combiner, Source, evidence
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
    """``outer_rate`` scales the mean delta; ``max_steps`` is what a fork can have done at most in the round."""

    outer_rate: float = 1.0
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
    start = _source(base, fork=-1, steps=0)
    # 1. Leave out what counts nothing by its claims alone.
    sources, rejected = _open(start, forks, options)
    # 2. Read what the rest changed, and drop the broken ones.
    seen = {fork: evidence(start, source) for fork, source in sources.items()}
    verdict = judge(seen.values(), max_norm_ratio=options.max_norm_ratio)
    rejected.update(verdict.rejected)
    ordered = dict(sorted(rejected.items()))
    if not verdict.kept:
        return Consolidation(rejected=ordered)
    # 3. Average the others into the new version.
    combiner = Combiner(start, [sources[fork] for fork in verdict.kept], options.outer_rate)
    written = combiner.write(out, base=options.base_sha256, user=options.user)
    return Consolidation(
        accepted=tuple(_accepted(combiner, seen[fork]) for fork in verdict.kept),
        rejected=ordered,
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
