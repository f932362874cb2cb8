from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from hadare.model.devices import NodeState, NodeStatus, NodeWish
from hadare.model.errors import Conflict, Rejected
from hadare.model.rounds import Leader, RoundPage
from hadare.runtime.bus import Backplane, Change
from hadare.wire.subjects import ALLOCATOR_LEADER, NODE_STATES, NODE_WISHES, ROUND_HEAD, ROUND_PAGES, VERSIONS


def a_status(node: str, reason: str = "") -> NodeStatus:
    return NodeStatus(node=node, state=NodeState.READY, reason=reason)


async def take(watch: AsyncIterator[Change[NodeStatus]], count: int) -> list[Change[NodeStatus]]:
    changes = []
    async with asyncio.timeout(15):
        while len(changes) < count:
            changes.append(await anext(watch))
    return changes


async def test_what_was_created_is_found_with_its_revision(plane: Backplane) -> None:
    table = plane.table(NODE_STATES)
    revision = await table.create("n1", a_status("n1"))
    entry = await table.get("n1")
    assert entry is not None
    assert (entry.name, entry.revision, entry.record) == ("n1", revision, a_status("n1"))


async def test_what_is_not_there_is_none(plane: Backplane) -> None:
    assert await plane.table(NODE_STATES).get("n1") is None


async def test_creating_what_exists_is_a_conflict_and_changes_nothing(plane: Backplane) -> None:
    table = plane.table(NODE_STATES)
    await table.create("n1", a_status("n1", "first"))
    with pytest.raises(Conflict):
        await table.create("n1", a_status("n1", "second"))
    entry = await table.get("n1")
    assert entry is not None
    assert entry.record.reason == "first"


async def test_what_was_deleted_can_be_created_again(plane: Backplane) -> None:
    table = plane.table(NODE_STATES)
    first = await table.create("n1", a_status("n1"))
    await table.delete("n1")
    assert await table.get("n1") is None
    assert await table.create("n1", a_status("n1", "again")) > first


async def test_an_update_at_the_current_revision_succeeds(plane: Backplane) -> None:
    table = plane.table(NODE_STATES)
    first = await table.create("n1", a_status("n1"))
    second = await table.update("n1", a_status("n1", "changed"), first)
    entry = await table.get("n1")
    assert entry is not None
    assert second > first
    assert (entry.revision, entry.record.reason) == (second, "changed")


async def test_an_update_at_an_old_revision_is_a_conflict(plane: Backplane, other: Backplane) -> None:
    table = plane.table(NODE_STATES)
    first = await table.create("n1", a_status("n1"))
    await other.table(NODE_STATES).update("n1", a_status("n1", "theirs"), first)
    with pytest.raises(Conflict):
        await table.update("n1", a_status("n1", "mine"), first)


async def test_an_update_of_what_was_deleted_is_a_conflict(plane: Backplane) -> None:
    table = plane.table(NODE_STATES)
    first = await table.create("n1", a_status("n1"))
    await table.delete("n1")
    with pytest.raises(Conflict):
        await table.update("n1", a_status("n1", "late"), first)


