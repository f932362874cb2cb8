"""Our objects and those of stock tools are the same thing on the server."""

from __future__ import annotations

import asyncio
import hashlib
import io
import random
from math import ceil
from pathlib import Path
from typing import cast

import pytest

from hadare.model.errors import Rejected, Unavailable
from hadare.model.jobs import ObjectRef
from hadare.runtime import nats_objects
from hadare.runtime.nats_connection import NatsBackplane
from hadare.runtime.nats_objects import IN_FLIGHT, NatsObjects
from hadare.runtime.pace import Pace
from hadare.wire.subjects import WEIGHTS
from nats_fixtures import Connect

pytestmark = pytest.mark.integration

CHUNK_BYTES = 2**19


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(random.Random(7).randbytes(2 * 2**20 + 11))
    return path


@pytest.fixture
def content(source: Path) -> bytes:
    return source.read_bytes()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def stock(backplane: NatsBackplane):  # type: ignore[no-untyped-def]
    """nats-py's own object store on our bucket."""
    return await backplane.link.client.jetstream().object_store(f"{backplane.bus.prefix}_weights")


async def test_a_stock_client_reads_what_we_wrote(backplane: NatsBackplane, source: Path, content: bytes) -> None:
    ref = await backplane.objects(WEIGHTS).put(source, "job1.v3")
    into = io.BytesIO()
    found = await (await stock(backplane)).get(ref.name, writeinto=into)
    assert into.getvalue() == content
    assert found.info.options is not None
    assert found.info.options.max_chunk_size is not None
    # As many as the largest message of this server makes necessary.
    assert (found.info.size, found.info.chunks) == (ref.bytes, ceil(ref.bytes / found.info.options.max_chunk_size))


async def test_no_chunk_is_larger_than_the_server_takes(
    backplane: NatsBackplane, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backplane.link.client, "_max_payload", 2**20)
    ref = await backplane.objects(WEIGHTS).put(source, "job1.v3")
    assert (await (await stock(backplane)).get_info(ref.name)).chunks == 3


