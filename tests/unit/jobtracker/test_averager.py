"""The tracker's adapter: what a job's spec asks for reaches the kernel, and what it found comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from torch import Tensor

from builders_training import a_file
from hadare.machines.tracker_events import Consolidate, Consolidated, Contribution
from hadare.model.errors import Unavailable
from hadare.model.jobs import ConsolidationSpec, ObjectRef
from hadare.runtime.bus import Unheard
from hadare.runtime.memory import MemoryHub
from hadare.runtime.memory_stores import MemoryObjects
from hadare.training.tensorfile import Reader
from hadare_jobtracker.averager import MOST_AHEAD_BYTES, WeightsAverager


async def made(folder: Path, how: ConsolidationSpec, forks: list[tuple[int, Tensor]]) -> tuple[Consolidated, Path]:
    """What the averager says of forks of a base of zeros, and the version's file."""
    objects = MemoryObjects(MemoryHub(), "weights")
    base = await objects.put(a_file(folder / "base", {"model.w": torch.zeros(2)}), "v0")
    given = []
    for number, (steps, values) in enumerate(forks):
        path = a_file(folder / f"fork{number}", {"model.w": values})
        ref = await objects.put(path, f"fork{number}")
        given.append(Contribution(fork=number, attempt=0, steps=steps, object=ref))
    task = Consolidate(job_id="j", round=1, base=base, version=1, forks=tuple(given), how=how, traceparent="")
    done = await WeightsAverager(objects, folder / "work").consolidate(task)
    version = folder / "version"
    if done.weights is not None:
        await objects.get(done.weights, version)
    return done, version


FORKS = [(3, torch.full((2,), 2.0)), (1, torch.full((2,), 6.0))]


async def test_the_default_is_the_papers_average(tmp_path: Path) -> None:
    done, version = await made(tmp_path, ConsolidationSpec(), FORKS)
    assert Reader(version).tensor("model.w").tolist() == [3.0, 3.0]
    assert [fork.weight for fork in done.kept] == [0.75, 0.25]
    assert [fork.agreement for fork in done.kept] == pytest.approx([1.0, 1.0])


async def test_a_job_that_asks_for_diloco_gets_its_step_and_momentum(tmp_path: Path) -> None:
    _, version = await made(tmp_path, ConsolidationSpec(method="diloco"), FORKS)
    assert Reader(version).tensor("model.w").tolist() == pytest.approx([0.7 * 1.5 * 3.0] * 2)
    assert Reader(version).tensor("outer.momentum.w").tolist() == [3.0, 3.0]


async def test_a_job_that_asks_for_an_average_of_versions_gets_it(tmp_path: Path) -> None:
    _, version = await made(tmp_path, ConsolidationSpec(ema_half_life=4), FORKS)
    assert Reader(version).tensor("ema.w").tolist() == [3.0, 3.0]


async def test_no_average_of_versions_is_kept_unless_a_job_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    _, kept = await made(tmp_path / "with", ConsolidationSpec(ema_half_life="round"), FORKS)
    _, none = await made(tmp_path / "without", ConsolidationSpec(), FORKS)
    assert ("ema.w" in Reader(kept).specs, "ema.w" in Reader(none).specs) == (True, False)


@pytest.mark.parametrize("masks", [1, 12])
async def test_what_was_decided_of_tensors_without_a_mean_is_told_up_to_a_bound(tmp_path: Path, masks: int) -> None:
    objects = MemoryObjects(MemoryHub(), "weights")
    files = [
        {"model.w": torch.zeros(2), **{f"model.mask{n:02}": torch.tensor([on]) for n in range(masks)}}
        for on in (True, True, False)
    ]
    base, *refs = [await objects.put(a_file(tmp_path / str(n), file), f"f{n}") for n, file in enumerate(files)]
    given = tuple(Contribution(fork=n, attempt=0, steps=n + 1, object=ref) for n, ref in enumerate(refs))
    how = ConsolidationSpec()
    task = Consolidate(job_id="j", round=1, base=base, version=1, forks=given, how=how, traceparent="")
    notes = (await WeightsAverager(objects, tmp_path / "work").consolidate(task)).notes
    assert "model.mask00 differs between the forks" in notes[0]
    assert len(notes) == (1 if masks == 1 else 9)
    assert masks == 1 or notes[-1] == "… and 4 more"


async def test_without_a_sound_fork_there_is_no_version_and_a_reason(tmp_path: Path) -> None:
    done, _ = await made(tmp_path, ConsolidationSpec(), [(3, torch.full((2,), float("nan")))])
    assert (done.weights, done.rejected) == (None, {0: "not finite"})


async def test_nothing_is_kept_of_a_job_that_has_ended_not_even_by_a_version_under_way(tmp_path: Path) -> None:
    objects = MemoryObjects(MemoryHub(), "weights")
    base = await objects.put(a_file(tmp_path / "base", {"model.w": torch.zeros(2)}), "v0")
    fork = await objects.put(a_file(tmp_path / "fork", {"model.w": torch.ones(2)}), "fork0")
    given = (Contribution(fork=0, attempt=0, steps=3, object=fork),)
    task = Consolidate(job_id="j", round=1, base=base, version=1, forks=given, how=ConsolidationSpec(), traceparent="")
    averager = WeightsAverager(objects, tmp_path / "work", at_once=2)
    await averager.consolidate(task)
    assert list((tmp_path / "work").iterdir())
    await asyncio.gather(averager.consolidate(task), averager.forget("j"))
    assert list((tmp_path / "work").iterdir()) == []