async def test_only_one_of_many_concurrent_creators_wins(plane: Backplane, other: Backplane) -> None:
    tables = [plane.table(NODE_STATES), other.table(NODE_STATES)]
    outcomes = await asyncio.gather(
        *(tables[i % 2].create("n1", a_status("n1", str(i))) for i in range(10)), return_exceptions=True
    )
    assert sum(isinstance(outcome, int) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 9


async def test_a_put_needs_no_revision(plane: Backplane) -> None:
    table = plane.table(NODE_STATES)
    first = await table.put("n1", a_status("n1"))
    assert await table.put("n1", a_status("n1", "again")) > first


async def test_deleting_at_an_old_revision_is_a_conflict_and_deletes_nothing(plane: Backplane) -> None:
    table = plane.table(NODE_STATES)
    first = await table.create("n1", a_status("n1"))
    await table.update("n1", a_status("n1", "newer"), first)
    with pytest.raises(Conflict):
        await table.delete("n1", first)
    assert await table.get("n1") is not None


async def test_deleting_what_is_not_there_is_no_error(plane: Backplane) -> None:
    await plane.table(NODE_STATES).delete("n1")
    assert await plane.table(NODE_STATES).entries() == []


async def test_entries_are_complete_and_sorted_by_name(plane: Backplane) -> None:
    table = plane.table(NODE_STATES)
    names = [f"n{i:03d}" for i in reversed(range(300))]
    await asyncio.gather(*(table.create(name, a_status(name)) for name in names))
    await table.delete("n007")
    found = await table.entries()
    assert [entry.name for entry in found] == sorted(set(names) - {"n007"})


async def test_entries_of_an_empty_bucket_are_an_empty_list(plane: Backplane) -> None:
    assert await plane.table(NODE_WISHES).entries() == []


async def test_families_of_one_bucket_do_not_mix(plane: Backplane) -> None:
    await plane.table(ALLOCATOR_LEADER).put("", Leader(holder="a", epoch=1))
    await plane.table(ROUND_PAGES).put("1.0", RoundPage(round=1, epoch=1, page=0, pages=1))
    assert [entry.name for entry in await plane.table(ROUND_PAGES).entries()] == ["1.0"]
    assert [entry.name for entry in await plane.table(ALLOCATOR_LEADER).entries()] == [""]
    assert await plane.table(ROUND_HEAD).entries() == []


async def test_a_name_that_cannot_be_a_key_is_rejected(plane: Backplane) -> None:
    with pytest.raises(Rejected) as refused:
        await plane.table(VERSIONS).get("job one.*")
    assert refused.value.code == 400


async def test_a_watch_gives_what_exists_then_one_marker_then_changes(plane: Backplane, other: Backplane) -> None:
    table = plane.table(NODE_STATES)
    await table.create("n1", a_status("n1"))
    await table.create("n2", a_status("n2"))
    async with aclosing(other.table(NODE_STATES).watch()) as watch:
        old = await take(watch, 3)
        assert [change.name for change in old[:2]] == ["n1", "n2"]
        assert old[2].caught_up
        await table.put("n1", a_status("n1", "changed"))
        await table.delete("n2")
        new = await take(watch, 2)
    assert new[0].entry is not None
    assert (new[0].name, new[0].entry.record.reason) == ("n1", "changed")
    assert (new[1].name, new[1].entry) == ("n2", None)
    assert not any(change.caught_up for change in [*old[:2], *new])


async def test_a_watch_of_an_empty_bucket_begins_with_the_marker(plane: Backplane) -> None:
    async with aclosing(plane.table(NODE_STATES).watch()) as watch:
        assert (await take(watch, 1))[0].caught_up
        await plane.table(NODE_STATES).create("n1", a_status("n1"))
        assert (await take(watch, 1))[0].name == "n1"


async def test_a_watch_does_not_report_what_was_deleted_before_it_began(plane: Backplane) -> None:
    table = plane.table(NODE_STATES)
    await table.create("n1", a_status("n1"))
    await table.delete("n1")
    async with aclosing(table.watch()) as watch:
        assert (await take(watch, 1))[0].caught_up


async def test_a_watch_of_one_family_ignores_the_others(plane: Backplane) -> None:
    async with aclosing(plane.table(ALLOCATOR_LEADER).watch()) as watch:
        await take(watch, 1)
        await plane.table(ROUND_PAGES).put("1.0", RoundPage(round=1, epoch=1, page=0, pages=1))
        await plane.table(ALLOCATOR_LEADER).put("", Leader(holder="a", epoch=1))
        change = (await take(watch, 1))[0]
    assert change.entry is not None
    assert change.entry.record == Leader(holder="a", epoch=1)


async def test_a_watch_sees_every_write_of_a_storm_in_order(plane: Backplane, other: Backplane) -> None:
    table = plane.table(NODE_WISHES)
    async with aclosing(other.table(NODE_WISHES).watch()) as watch:
        await take(watch, 1)
        for number in range(200):
            await table.put("n1", NodeWish(node="n1", drain=True, reason=str(number)))
        last = ""
        reasons: list[int] = []
        while last != "199":
            change = (await take(watch, 1))[0]
            assert change.entry is not None
            last = change.entry.record.reason
            reasons.append(int(last))
    assert reasons == sorted(reasons)


async def test_a_watch_that_begins_under_writes_misses_nothing(plane: Backplane, other: Backplane) -> None:
    table = plane.table(NODE_WISHES)
    for number in range(50):
        await table.put(f"n{number}", NodeWish(node=f"n{number}", drain=False))

    async def churn() -> None:
        for number in range(300):
            await table.put(f"n{number % 50}", NodeWish(node=f"n{number % 50}", drain=True, reason=str(number)))

    writing = asyncio.create_task(churn())
    seen: set[str] = set()
    async with aclosing(other.table(NODE_WISHES).watch()) as watch:
        change = (await take(watch, 1))[0]
        while not change.caught_up:
            seen.add(change.name)
            change = (await take(watch, 1))[0]
    await writing
    assert seen == {f"n{number}" for number in range(50)}


async def test_a_list_under_writes_misses_nothing(plane: Backplane, other: Backplane) -> None:
    table = plane.table(NODE_WISHES)
    names = {f"n{number}" for number in range(100)}
    await asyncio.gather(*(table.put(name, NodeWish(node=name, drain=False)) for name in names))
    stop = asyncio.Event()

    async def churn() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            await table.put(f"n{number % 100}", NodeWish(node=f"n{number % 100}", drain=True, reason=str(number)))

    writing = asyncio.create_task(churn())
    lists = [{entry.name for entry in await other.table(NODE_WISHES).entries()} for _ in range(20)]
    stop.set()
    await writing
    assert [names - found for found in lists] == [set()] * 20
