"""Weights at an fsspec URL: what is left behind, what is refused, what is damaged; and how transfers are held back."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import pytest

from hadare.model.errors import Broken, Rejected, Unavailable
from hadare.model.jobs import ObjectRef
from hadare.runtime.fsspec_objects import FsspecObjects
from hadare.runtime.pace import Pace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "shared"


@pytest.fixture
def objects(root: Path) -> FsspecObjects:
    return FsspecObjects(f"file://{root}")


def a_file(folder: Path, content: bytes = b"weights" * 1000) -> Path:
    path = folder / "source"
    path.write_bytes(content)
    return path


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_only_whole_objects_have_a_name(objects: FsspecObjects, root: Path, tmp_path: Path) -> None:
    ref = await objects.put(a_file(tmp_path), "job.v1")
    assert names_in(root) == sorted([ref.name, "parts"])
    assert list((root / "parts").iterdir()) == []


async def test_a_damaged_object_is_refused_and_leaves_no_file(
    objects: FsspecObjects, root: Path, tmp_path: Path
) -> None:
    ref = await objects.put(a_file(tmp_path), "job.v1")
    (root / ref.name).write_bytes(b"x" * ref.bytes)
    with pytest.raises(Rejected, match="does not have the content"):
        await objects.get(ref, tmp_path / "copy")
    assert names_in(tmp_path) == ["shared", "source"]


async def test_an_object_that_was_cut_off_is_put_again(objects: FsspecObjects, root: Path, tmp_path: Path) -> None:
    ref = await objects.put(a_file(tmp_path), "job.v1")
    (root / ref.name).write_bytes(b"x")
    assert await objects.put(a_file(tmp_path), "job.v1") == ref
    await objects.get(ref, tmp_path / "copy")


async def test_parts_of_uploads_that_died_are_removed_once_they_are_old(
    objects: FsspecObjects, root: Path, tmp_path: Path
) -> None:
    (root / "parts").mkdir(parents=True)
    (root / "parts" / "orphan").write_bytes(b"half")
    assert await objects.collect_garbage(3600.0) == 0
    assert await objects.collect_garbage(0.0) == 1
    assert list((root / "parts").iterdir()) == []


@pytest.mark.parametrize("name", ["../outside", "a/b", ".hidden", "", "a\0b"])
async def test_a_name_that_leads_out_of_the_folder_is_refused(
    objects: FsspecObjects, tmp_path: Path, name: str
) -> None:
    with pytest.raises(Rejected, match="not a name of an object"):
        await objects.get(ObjectRef(name=name, sha256="0" * 64, bytes=1), tmp_path / "copy")


async def test_a_store_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable, match="cannot put"):
        await FsspecObjects(f"file://{tmp_path}/file/below").put(a_file(tmp_path), "job.v1")


def test_an_unknown_protocol_is_refused_at_the_start() -> None:
    with pytest.raises(Broken):
        FsspecObjects("nosuchprotocol://place")


async def test_a_transfer_takes_as_long_as_its_pace_demands(root: Path, tmp_path: Path) -> None:
    paced = FsspecObjects(f"file://{root}", Pace(1e6))
    began = time.monotonic()
    await paced.put(a_file(tmp_path, b"x" * 200_000), "job.v1")
    assert time.monotonic() - began >= 0.2


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_whoever_took_too_many_bytes_waits_in_turn() -> None:
    clock = Clock()
    pace = Pace(100.0, clock)
    assert [pace.take(50), pace.take(50)] == [0.5, 1.0]
    clock.now = 0.75
    assert pace.take(25) == 0.5


def test_idle_time_is_not_saved_up() -> None:
    clock = Clock()
    pace = Pace(100.0, clock)
    pace.take(100)
    clock.now = 60.0
    assert pace.take(100) == 1.0


def test_without_a_limit_nobody_waits() -> None:
    assert Pace().take(10**12) == 0.0


async def test_the_name_says_the_hash(objects: FsspecObjects, tmp_path: Path) -> None:
    ref = await objects.put(a_file(tmp_path, b"abc"), "job.v1")
    assert ref == ObjectRef(name=f"job.v1.{hashlib.sha256(b'abc').hexdigest()}", sha256=ref.sha256, bytes=3)
    assert ref.sha256 == hashlib.sha256(b"abc").hexdigest()


class Cut(Pace):
    """Cuts the line after so many blocks; counts what passes."""

    def __init__(self, after: int | None = None) -> None:
        super().__init__()
        self._after = after
        self.passed = 0

    def take(self, count: int) -> float:
        if self._after is not None and self._after == 0:
            raise Unavailable("the line is cut")
        self._after = None if self._after is None else self._after - 1
        self.passed += count
        return 0.0


async def test_a_fetch_that_was_cut_off_goes_on_where_it_was(root: Path, tmp_path: Path) -> None:
    content = b"weights!" * 2**21
    ref = await FsspecObjects(f"file://{root}").put(a_file(tmp_path, content), "job.v1")
    with pytest.raises(Unavailable):
        await FsspecObjects(f"file://{root}", Cut(after=2)).get(ref, tmp_path / "copy")
    rest = Cut()
    await FsspecObjects(f"file://{root}", rest).get(ref, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    assert rest.passed < ref.bytes


@pytest.mark.parametrize("damaged", [False, True])
async def test_an_upload_that_was_cut_off_goes_on_where_it_was_if_what_is_there_is_its_beginning(
    root: Path, tmp_path: Path, damaged: bool
) -> None:
    content = b"weights!" * 2**21
    pace = Cut(after=2)
    objects = FsspecObjects(f"file://{root}", pace)
    with pytest.raises(Unavailable):
        await objects.put(a_file(tmp_path, content), "job.v1")
    if damaged:
        (left,) = (root / "parts").iterdir()
        left.write_bytes(b"x" * left.stat().st_size)
    pace._after, pace.passed = None, 0
    ref = await objects.put(a_file(tmp_path, content), "job.v1")
    assert (root / ref.name).read_bytes() == content
    assert (pace.passed == ref.bytes) is damaged
    assert list((root / "parts").iterdir()) == []
