"""Who leads, in virtual time: failover, self-fencing, and the ways of a leader's return."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from hadare.model.errors import Broken, Unavailable
from hadare.model.rounds import Leader
from hadare.runtime.bus import Entry
from hadare.runtime.election import Leadership, Term
from hadare.runtime.memory import MemoryHub
from hadare.runtime.memory_stores import MemoryTable
from hadare.runtime.virtual import run_virtually
from hadare.wire.subjects import ALLOCATOR_LEADER

TERM = Term(lease_s=2.5, renew_s=0.6, poll_s=0.4, margin_s=0.4, return_s=1.0)


@dataclass
class Candidate:
    """A process with its own way to the store, which can be cut, and can lose acknowledgements."""

    hub: MemoryHub
    name: str
    cut: bool = False
    unacknowledged: bool = False
    epochs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._table: MemoryTable[Leader] = self.hub.connect(self.name).table(ALLOCATOR_LEADER)
        self.leadership = Leadership(self, self.name, TERM)  # type: ignore[arg-type]
        self.task = asyncio.get_running_loop().create_task(self._live())

    async def _live(self) -> None:
        self.epochs.append(await self.leadership.acquire())
        await self.leadership.keep()

    async def get(self, name: str) -> Entry[Leader] | None:
        await self._reach()
        return await self._table.get(name)

    async def create(self, name: str, record: Leader) -> int:
        await self._reach()
        return await self._table.create(name, record)

    async def update(self, name: str, record: Leader, revision: int) -> int:
        await self._reach()
        done = await self._table.update(name, record, revision)
        if self.unacknowledged:
            raise Unavailable("no acknowledgement")
        return done

    async def _reach(self) -> None:
        if self.cut:
            await asyncio.sleep(0.2)
            raise Unavailable("cut off")

    def is_sure(self) -> bool:
        return asyncio.get_running_loop().time() < self.leadership._sure_until


def play(scene: Callable[[MemoryHub], Awaitable[None]]) -> None:
    async def main() -> None:
        await scene(MemoryHub())
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    run_virtually(main())


def test_the_first_leads_at_once_and_the_second_stands_by_for_as_long_as_it_lives() -> None:
    async def scene(hub: MemoryHub) -> None:
        first = Candidate(hub, "a")
        await asyncio.sleep(0.1)
        second = Candidate(hub, "b")
        await asyncio.sleep(120.0)
        assert (first.epochs, second.epochs) == ([1], [])
        assert first.is_sure()

    play(scene)


def test_when_the_leader_is_killed_the_other_leads_with_a_higher_epoch_within_the_lease_and_two_polls() -> None:
    async def scene(hub: MemoryHub) -> None:
        first, second = Candidate(hub, "a"), Candidate(hub, "b")
        await asyncio.sleep(30.0)
        first.task.cancel()
        await asyncio.sleep(TERM.lease_s + 2 * TERM.poll_s)
        assert second.epochs == [2]

    play(scene)


def test_a_leader_that_cannot_renew_is_unsure_before_another_can_lead() -> None:
    async def scene(hub: MemoryHub) -> None:
        first, second = Candidate(hub, "a"), Candidate(hub, "b")
        await asyncio.sleep(30.0)
        first.cut = True
        while not second.epochs:
            await asyncio.sleep(0.01)
            assert not (second.epochs and first.is_sure()), "two are sure at once"
        first.cut = False
        with pytest.raises(Broken, match="epoch 1 is over: b at epoch 2 leads"):
            await first.task

    play(scene)


def test_a_store_that_was_away_for_everybody_leaves_the_leader_in_its_reign() -> None:
    async def scene(hub: MemoryHub) -> None:
        first, second = Candidate(hub, "a"), Candidate(hub, "b")
        await asyncio.sleep(30.0)
        first.cut = second.cut = True
        await asyncio.sleep(60.0)
        assert not first.is_sure()
        first.cut = second.cut = False
        await asyncio.sleep(30.0)
        assert (first.epochs, second.epochs) == ([1], [])
        assert first.is_sure()

    play(scene)


def test_a_renewal_that_landed_without_an_acknowledgement_deposes_nobody() -> None:
    async def scene(hub: MemoryHub) -> None:
        first, second = Candidate(hub, "a"), Candidate(hub, "b")
        await asyncio.sleep(30.0)
        first.unacknowledged = True
        await asyncio.sleep(1.0)
        first.unacknowledged = False
        await asyncio.sleep(10.0)
        assert (first.is_sure(), second.epochs) == (True, [])

    play(scene)


def test_a_process_that_was_started_again_waits_for_signs_of_life_and_not_for_the_lease() -> None:
    async def scene(hub: MemoryHub) -> None:
        first = Candidate(hub, "a")
        await asyncio.sleep(30.0)
        first.task.cancel()
        again = Candidate(hub, "a")
        await asyncio.sleep(TERM.return_s + TERM.poll_s)
        assert again.epochs == [2]

    play(scene)


def test_two_processes_of_one_name_do_not_depose_one_another() -> None:
    async def scene(hub: MemoryHub) -> None:
        first = Candidate(hub, "a")
        await asyncio.sleep(1.0)
        twin = Candidate(hub, "a")
        await asyncio.sleep(60.0)
        assert (first.epochs, twin.epochs) == ([1], [])

    play(scene)


def test_a_leader_that_leaves_in_order_is_followed_at_the_next_look() -> None:
    async def scene(hub: MemoryHub) -> None:
        first, second = Candidate(hub, "a"), Candidate(hub, "b")
        await asyncio.sleep(30.0)
        first.task.cancel()
        await first.leadership.release()
        await asyncio.sleep(TERM.poll_s + 0.01)
        assert second.epochs == [2]

    play(scene)


def test_who_acts_waits_until_the_lease_is_renewed() -> None:
    async def scene(hub: MemoryHub) -> None:
        first = Candidate(hub, "a")
        await asyncio.sleep(30.0)
        first.cut = True
        await asyncio.sleep(10.0)
        acting = asyncio.ensure_future(first.leadership.sure())
        await asyncio.sleep(10.0)
        assert not acting.done()
        first.cut = False
        await asyncio.sleep(2.0)
        assert acting.done()

    play(scene)
