"""Uploads that are heard while they are stored: had without reading, and only if they are what was announced."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from full_disks import no_file_over
from hadare.model.errors import Rejected, Unavailable
from hadare.model.jobs import ObjectRef
from hadare.runtime import nats_heard
from hadare.runtime.bus import Objects, Subscription
from hadare.runtime.nats_connection import NatsBackplane
from hadare.wire.subjects import WEIGHTS
from nats_fixtures import Connect

pytestmark = pytest.mark.integration

SIZE = 5 * 2**20


@pytest.fixture
async def writer(connect: Connect) -> NatsBackplane:
    return await connect("writer")


def a_file(folder: Path, seed: int = 7, size: int = SIZE) -> Path:
    path = folder / f"source-{seed}"
    path.write_bytes(random.Random(seed).randbytes(size))
    return path


def folder_of(tmp_path: Path) -> Path:
    return tmp_path / "heard"


async def put_and_forget(writer: NatsBackplane, path: Path, label: str) -> ObjectRef:
    """Stores it and removes it: who has it then has not read it."""
    objects = writer.objects(WEIGHTS)
    ref = await objects.put(path, label)
    await objects.delete(ref.name)
    return ref


async def heard_by(backplane: NatsBackplane, expected: Subscription) -> None:
    assert isinstance(expected, nats_heard.Expectation)
    await backplane.link.flush()
    await expected._arrived.join()


def same(one: Path, other: Path) -> bool:
    assert one.read_bytes() == other.read_bytes()
    return True


async def is_had(backplane: NatsBackplane, objects: Objects, ref: ObjectRef, source: Path) -> bool:
    copy = source.with_name("copy")
    # What was heard comes before what is told of it, on one connection; here nothing is told on it.
    await backplane.link.flush()
    try:
        await objects.get(ref, copy)
    except Rejected:
        return False
    return same(copy, source)


@pytest.mark.parametrize("label", ["job.3", "job.3.0.1", "job.3.1.0.init"])
async def test_what_is_expected_is_had_without_being_read(
    backplane: NatsBackplane, writer: NatsBackplane, tmp_path: Path, label: str
) -> None:
    objects, source = backplane.objects(WEIGHTS), a_file(tmp_path)
    expected = await objects.expect("job.3", folder_of(tmp_path), SIZE)
    assert await is_had(backplane, objects, await put_and_forget(writer, source, label), source)
    await expected.stop()
    assert list(folder_of(tmp_path).iterdir()) == []


@pytest.mark.parametrize("label", ["job.33", "job.4.0", "other.3", "job"])
async def test_what_is_not_expected_is_not_heard(
    backplane: NatsBackplane, writer: NatsBackplane, tmp_path: Path, label: str
) -> None:
    objects, source = backplane.objects(WEIGHTS), a_file(tmp_path)
    expected = await objects.expect("job.3", folder_of(tmp_path), SIZE)
    assert not await is_had(backplane, objects, await put_and_forget(writer, source, label), source)
    await expected.stop()


async def test_it_is_told_from_others_with_its_label_by_its_content(
    backplane: NatsBackplane, writer: NatsBackplane, tmp_path: Path
) -> None:
    objects = backplane.objects(WEIGHTS)
    expected = await objects.expect("job.3", folder_of(tmp_path), 3 * SIZE)
    sources = [a_file(tmp_path, seed) for seed in (1, 2, 3)]
    refs = [await put_and_forget(writer, source, "job.3.0") for source in sources]
    for ref, source in reversed(list(zip(refs, sources, strict=True))):
        assert await is_had(backplane, objects, ref, source)
    assert not await is_had(backplane, objects, refs[0], sources[0])  # each is had once
    await expected.stop()


async def test_what_was_heard_in_part_is_read(
    backplane: NatsBackplane, writer: NatsBackplane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, source = backplane.objects(WEIGHTS), a_file(tmp_path)
    expected = await objects.expect("job.3", folder_of(tmp_path), SIZE)
    hear = expected._hear
    lost: list[Msg] = []

    async def lose_the_first(message: Msg) -> None:
        if lost:
            await hear(message)
        else:
            lost.append(message)

    monkeypatch.setattr(expected._subscription, "_cb", lose_the_first)
    ref = await writer.objects(WEIGHTS).put(source, "job.3.0")
    assert await is_had(backplane, objects, ref, source)
    assert len(lost) == 1
    await expected.stop()
    assert list(folder_of(tmp_path).iterdir()) == []


async def test_bytes_that_somebody_else_sends_under_its_label_harm_nothing(
    backplane: NatsBackplane, writer: NatsBackplane, tmp_path: Path
) -> None:
    objects, source = backplane.objects(WEIGHTS), a_file(tmp_path)
    expected = await objects.expect("job.3", folder_of(tmp_path), SIZE)
    subject = f"$O.{backplane.bus.prefix}_weights.C.job.3.0.forged"
    await writer.link.client.jetstream().publish(subject, b"\0" * 2**20)
    ref = await writer.objects(WEIGHTS).put(source, "job.3.0")
    assert await is_had(backplane, objects, ref, source)
    forged = ObjectRef(name=f"job.3.0.{'0' * 64}", sha256="0" * 64, bytes=2**20)
    assert not await is_had(backplane, objects, forged, source)
    await expected.stop()


async def test_no_more_is_kept_than_was_said_and_the_newest_of_it(
    backplane: NatsBackplane, writer: NatsBackplane, tmp_path: Path
) -> None:
    objects = backplane.objects(WEIGHTS)
    expected = await objects.expect("job.3", folder_of(tmp_path), 2 * SIZE)
    sources = [a_file(tmp_path, seed) for seed in (1, 2, 3)]
    refs = [await put_and_forget(writer, source, f"job.3.{seed}") for seed, source in enumerate(sources)]
    had = [await is_had(backplane, objects, ref, source) for ref, source in zip(refs, sources, strict=True)]
    assert had == [False, True, True]
    await expected.stop()


async def test_more_than_a_client_can_bear_is_not_listened_to_and_read_as_ever(
    backplane: NatsBackplane, writer: NatsBackplane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_heard, "MOST_HEARD_BYTES", SIZE)
    objects, source = backplane.objects(WEIGHTS), a_file(tmp_path)
    first = await objects.expect("job.3", folder_of(tmp_path), SIZE)
    second = await objects.expect("job.4", folder_of(tmp_path), 1)
    assert not await is_had(backplane, objects, await put_and_forget(writer, source, "job.4.0"), source)
    assert await is_had(backplane, objects, await writer.objects(WEIGHTS).put(source, "job.4.0"), source)
    await first.stop()
    third = await objects.expect("job.5", folder_of(tmp_path), SIZE)  # what was stopped leaves room
    assert await is_had(backplane, objects, await put_and_forget(writer, source, "job.5.0"), source)
    await second.stop()
    await third.stop()


async def test_who_stops_hears_no_more_and_leaves_no_file(
    backplane: NatsBackplane, writer: NatsBackplane, tmp_path: Path
) -> None:
    objects, source = backplane.objects(WEIGHTS), a_file(tmp_path)
    expected = await objects.expect("job.3", folder_of(tmp_path), SIZE)
    heard = await put_and_forget(writer, source, "job.3.0")
    await expected.stop()
    await expected.stop()
    later = await put_and_forget(writer, source, "job.3.1")
    assert not await is_had(backplane, objects, heard, source)
    assert not await is_had(backplane, objects, later, source)
    assert list(folder_of(tmp_path).iterdir()) == []


async def test_a_folder_that_takes_nothing_costs_no_more_than_reading(
    backplane: NatsBackplane, writer: NatsBackplane, tmp_path: Path
) -> None:
    objects, source = backplane.objects(WEIGHTS), a_file(tmp_path)
    expected = await objects.expect("job.3", folder_of(tmp_path), SIZE)
    folder_of(tmp_path).rmdir()
    assert await is_had(backplane, objects, await writer.objects(WEIGHTS).put(source, "job.3.0"), source)
    await expected.stop()


async def test_a_disk_that_is_full_while_it_is_heard_costs_no_more_than_reading_and_leaves_nothing(
    backplane: NatsBackplane, writer: NatsBackplane, tmp_path: Path
) -> None:
    objects, source = backplane.objects(WEIGHTS), a_file(tmp_path)
    expected = await objects.expect("job.3", folder_of(tmp_path), SIZE)
    with no_file_over(3 * 2**20):
        ref = await writer.objects(WEIGHTS).put(source, "job.3.0")
        await heard_by(backplane, expected)
    assert await is_had(backplane, objects, ref, source)
    await expected.stop()
    assert list(folder_of(tmp_path).iterdir()) == []


async def test_a_bus_that_goes_away_meanwhile_is_said_and_leaves_nobody_listening(
    backplane: NatsBackplane, writer: NatsBackplane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise Unavailable("no answer")

    objects, source = backplane.objects(WEIGHTS), a_file(tmp_path)
    with monkeypatch.context() as away:
        away.setattr(backplane.link, "flush", fail)
        with pytest.raises(Unavailable):
            await objects.expect("job.3", folder_of(tmp_path), SIZE)
    assert not await is_had(backplane, objects, await put_and_forget(writer, source, "job.3.0"), source)
    assert list(folder_of(tmp_path).iterdir()) == []


async def test_a_large_object_is_read(backplane: NatsBackplane, writer: NatsBackplane, tmp_path: Path) -> None:
    objects, source = backplane.objects(WEIGHTS), a_file(tmp_path, size=9 * 2**20)
    expected = await objects.expect("job.3", folder_of(tmp_path), 10 * 2**20)
    ref = await writer.objects(WEIGHTS).put(source, "job.3.0")
    assert list(folder_of(tmp_path).iterdir()) == []
    assert await is_had(backplane, objects, ref, source)
    await expected.stop()


async def test_a_label_that_can_be_no_subject_is_stored_all_the_same(backplane: NatsBackplane, tmp_path: Path) -> None:
    objects, source = backplane.objects(WEIGHTS), a_file(tmp_path, size=1000)
    ref = await objects.put(source, "a label > with *, and..dots.")
    assert ref.sha256 == hashlib.sha256(source.read_bytes()).hexdigest()
    assert await is_had(backplane, objects, ref, source)
