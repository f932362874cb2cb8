from __future__ import annotations

import itertools

import pytest

from hadare.model.errors import Rejected
from hadare.model.events import Event, LogLine
from hadare.runtime.bus import Backplane


def an_event(entity: str, what: str = "started", **data: object) -> Event:
    return Event(kind="job", id=entity, what=what, data=data)


def a_line(job: str, text: str, round_: int = 0) -> LogLine:
    return LogLine(job_id=job, round=round_, fork=0, node="n1", text=text)


async def test_events_are_read_in_the_order_in_which_they_were_appended(plane: Backplane, other: Backplane) -> None:
    for number in range(20):
        await plane.journal.append(an_event("j1", number=number), f"m{number}")
    found = await other.journal.read("job", "j1")
    assert [stored.event.data["number"] for stored in found] == list(range(20))
    sequences = [stored.sequence for stored in found]
    assert sequences == sorted(set(sequences))
    assert all(later.at >= earlier.at for earlier, later in itertools.pairwise(found))


async def test_the_same_message_id_is_stored_once(plane: Backplane) -> None:
    for _ in range(3):
        await plane.journal.append(an_event("j1"), "same")
    assert len(await plane.journal.read("job")) == 1


async def test_reading_selects_by_kind_and_entity(plane: Backplane) -> None:
    await plane.journal.append(an_event("j1"), "1")
    await plane.journal.append(an_event("j2"), "2")
    await plane.journal.append(Event(kind="node", id="j1", what="lost"), "3")
    assert [stored.event.id for stored in await plane.journal.read("job", "j2")] == ["j2"]
    assert [stored.event.id for stored in await plane.journal.read("job")] == ["j1", "j2"]
    assert [stored.event.what for stored in await plane.journal.read("node")] == ["lost"]


async def test_reading_goes_on_after_a_sequence_and_stops_at_the_limit(plane: Backplane) -> None:
    for number in range(10):
        await plane.journal.append(an_event("j1", number=number), f"m{number}")
    first = await plane.journal.read("job", limit=4)
    rest = await plane.journal.read("job", after=first[-1].sequence)
    assert [stored.event.data["number"] for stored in first] == [0, 1, 2, 3]
    assert [stored.event.data["number"] for stored in rest] == [4, 5, 6, 7, 8, 9]
    assert await plane.journal.read("job", after=rest[-1].sequence) == []


async def test_reading_what_never_happened_is_empty(plane: Backplane) -> None:
    assert await plane.journal.read("round", "7") == []
    assert await plane.journal.logs("j1") == []


async def test_an_entity_that_cannot_be_part_of_a_subject_is_rejected(plane: Backplane) -> None:
    with pytest.raises(Rejected):
        await plane.journal.append(an_event("a.b"), "1")


async def test_log_lines_of_a_job_are_read_in_order_with_growing_numbers(plane: Backplane) -> None:
    for number in range(5):
        await plane.journal.log(a_line("j1", f"line {number}", round_=number))
    await plane.journal.log(a_line("j2", "another job's"))
    found = await plane.journal.logs("j1")
    assert [line.text for _, line in found] == [f"line {number}" for number in range(5)]
    assert [line.text for _, line in await plane.journal.logs("j1", after=found[2][0])] == ["line 3", "line 4"]
    assert [line.text for _, line in await plane.journal.logs("j1", limit=2)] == ["line 0", "line 1"]


async def test_the_same_line_printed_twice_is_two_lines(plane: Backplane) -> None:
    for _ in range(2):
        await plane.journal.log(a_line("j1", "again"))
    assert len(await plane.journal.logs("j1")) == 2
