"""The tracker's adapter for a job with a guard: every candidate is stored, and says which forks are in it."""

from __future__ import annotations

from pathlib import Path

import torch

from builders_training import a_file
from hadare.machines.tracker_events import Consolidate, Consolidated, Contribution
from hadare.model.jobs import ConsolidationSpec, GuardSpec
from hadare.runtime.memory import MemoryHub
from hadare.runtime.memory_stores import MemoryObjects
from hadare.training.tensorfile import Reader
from hadare_jobtracker.averager import WeightsAverager

GUARDED = ConsolidationSpec(guard=GuardSpec(metric="loss", better="lower"))


class Bench:
    """An averager, a base of zeros, and forks of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = MemoryObjects(MemoryHub(), "weights")
        self.averager = WeightsAverager(self.objects, folder / "work")

    async def made(self, *forks: tuple[int, float]) -> Consolidated:
        """What becomes of forks that did so many steps to such a weight."""
        base = await self.objects.put(a_file(self.folder / "base", {"model.w": torch.zeros(2)}), "v0")
        given = []
        for number, (steps, value) in enumerate(forks):
            path = a_file(self.folder / f"fork{number}", {"model.w": torch.full((2,), value)})
            ref = await self.objects.put(path, f"fork{number}")
            given.append(Contribution(fork=number, attempt=0, steps=steps, object=ref))
        task = Consolidate(job_id="j", round=1, base=base, version=1, forks=tuple(given), how=GUARDED, traceparent="")
        return await self.averager.consolidate(task)


async def test_every_candidate_is_stored_with_the_forks_parts_in_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    done = await bench.made((3, 2.0), (1, 6.0))
    assert done.weights == done.candidates["average"].weights
    assert {name: one.parts for name, one in done.candidates.items()} == {
        "average": {0: 0.75, 1: 0.25},
        "longer": {0: 0.75, 1: 0.25},
        "nesterov": {0: 0.75, 1: 0.25},
        "fastest": {0: 1.0},
    }
    values = {}
    for name, one in done.candidates.items():
        await bench.objects.get(one.weights, tmp_path / name)
        values[name] = Reader(tmp_path / name).tensor("model.w")[0].item()
    assert values["average"] == 3.0
    assert values["fastest"] == 2.0
    assert values["longer"] == 4.5


async def test_without_a_sound_fork_there_is_no_candidate(tmp_path: Path) -> None:
    done = await Bench(tmp_path).made((3, float("nan")))
    assert (done.weights, done.candidates, done.rejected) == (None, {}, {0: "not finite"})
