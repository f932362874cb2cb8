"""What every form of the object store does: in memory, in NATS, in a folder, and in a bucket reached by fsspec."""

from __future__ import annotations

import asyncio
import hashlib
import random
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hadare.model.errors import Rejected
from hadare.model.jobs import ObjectRef
from hadare.runtime.bus import Backplane, Objects
from hadare.runtime.fsspec_objects import FsspecObjects
from hadare.wire.subjects import CODE, WEIGHTS


class Store:
    """One store as two processes see it; ``bucket`` is another store beside it."""

    def __init__(self, one: Objects, two: Objects, bucket: Objects) -> None:
        self.one, self.two, self.bucket = one, two, bucket


Joining = Callable[[str], Awaitable[Backplane]]
Opening = Callable[[str], Awaitable[tuple[Objects, Objects]]]
"""``await opening("name")``: the stores ``weights`` and ``code``, as the process of this name sees them."""


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.integration), "folder", "fsspec"])
def opening(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opening:
    if request.param in ("memory", "nats"):
        join: Joining = request.getfixturevalue("connect" if request.param == "nats" else "join_memory")

        async def on_a_bus(name: str) -> tuple[Objects, Objects]:
            plane = await join(name)
            return plane.objects(WEIGHTS), plane.objects(CODE)

        return on_a_bus
    root = f"file://{tmp_path_factory.mktemp('store')}" if request.param == "folder" else f"memory://{uuid.uuid4()}"

    async def at_a_url(name: str) -> tuple[Objects, Objects]:
        await asyncio.sleep(0)
        return FsspecObjects(f"{root}/c_weights"), FsspecObjects(f"{root}/c_code")

    return at_a_url


@pytest.fixture
async def store(opening: Opening) -> Store:
    one, _ = await opening("one")
    two, bucket = await opening("two")
    return Store(one, two, bucket)


def folder_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def a_file(folder: Path, size: int, seed: int = 0) -> Path:
    path = folder / f"{seed}-{size}.bin"
    path.write_bytes(random.Random(seed).randbytes(size))
    return path


@pytest.mark.parametrize("size", [0, 1, 1000, 512 * 1024, 5 * 2**20 + 17])
async def test_what_was_put_comes_back_byte_for_byte(store: Store, tmp_path: Path, size: int) -> None:
    source = a_file(tmp_path, size)
    ref = await store.one.put(source, "job1.v1")
    await store.two.get(ref, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert (ref.sha256, ref.bytes) == (hashlib.sha256(source.read_bytes()).hexdigest(), size)


async def test_the_same_content_under_the_same_label_is_one_object(store: Store, tmp_path: Path) -> None:
    objects = store.one
    source = a_file(tmp_path, 3000)
    first = await objects.put(source, "a")
    second = await objects.put(source, "a")
    assert first == second
    assert await objects.names() == [first.name]


async def test_deleting_one_label_leaves_the_same_content_of_another(store: Store, tmp_path: Path) -> None:
    objects = store.one
    source = a_file(tmp_path, 3000)
    mine = await objects.put(source, "mine")
    theirs = await objects.put(source, "theirs")
    await objects.delete(mine.name)
    await objects.get(theirs, tmp_path / "copy")
    assert await objects.names() == [theirs.name]


async def test_what_is_not_there_is_404_and_leaves_no_file(store: Store, tmp_path: Path) -> None:
    with pytest.raises(Rejected) as refused:
        await store.one.get(ObjectRef(name="x.y", sha256="0" * 64, bytes=1), tmp_path / "copy")
    assert refused.value.code == 404
    assert folder_names(tmp_path) == []


async def test_what_was_deleted_is_404(store: Store, tmp_path: Path) -> None:
    objects = store.one
    ref = await objects.put(a_file(tmp_path, 3000), "a")
    await objects.delete(ref.name)
    with pytest.raises(Rejected) as refused:
        await objects.get(ref, tmp_path / "copy")
    assert refused.value.code == 404


async def test_an_object_is_found_by_its_name_alone(store: Store, tmp_path: Path) -> None:
    ref = await store.one.put(a_file(tmp_path, 3000), "a")
    assert await store.two.find(ref.name) == ref
    assert await store.two.find("a." + "0" * 64) is None
    assert await store.bucket.find(ref.name) is None


async def test_deleting_what_is_not_there_is_no_error(store: Store) -> None:
    await store.one.delete("nobody.has.this")


async def test_what_was_deleted_can_be_put_again(store: Store, tmp_path: Path) -> None:
    objects = store.one
    source = a_file(tmp_path, 3000)
    ref = await objects.put(source, "a")
    await objects.delete(ref.name)
    assert await objects.put(source, "a") == ref
    await objects.get(ref, tmp_path / "copy")


async def test_what_is_expected_comes_back_byte_for_byte_in_time_or_late(store: Store, tmp_path: Path) -> None:
    expected = await store.two.expect("job1.4", tmp_path / "expected", 4 * 2**20)
    for fork, size in enumerate((0, 3000, 3 * 2**20)):
        source = a_file(tmp_path, size)
        ref = await store.one.put(source, f"job1.4.{fork}")
        for _ in range(2):
            await store.two.get(ref, tmp_path / "copy")
            assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    await expected.stop()


async def test_a_file_that_exists_is_replaced(store: Store, tmp_path: Path) -> None:
    source = a_file(tmp_path, 3000)
    ref = await store.one.put(source, "a")
    target = tmp_path / "copy"
    target.write_bytes(b"old")
    await store.one.get(ref, target)
    assert target.read_bytes() == source.read_bytes()


async def test_what_is_there_is_not_collected_as_garbage(store: Store, tmp_path: Path) -> None:
    ref = await store.one.put(a_file(tmp_path, 3000), "a")
    await store.two.collect_garbage(0.0)
    assert await store.two.names() == [ref.name]


async def test_an_object_of_another_size_than_announced_is_404(store: Store, tmp_path: Path) -> None:
    ref = await store.one.put(a_file(tmp_path, 3000), "a")
    wrong = ObjectRef(name=ref.name, sha256=ref.sha256, bytes=ref.bytes + 1)
    with pytest.raises(Rejected) as refused:
        await store.two.get(wrong, tmp_path / "copy")
    assert refused.value.code == 404
    assert not (tmp_path / "copy").exists()
