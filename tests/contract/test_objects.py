from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from hadare.model.errors import Rejected
from hadare.model.jobs import ObjectRef
from hadare.runtime.bus import Backplane
from hadare.wire.subjects import CODE, WEIGHTS


def folder_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def a_file(folder: Path, size: int, seed: int = 0) -> Path:
    path = folder / f"{seed}-{size}.bin"
    path.write_bytes(random.Random(seed).randbytes(size))
    return path


@pytest.mark.parametrize("size", [0, 1, 1000, 512 * 1024, 5 * 2**20 + 17])
async def test_what_was_put_comes_back_byte_for_byte(
    plane: Backplane, other: Backplane, tmp_path: Path, size: int
) -> None:
    source = a_file(tmp_path, size)
    ref = await plane.objects(WEIGHTS).put(source, "job1.v1")
    await other.objects(WEIGHTS).get(ref, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert (ref.sha256, ref.bytes) == (hashlib.sha256(source.read_bytes()).hexdigest(), size)


async def test_the_same_content_under_the_same_label_is_one_object(plane: Backplane, tmp_path: Path) -> None:
    objects = plane.objects(WEIGHTS)
    source = a_file(tmp_path, 3000)
    first = await objects.put(source, "a")
    second = await objects.put(source, "a")
    assert first == second
    assert await objects.names() == [first.name]


async def test_deleting_one_label_leaves_the_same_content_of_another(plane: Backplane, tmp_path: Path) -> None:
    objects = plane.objects(WEIGHTS)
    source = a_file(tmp_path, 3000)
    mine = await objects.put(source, "mine")
    theirs = await objects.put(source, "theirs")
    await objects.delete(mine.name)
    await objects.get(theirs, tmp_path / "copy")
    assert await objects.names() == [theirs.name]


async def test_what_is_not_there_is_404_and_leaves_no_file(plane: Backplane, tmp_path: Path) -> None:
    with pytest.raises(Rejected) as refused:
        await plane.objects(WEIGHTS).get(ObjectRef(name="x.y", sha256="0" * 64, bytes=1), tmp_path / "copy")
    assert refused.value.code == 404
    assert folder_names(tmp_path) == []


async def test_what_was_deleted_is_404(plane: Backplane, tmp_path: Path) -> None:
    objects = plane.objects(WEIGHTS)
    ref = await objects.put(a_file(tmp_path, 3000), "a")
    await objects.delete(ref.name)
    with pytest.raises(Rejected) as refused:
        await objects.get(ref, tmp_path / "copy")
    assert refused.value.code == 404


async def test_an_object_is_found_by_its_name_alone(plane: Backplane, other: Backplane, tmp_path: Path) -> None:
    ref = await plane.objects(CODE).put(a_file(tmp_path, 3000), "a")
    assert await other.objects(CODE).find(ref.name) == ref
    assert await other.objects(CODE).find("a." + "0" * 64) is None
    assert await other.objects(WEIGHTS).find(ref.name) is None


async def test_deleting_what_is_not_there_is_no_error(plane: Backplane) -> None:
    await plane.objects(WEIGHTS).delete("nobody.has.this")


async def test_what_was_deleted_can_be_put_again(plane: Backplane, tmp_path: Path) -> None:
    objects = plane.objects(WEIGHTS)
    source = a_file(tmp_path, 3000)
    ref = await objects.put(source, "a")
    await objects.delete(ref.name)
    assert await objects.put(source, "a") == ref
    await objects.get(ref, tmp_path / "copy")


async def test_a_file_that_exists_is_replaced(plane: Backplane, tmp_path: Path) -> None:
    source = a_file(tmp_path, 3000)
    ref = await plane.objects(WEIGHTS).put(source, "a")
    target = tmp_path / "copy"
    target.write_bytes(b"old")
    await plane.objects(WEIGHTS).get(ref, target)
    assert target.read_bytes() == source.read_bytes()
