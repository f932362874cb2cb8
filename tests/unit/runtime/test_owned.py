"""Records with one writer: what another has written is noticed, what is one's own is not mistaken for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from hadare.model.devices import NodeState, NodeStatus
from hadare.model.errors import Broken, Unavailable
from hadare.runtime.memory import MemoryHub
from hadare.runtime.memory_stores import MemoryTable
from hadare.runtime.owned import OwnTable
from hadare.runtime.shell import Questions
from hadare.runtime.virtual import run_virtually
from hadare.wire.subjects import NODE_STATES

READY = NodeStatus(node="n1", state=NodeState.READY)
LOST = NodeStatus(node="n1", state=NodeState.LOST)


def play(scene: Callable[[MemoryTable[NodeStatus]], Awaitable[None]]) -> None:
    async def main() -> None:
        await scene(MemoryHub().connect("test").table(NODE_STATES))

    run_virtually(main())


class Forgetful(MemoryTable[NodeStatus]):
    """A table whose first acknowledgement is lost."""

    def __init__(self, hub: MemoryHub) -> None:
        super().__init__(hub, NODE_STATES)
        self.lost = 0

    async def create(self, name: str, record: NodeStatus) -> int:
        done = await super().create(name, record)
        if not self.lost:
            self.lost += 1
            raise Unavailable("no acknowledgement")
        return done


def test_what_is_written_can_be_written_again_and_deleted() -> None:
    async def scene(table: MemoryTable[NodeStatus]) -> None:
        mine = OwnTable(table, "node state")
        await mine.write("n1", READY)
        await mine.write("n1", LOST)
        found = await table.get("n1")
        assert found is not None
        assert found.record == LOST
        await mine.delete("n1")
        assert await table.get("n1") is None
        await mine.write("n1", READY)

    play(scene)


def test_a_record_that_a_successor_has_written_is_not_overwritten() -> None:
    async def scene(table: MemoryTable[NodeStatus]) -> None:
        old, new = OwnTable(table, "node state"), OwnTable(table, "node state")
        await old.write("n1", READY)
        await new.load()
        await new.write("n1", LOST)
        with pytest.raises(Broken, match="another process has written node state 'n1'"):
            await old.write("n1", READY)
        with pytest.raises(Broken):
            await old.delete("n1")
        found = await table.get("n1")
        assert found is not None
        assert found.record == LOST

    play(scene)


def test_a_record_that_was_not_loaded_is_not_overwritten() -> None:
    async def scene(table: MemoryTable[NodeStatus]) -> None:
        await table.put("n1", LOST)
        with pytest.raises(Broken):
            await OwnTable(table, "node state").write("n1", READY)

    play(scene)


def test_some_records_are_loaded_by_name_and_those_that_do_not_exist_are_left_out() -> None:
    async def scene(table: MemoryTable[NodeStatus]) -> None:
        await table.put("n1", LOST)
        mine = OwnTable(table, "node state")
        assert [entry.name for entry in await mine.load(["n1", "n2"])] == ["n1"]
        await mine.write("n1", READY)
        await mine.write("n2", READY)

    play(scene)


def test_a_write_of_ones_own_whose_acknowledgement_was_lost_is_found_again() -> None:
    async def main() -> None:
        mine = OwnTable(Forgetful(MemoryHub()), "node state")
        await mine.write("n1", READY)
        await mine.write("n1", LOST)

    run_virtually(main())


def test_questions_that_nobody_will_answer_any_more_are_refused_and_do_not_wait() -> None:
    async def main() -> None:
        questions = Questions()
        waiting = asyncio.ensure_future(questions.put(lambda _token: None))
        await asyncio.sleep(0)
        questions.close()
        with pytest.raises(Unavailable):
            await waiting
        with pytest.raises(Unavailable):
            await questions.put(lambda _token: None)

    run_virtually(main())