async def test_we_read_what_a_stock_client_wrote(backplane: NatsBackplane, content: bytes, tmp_path: Path) -> None:
    await (await stock(backplane)).put("theirs", content)
    ref = ObjectRef(name="theirs", sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    await backplane.objects(WEIGHTS).get(ref, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content


async def test_what_a_stock_client_deleted_is_gone(backplane: NatsBackplane, source: Path, tmp_path: Path) -> None:
    objects = backplane.objects(WEIGHTS)
    ref = await objects.put(source, "a")
    await (await stock(backplane)).delete(ref.name)
    assert await objects.names() == []
    with pytest.raises(Rejected):
        await objects.get(ref, tmp_path / "copy")


async def test_a_stock_list_shows_what_we_wrote_and_nothing_that_we_deleted(
    backplane: NatsBackplane, source: Path
) -> None:
    objects = backplane.objects(WEIGHTS)
    kept, dropped = await objects.put(source, "kept"), await objects.put(source, "dropped")
    await objects.delete(dropped.name)
    assert [info.name for info in await (await stock(backplane)).list(ignore_deletes=True)] == [kept.name]


async def test_content_that_is_not_what_was_announced_is_refused_and_leaves_no_file(
    backplane: NatsBackplane, source: Path, tmp_path: Path
) -> None:
    ref = await backplane.objects(WEIGHTS).put(source, "a")
    lie = ObjectRef(name=ref.name, sha256="0" * 64, bytes=ref.bytes)
    with pytest.raises(Rejected):
        await backplane.objects(WEIGHTS).get(lie, tmp_path / "copy")
    assert names_in(tmp_path) == ["source"]


async def test_a_size_that_is_not_what_was_announced_is_refused(
    backplane: NatsBackplane, source: Path, tmp_path: Path
) -> None:
    ref = await backplane.objects(WEIGHTS).put(source, "a")
    with pytest.raises(Rejected):
        await backplane.objects(WEIGHTS).get(
            ObjectRef(name=ref.name, sha256=ref.sha256, bytes=ref.bytes + 1), tmp_path / "copy"
        )


async def leave_orphans(backplane: NatsBackplane) -> None:
    """What a writer leaves behind that died before it described its object."""
    jetstream = backplane.link.client.jetstream()
    for _ in range(3):
        await jetstream.publish(f"$O.{backplane.bus.prefix}_weights.C.DEADWRITER", b"x" * 1000)


async def bytes_held(backplane: NatsBackplane) -> int:
    info = await backplane.link.api(f"STREAM.INFO.OBJ_{backplane.bus.prefix}_weights")
    return int(info["state"]["bytes"])


async def test_garbage_collection_removes_orphans_and_nothing_else(
    backplane: NatsBackplane, source: Path, tmp_path: Path
) -> None:
    objects = backplane.objects(WEIGHTS)
    ref = await objects.put(source, "kept")
    before = await bytes_held(backplane)
    await leave_orphans(backplane)
    assert await objects.collect_garbage(min_age_s=0) == 1
    assert await bytes_held(backplane) == before
    await objects.get(ref, tmp_path / "copy")


async def test_garbage_collection_leaves_uploads_that_are_under_way(backplane: NatsBackplane) -> None:
    await leave_orphans(backplane)
    assert await backplane.objects(WEIGHTS).collect_garbage(min_age_s=60) == 0


async def test_a_delete_frees_the_space(backplane: NatsBackplane, source: Path) -> None:
    objects = backplane.objects(WEIGHTS)
    ref = await objects.put(source, "a")
    await objects.delete(ref.name)
    assert await bytes_held(backplane) == 0


async def test_an_upload_that_fails_leaves_no_chunks(
    backplane: NatsBackplane, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = backplane.objects(WEIGHTS)

    async def fail(*_: object) -> None:
        raise Rejected(400, "no description today")

    monkeypatch.setattr(objects, "_describe", fail)
    with pytest.raises(Rejected):
        await objects.put(source, "a")
    assert await bytes_held(backplane) == 0


async def test_two_writers_of_the_same_object_agree(
    backplane: NatsBackplane, connect: Connect, source: Path, content: bytes, tmp_path: Path
) -> None:
    other = await connect("other")
    refs = await asyncio.gather(backplane.objects(WEIGHTS).put(source, "a"), other.objects(WEIGHTS).put(source, "a"))
    assert refs[0] == refs[1]
    await other.objects(WEIGHTS).get(refs[0], tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content


# Transfers that are cut off


class Cut:
    """A pace that counts what passes, and cuts the line after so many chunks."""

    def __init__(self, after: int | None = None) -> None:
        self._after = after
        self.passed = 0

    def take(self, count: int) -> float:
        if self._after is not None and self.passed >= self._after * CHUNK_BYTES:
            raise Unavailable("the line is cut")
        self.passed += count
        return 0.0


def with_pace(backplane: NatsBackplane, pace: Cut) -> NatsObjects:
    return NatsObjects(backplane.link, WEIGHTS, cast("Pace", pace))


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty chunks and a bit, of a size that every server takes."""
    monkeypatch.setattr(nats_objects, "CHUNK_BYTES", CHUNK_BYTES)
    path = tmp_path / "large"
    path.write_bytes(random.Random(8).randbytes(40 * CHUNK_BYTES + 5))
    return path


async def test_a_fetch_that_was_cut_off_goes_on_where_it_was_even_in_another_process(
    backplane: NatsBackplane, connect: Connect, large: Path, tmp_path: Path
) -> None:
    ref = await backplane.objects(WEIGHTS).put(large, "a")
    with pytest.raises(Unavailable):
        await with_pace(backplane, Cut(after=30)).get(ref, tmp_path / "copy")
    rest = Cut()
    await with_pace(await connect("another"), rest).get(ref, tmp_path / "copy")
    assert same(tmp_path / "copy", large)
    assert rest.passed <= ref.bytes - 24 * CHUNK_BYTES
    assert names_in(tmp_path) == ["copy", "large"]


async def test_an_object_that_was_put_anew_meanwhile_is_fetched_from_its_start(
    backplane: NatsBackplane, large: Path, tmp_path: Path
) -> None:
    objects = backplane.objects(WEIGHTS)
    ref = await objects.put(large, "a")
    with pytest.raises(Unavailable):
        await with_pace(backplane, Cut(after=30)).get(ref, tmp_path / "copy")
    await objects.delete(ref.name)
    await objects.put(large, "a")
    await objects.get(ref, tmp_path / "copy")
    assert same(tmp_path / "copy", large)


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


class Line:
    """Sends chunks as ever, but for one: it is lost (``lands`` False), or lands and nobody hears of it."""

    def __init__(self, objects: NatsObjects, number: int, *, lands: bool, others_land: bool = True) -> None:
        self._send = objects._send_chunk
        self._number = number
        self._lands = lands
        self._others_land = others_land
        self.sent = 0

    async def __call__(self, subject: str, chunk: bytes) -> int:
        number, self.sent = self.sent, self.sent + 1
        if number == self._number and not self._lands:
            raise Unavailable("the line is cut")
        if not self._others_land and self._number < number < self._number + IN_FLIGHT:
            raise Unavailable("the line is cut")
        sequence = await self._send(subject, chunk)
        if number == self._number:
            raise Unavailable("the line is cut")
        return sequence


@pytest.mark.parametrize("lands", [False, True])
async def test_an_upload_that_was_cut_off_goes_on_where_it_was(
    backplane: NatsBackplane, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    objects = NatsObjects(backplane.link, WEIGHTS)
    line = Line(objects, 30, lands=lands, others_land=False)
    monkeypatch.setattr(objects, "_send_chunk", line)
    ref = await objects.put(large, "a")
    assert line.sent <= 41 + IN_FLIGHT
    monkeypatch.setattr(objects, "_send_chunk", line._send)
    into = io.BytesIO()
    found = await (await stock(backplane)).get(ref.name, writeinto=into)
    assert (hashlib.sha256(into.getvalue()).hexdigest(), found.info.chunks) == (ref.sha256, 41)


async def test_an_upload_of_which_a_chunk_in_the_middle_was_lost_is_done_anew(
    backplane: NatsBackplane, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = NatsObjects(backplane.link, WEIGHTS)
    monkeypatch.setattr(objects, "_send_chunk", Line(objects, 30, lands=False))
    ref = await objects.put(large, "a")
    await objects.get(ref, tmp_path / "copy")
    assert same(tmp_path / "copy", large)
    assert await bytes_held(backplane) < 1.2 * ref.bytes


async def test_what_is_there_already_is_not_sent_again(backplane: NatsBackplane, large: Path) -> None:
    pace = Cut()
    objects = with_pace(backplane, pace)
    first = await objects.put(large, "a")
    sent = pace.passed
    assert await objects.put(large, "a") == first
    assert pace.passed == sent