async def test_a_result_that_was_fetched_ahead_is_not_fetched_again_and_nothing_of_it_stays(tmp_path: Path) -> None:
    objects = Flaky(MemoryHub())
    task = await of_one_fork(objects, tmp_path)
    averager = WeightsAverager(objects, tmp_path / "work")
    gone = ObjectRef(name="gone", sha256="0" * 64, bytes=1)
    await asyncio.gather(averager.fetch_ahead("j", 1, 0, task.forks[0].object), averager.fetch_ahead("j", 1, 1, gone))
    done = await averager.consolidate(task)
    assert (done.weights is not None, objects.fetched) == (True, 3)  # the fork, what is gone, the base
    await averager.tidied("j")
    assert [path.suffix for path in (tmp_path / "work" / "j").iterdir()] == [".safetensors"]


async def test_a_result_that_is_wanted_by_its_consolidation_first_is_fetched_once(tmp_path: Path) -> None:
    objects = Flaky(MemoryHub())
    task = await of_one_fork(objects, tmp_path)
    averager = WeightsAverager(objects, tmp_path / "work")
    consolidating = asyncio.create_task(averager.consolidate(task))
    await objects.second.wait()
    await averager.fetch_ahead("j", 1, 0, task.forks[0].object)
    assert (await consolidating).weights is not None
    assert objects.fetched == 2  # the base and the fork


async def test_a_result_that_could_not_be_fetched_ahead_is_fetched_again(tmp_path: Path) -> None:
    objects = Flaky(MemoryHub())
    task = await of_one_fork(objects, tmp_path)
    averager = WeightsAverager(objects, tmp_path / "work")
    objects.away = True
    await averager.fetch_ahead("j", 1, 0, task.forks[0].object)
    objects.away = False
    assert (await averager.consolidate(task)).weights is not None


async def test_only_so_much_is_fetched_ahead(tmp_path: Path) -> None:
    objects = Flaky(MemoryHub())
    averager = WeightsAverager(objects, tmp_path / "work")
    large = ObjectRef(name="large", sha256="0" * 64, bytes=MOST_AHEAD_BYTES - 5)
    await averager.fetch_ahead("j", 1, 0, large)
    await averager.fetch_ahead("k", 1, 0, ObjectRef(name="small", sha256="0" * 64, bytes=6))
    assert objects.fetched == 1
    await averager.forget("j")
    await averager.fetch_ahead("k", 1, 0, ObjectRef(name="small", sha256="0" * 64, bytes=6))
    assert objects.fetched == 2


async def test_a_rounds_results_are_expected_until_they_are_averaged_or_the_job_has_ended(tmp_path: Path) -> None:
    objects = Expecting(MemoryHub())
    task = await of_one_fork(objects, tmp_path)
    averager = WeightsAverager(objects, tmp_path / "work")
    await averager.expect("j", 1, 3, task.base)
    await averager.expect("k", 1, 3, task.base)
    assert objects.expected == {"j.1", "k.1"}
    await averager.consolidate(task)
    await averager.tidied("j")
    assert objects.expected == {"k.1"}
    await averager.expect("k", 2, 3, task.base)
    assert objects.expected == {"k.2"}
    await averager.forget("k")
    assert objects.expected == set()


async def test_results_that_cannot_be_expected_are_fetched(tmp_path: Path) -> None:
    objects = Expecting(MemoryHub())
    task = await of_one_fork(objects, tmp_path)
    averager = WeightsAverager(objects, tmp_path / "work")
    objects.away = True
    await averager.expect("j", 1, 1, task.base)
    assert (await averager.consolidate(task)).weights is not None


class Expecting(MemoryObjects):
    """Knows which labels are expected just now."""

    def __init__(self, hub: MemoryHub) -> None:
        super().__init__(hub, "weights")
        self.expected: set[str] = set()
        self.away = False

    async def expect(self, label: str, folder: Path, most_bytes: int) -> Unheard:
        if self.away:
            raise Unavailable("the bus is away")
        self.expected.add(label)
        expecting = self

        class Expected(Unheard):
            async def stop(self) -> None:
                expecting.expected.remove(label)

        return Expected()


async def of_one_fork(objects: MemoryObjects, folder: Path) -> Consolidate:
    """A round of one fork whose base and result are stored."""
    base = await objects.put(a_file(folder / "base", {"model.w": torch.zeros(2)}), "v0")
    fork = await objects.put(a_file(folder / "fork", {"model.w": torch.ones(2)}), "fork")
    given = (Contribution(fork=0, attempt=0, steps=1, object=fork),)
    return Consolidate(
        **{"job_id": "j", "round": 1, "base": base, "version": 1, "forks": given, "traceparent": ""},
        how=ConsolidationSpec(),
    )


class Flaky(MemoryObjects):
    """Cannot store anything for a while, or is away; counts what is fetched."""

    def __init__(self, hub: MemoryHub) -> None:
        super().__init__(hub, "weights")
        self.fetched = 0
        self.second = asyncio.Event()
        self.full = self.away = False

    async def put(self, path: Path, label: str) -> ObjectRef:
        if self.full:
            raise Unavailable("the store is full")
        return await super().put(path, label)

    async def get(self, ref: ObjectRef, path: Path) -> None:
        self.fetched += 1
        if self.fetched == 2:
            self.second.set()
        if self.away:
            raise Unavailable("the store is away")
        await super().get(ref, path)


async def test_an_attempt_after_one_that_failed_fetches_nothing_again(tmp_path: Path) -> None:
    objects = Flaky(MemoryHub())
    task = await of_one_fork(objects, tmp_path)
    averager = WeightsAverager(objects, tmp_path / "work")
    objects.full = True
    with pytest.raises(Unavailable):
        await averager.consolidate(task)
    objects.full = False
    done = await averager.consolidate(task)
    assert (done.weights is not None, objects.fetched) == (True, 2)
    await averager.tidied("j")
    assert [path.suffix for path in (tmp_path / "work" / "j").iterdir()] == [".safetensors"]
