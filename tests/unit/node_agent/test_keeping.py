"""What an agent keeps on disk: weights, results, and the folder itself."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from builders_leases import a_lease
from full_disks import no_file_over
from hadare.model.errors import Broken, Rejected, Unavailable
from hadare.model.jobs import ObjectRef
from hadare.model.leases import ForkResult
from hadare.runtime.memory import MemoryHub
from hadare_node_agent.leftovers import WorkDirectory
from hadare_node_agent.results import ResultStore
from hadare_node_agent.trainer import discard
from hadare_node_agent.weights import WeightsCache


class CountingObjects:
    """A store that says how often it was asked."""

    def __init__(self) -> None:
        self.store = MemoryHub().connect("store").objects("weights")
        self.gets = 0
        self.away = 0
        self.expected: list[str] = []
        self.asked = asyncio.Event()

    async def get(self, ref: ObjectRef, path: Path) -> None:
        self.gets += 1
        if self.away:
            self.away -= 1
            raise Unavailable("the store is away")
        await self.store.get(ref, path)

    async def put(self, path: Path, label: str) -> ObjectRef:
        return await self.store.put(path, label)

    async def expect(self, label: str, folder: Path, most_bytes: int) -> CountingObjects:
        self.expected.append(label)
        self.asked.set()
        return self

    async def stop(self) -> None:
        self.expected.pop()

    async def delete(self, name: str) -> None:
        await self.store.delete(name)

    async def names(self) -> list[str]:
        return await self.store.names()


@pytest.fixture
def objects() -> CountingObjects:
    return CountingObjects()


async def stored(objects: CountingObjects, folder: Path, text: str) -> ObjectRef:
    path = folder / "source"
    path.write_text(text)
    return await objects.put(path, "test")


def cache(objects: CountingObjects, folder: Path, limit: int = 10**6) -> WeightsCache:
    return WeightsCache(objects, folder / "weights", limit, patience_s=5.0)


async def test_a_version_is_fetched_once(objects: CountingObjects, tmp_path: Path) -> None:
    ref = await stored(objects, tmp_path, "version 1")
    weights = cache(objects, tmp_path)
    first = await weights.fetch("a", ref)
    assert first == await weights.fetch("b", ref)
    assert first.read_text() == "version 1"
    assert objects.gets == 1


async def test_a_lease_waits_for_what_is_fetched_ahead_and_fetches_nothing_itself(
    objects: CountingObjects, tmp_path: Path
) -> None:
    ref = await stored(objects, tmp_path, "version 1")
    weights = cache(objects, tmp_path)
    _, path = await asyncio.gather(weights.fetch_ahead(ref), weights.fetch("a", ref))
    assert (path.read_text(), objects.gets) == ("version 1", 1)


async def test_a_version_that_is_gone_by_now_is_not_fetched_ahead_for_long(
    objects: CountingObjects, tmp_path: Path
) -> None:
    objects.away = 100
    with pytest.raises(Unavailable):
        await cache(objects, tmp_path).fetch_ahead(ObjectRef(name="gone", sha256="0" * 64, bytes=1))
    assert objects.gets == 1


async def test_a_version_is_expected_until_it_has_been_fetched(objects: CountingObjects, tmp_path: Path) -> None:
    ref = await stored(objects, tmp_path, "version 1")
    weights = cache(objects, tmp_path)
    expecting = asyncio.create_task(weights.expect("test", 1))
    await objects.asked.wait()
    await weights.expect("test", 1)  # told twice
    assert objects.expected == ["test"]
    await weights.fetch_ahead(ref)
    await expecting
    assert objects.expected == []


async def test_a_version_that_does_not_come_is_not_expected_for_ever(
    objects: CountingObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hadare_node_agent.weights._EXPECT_S", 0.01)
    await cache(objects, tmp_path).expect("test", 1)
    assert objects.expected == []


async def test_a_fetch_is_tried_again_while_the_store_is_away(objects: CountingObjects, tmp_path: Path) -> None:
    ref = await stored(objects, tmp_path, "version 1")
    objects.away = 2
    assert (await cache(objects, tmp_path).fetch("a", ref)).read_text() == "version 1"


async def test_what_is_not_in_the_store_is_refused_at_once(objects: CountingObjects, tmp_path: Path) -> None:
    with pytest.raises(Rejected):
        await cache(objects, tmp_path).fetch("a", ObjectRef(name="none", sha256="0" * 64, bytes=1))
    assert objects.gets == 1


async def test_a_result_that_was_uploaded_need_not_be_fetched(objects: CountingObjects, tmp_path: Path) -> None:
    weights = cache(objects, tmp_path)
    out = tmp_path / "out"
    out.write_text("result")
    ref = await weights.upload(out, "apple.1.0.0")
    assert not out.exists()
    assert (await weights.fetch("b", ref)).read_text() == "result"
    assert objects.gets == 0


async def test_a_file_of_an_earlier_incarnation_is_used_if_its_hash_is_right(
    objects: CountingObjects, tmp_path: Path
) -> None:
    ref = await stored(objects, tmp_path, "version 1")
    await cache(objects, tmp_path).fetch("a", ref)
    await cache(objects, tmp_path).fetch("a", ref)
    assert objects.gets == 1


async def test_a_damaged_file_is_fetched_again(objects: CountingObjects, tmp_path: Path) -> None:
    ref = await stored(objects, tmp_path, "version 1")
    path = await cache(objects, tmp_path).fetch("a", ref)
    path.write_text("version X")
    assert (await cache(objects, tmp_path).fetch("a", ref)).read_text() == "version 1"
    assert objects.gets == 2


async def test_the_cache_is_bounded_and_what_a_lease_needs_stays(objects: CountingObjects, tmp_path: Path) -> None:
    refs = [await stored(objects, tmp_path, f"{number:010}") for number in range(4)]
    weights = cache(objects, tmp_path, limit=25)
    needed = await weights.fetch("running", refs[0])
    for number, ref in enumerate(refs[1:]):
        path = await weights.fetch("passing", ref)
        os.utime(path, ns=(number + 1, number + 1))
    assert needed.exists()
    assert len(list((tmp_path / "weights").glob("*"))) == 2
    weights.release("running")
    await weights.fetch("passing", refs[1])
    assert len(list((tmp_path / "weights").glob("*"))) == 2


def a_result(round_: int) -> ForkResult:
    lease = a_lease("apple", round_)
    return ForkResult(kind="train", key=lease.key, epoch=1, node="north", device_type="V100", steps=round_)


def test_kept_results_are_found_again_oldest_first(tmp_path: Path) -> None:
    for number in (2, 1):
        ResultStore(tmp_path).keep(str(a_result(number).key), a_result(number))
        os.utime(tmp_path / f"apple.{number}.0.0.msgpack", ns=(10 - number, 10 - number))
    assert [result.steps for result in ResultStore(tmp_path).kept()] == [2, 1]


def test_a_forgotten_result_is_gone_and_may_be_forgotten_twice(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    store.keep("apple.1.0.0", a_result(1))
    store.forget("apple.1.0.0")
    store.forget("apple.1.0.0")
    assert store.kept() == ()


def test_a_damaged_result_is_removed_and_hides_no_other(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    store.keep("apple.1.0.0", a_result(1))
    (tmp_path / "apple.2.0.0.msgpack").write_bytes(b"\x00garbage")
    assert [result.steps for result in store.kept()] == [1]
    assert [path.name for path in tmp_path.glob("*")] == ["apple.1.0.0.msgpack"]


def test_a_result_that_finds_the_disk_full_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    with no_file_over(10), pytest.raises(OSError, match="File too large"):
        store.keep("apple.1.0.0", a_result(1))
    assert list(tmp_path.iterdir()) == []
    store.keep("apple.1.0.0", a_result(1))
    assert [result.steps for result in store.kept()] == [1]


def test_what_a_fork_was_killed_over_goes_with_it_and_other_forks_keep_theirs(tmp_path: Path) -> None:
    out = tmp_path / "p4-1.safetensors"
    for name in ("p4-1.safetensors", ".p4-1.safetensors.77.partial", ".p4-11.safetensors.78.partial"):
        (tmp_path / name).write_text("x")
    discard(out)
    discard(out)
    assert [path.name for path in tmp_path.iterdir()] == [".p4-11.safetensors.78.partial"]


def test_a_work_directory_has_one_agent_at_a_time(tmp_path: Path) -> None:
    with (
        WorkDirectory(tmp_path, "north"),
        pytest.raises(Broken, match="another agent works in"),
        WorkDirectory(tmp_path, "north"),
    ):
        pass
    with WorkDirectory(tmp_path, "north"):
        pass


def test_scratch_files_of_an_earlier_incarnation_are_removed_and_results_kept(tmp_path: Path) -> None:
    with WorkDirectory(tmp_path, "north") as directory:
        for path in (directory.scratch / "p1-1", directory.results / "r.msgpack", directory.results / "r.part"):
            path.write_text("x")
        assert directory.clear() == []
        left = sorted(path.name for folder in (directory.scratch, directory.results) for path in folder.glob("*"))
        assert left == ["r.msgpack"]


def test_markers_tell_folders_nodes_and_incarnations_apart(tmp_path: Path) -> None:
    one, other = WorkDirectory(tmp_path / "a", "north"), WorkDirectory(tmp_path / "b", "north")
    assert one.marker_prefix("i1") != other.marker_prefix("i1")
    assert one.marker_prefix("i1") != one.marker_prefix("i2")
    assert not WorkDirectory(tmp_path / "a", "north-2").marker_prefix("i1").startswith(one.marker_prefix("")[:-1])
    assert len(WorkDirectory(tmp_path, "n" * 63).marker_prefix("0" * 12)) < 110
