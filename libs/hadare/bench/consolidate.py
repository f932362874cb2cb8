"""How fast forks become one model: the kernel on memory-mapped files, against reading the same files once.

One thread, warm page cache. Everything is measured in one run, in turns, and the best turn counts: neighbours on
the machine slow all of it alike.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hadare.training.combining import Combiner
from hadare.training.sources import Source
from hadare.training.tensorfile import Reader, TensorSpec, Writer, layout
from hadare.training.weights import FileMeta, meta_document, read_meta, spec_hash

STEPS = (1000, 600, 400, 300, 100)
_TENSOR = 4 * 2**20
_MB = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Seconds of the best turn. ``average_s``: the mean alone; ``checked_s``: all of a consolidation (mean in delta
    form, norms, finite checks, agreement), into nothing. ``read_only_s``: ``torch.sum`` over the forks' files.
    ``anonymous_mb``: what the kernel added to the process's anonymous memory, at its peak.
    """

    params: int
    forks: int
    average_s: float
    checked_s: float
    read_only_s: float
    memcpy_gb_s: float
    anonymous_mb: float


def measure(folder: Path, params: int, forks: int = 5, turns: int = 3) -> Found:
    """Writes the files of so many float32 parameters into ``folder`` and measures on them. Leaves them there."""
    torch.set_num_threads(1)
    steps = [STEPS[i % len(STEPS)] for i in range(forks)]
    memcpy = _copy_gb_s()
    start, *sources = _files(folder, params, steps)
    idle = anonymous_mb()
    peak = _Peak(idle)
    kinds: dict[str, Callable[[], None]] = {
        "read": lambda: _read(sources),
        "average": lambda: _average(start, sources, peak),
        "checked": lambda: _checked(start, sources, peak),
    }
    best = dict.fromkeys(kinds, float("inf"))
    with torch.no_grad():
        _read([start, *sources])  # the cache is warm from here on
        for _ in range(turns):
            for kind, act in kinds.items():
                best[kind] = min(best[kind], _seconds(act))
    return Found(
        params=params,
        forks=forks,
        average_s=best["average"],
        checked_s=best["checked"],
        read_only_s=best["read"],
        memcpy_gb_s=memcpy,
        anonymous_mb=max(0.0, peak.mb - idle),
    )


def anonymous_mb() -> float:
    """The process's memory that no file stands behind. Mapped files count nothing: they are the page cache's."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / _MB


class _Peak:
    def __init__(self, mb: float) -> None:
        self.mb = mb

    def look(self) -> None:
        self.mb = max(self.mb, anonymous_mb())


def _files(folder: Path, params: int, steps: Sequence[int]) -> list[Source]:
    """A base and forks of it, in tensors of 16 MB."""
    counts = [min(_TENSOR, params - a) for a in range(0, params, _TENSOR)]
    specs = {f"model.layer{i:05}": TensorSpec("F32", (count,)) for i, count in enumerate(counts)}
    document = meta_document(FileMeta(spec=spec_hash(specs, {})))
    found = []
    noise = torch.randn(_TENSOR, generator=torch.Generator().manual_seed(0))
    for number, done in enumerate([0, *steps]):
        path = folder / f"{number}.safetensors"
        with Writer(path, specs, document) as writer:
            for i, name in enumerate(layout(specs)):
                shifted = noise.roll(1009 * i) + noise.roll(7919 * (i + 7 * number)) * 1e-3 * done**0.5
                writer.append(shifted[: specs[name].shape[0]])
        reader = Reader(path)
        found.append(Source(fork=number - 1, steps=done, reader=reader, meta=read_meta(reader)))
    return found


def _read(sources: Sequence[Source]) -> None:
    for source in sources:
        for name in source.reader.specs:
            torch.sum(source.reader.flat(name))


def _average(start: Source, sources: Sequence[Source], peak: _Peak) -> None:
    combiner = Combiner(start, sources)
    _exhaust(start, combiner.plain_mean, peak)


def _checked(start: Source, sources: Sequence[Source], peak: _Peak) -> None:
    _exhaust(start, Combiner(start, sources).combined, peak)


def _exhaust(start: Source, combine: Callable[[str, TensorSpec], Iterator[torch.Tensor]], peak: _Peak) -> None:
    for number, (name, spec) in enumerate(start.reader.specs.items()):
        for _ in combine(name, spec):
            pass
        if number % 8 == 0:
            peak.look()


_COPIED = 256 * 2**20


def _copy_gb_s() -> float:
    """Bytes read and bytes written, by one copy of what no cache holds."""
    source, target = torch.zeros(_COPIED // 4), torch.zeros(_COPIED // 4)
    best = min(_seconds(lambda: target.copy_(source)) for _ in range(3))
    return 2 * _COPIED / best / 1e9


def _seconds(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def free_mb(folder: Path) -> float:
    """How much may still be written there."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize / _MB
