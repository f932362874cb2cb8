"""The next round is priced and planned while the versions of the last are made; the plan counts only if it is true."""

from __future__ import annotations

import pytest

from builders import an_entry, an_object
from builders_round_machine import World, kinds, one
from hadare.machines.round_events import (
    AskPrices,
    MakePlan,
    Planned,
    Quoted,
    QuoteFailed,
    RoundCommand,
    StoreHead,
    StoreRound,
    Warn,
)
from hadare.machines.round_phases import RoundSettings
from hadare.machines.rounds import RoundMachine
from hadare.model.jobs import LedgerEntry, OpenRound
from hadare.model.plans import PriceBook
from hadare.scheduling.policies import policy_of

BROUGHT = an_entry(outcome="received", steps=100, object=an_object("fork"))
MISSING = an_entry(outcome="missing", reason="killed")
MADE = {"version": 1, "steps": 100, "rounds": 1, "closed_round": 1}


def ledger(*entries: LedgerEntry) -> OpenRound:
    return OpenRound(round=1, epoch=1, base_version=0, forks=entries)


def quoted(number: int = 2, revision: int = 0) -> Quoted:
    return Quoted(at=0.0, round=number, book=PriceBook(round=number), revision=revision)


def planned(wish: MakePlan) -> Planned:
    plan, memory = policy_of(wish.policy).plan(wish.snapshot, wish.memory)
    return Planned(at=0.0, plan=plan, memory=memory, revision=wish.revision)


@pytest.fixture
def world() -> World:
    """One node with a V100, and one job that trains on it."""
    world = World()
    world.node()
    world.job()
    world.progress()
    world.run_to_grant()
    return world


@pytest.fixture
def foreseen(world: World) -> MakePlan:
    """What is asked for while the version is made."""
    one(world.progress(open=ledger(BROUGHT)), AskPrices)
    return one(world.send(quoted()), MakePlan)


def test_prices_are_asked_for_as_soon_as_the_last_fork_is_in(world: World) -> None:
    assert world.progress(open=ledger(an_entry(outcome="expected"))) == []
    request = one(world.progress(open=ledger(BROUGHT)), AskPrices).request
    assert (request.round, request.revision) == (2, 0)


def test_a_round_that_brings_nothing_is_not_planned_beyond(world: World) -> None:
    assert AskPrices not in kinds(world.progress(open=ledger(MISSING)))


def test_with_a_job_whose_forks_still_train_nothing_is_foreseen() -> None:
    world = World()
    world.node("n1", "V100", "V100")
    for job in ("job-a", "job-b"):
        world.job(job, max_forks=1)
        world.progress(job)
    world.begin()
    world.place(world.quote())
    world.store()
    world.open(1, "job-a", "job-b")
    world.progress("job-b", open=ledger(an_entry(outcome="expected")))
    assert AskPrices not in kinds(world.progress("job-a", open=ledger(BROUGHT)))
    assert AskPrices in kinds(world.progress("job-b", open=ledger(BROUGHT)))


def test_the_plan_counts_on_the_steps_that_were_brought(foreseen: MakePlan) -> None:
    (job,) = foreseen.snapshot.jobs
    assert (job.steps_left, job.unready) == (900, "")


def test_a_plan_that_was_made_in_time_is_carried_out_at_once(world: World, foreseen: MakePlan) -> None:
    assert world.send(planned(foreseen)) == []
    commands = world.progress(**MADE)
    assert kinds(commands)[0] is StoreHead
    assert kinds(commands).index(StoreRound) > 0
    assert AskPrices not in kinds(commands)
    (lease,) = one(commands, StoreRound).leases[0].leases
    assert (lease.key.round, lease.base_version) == (2, 1)


def test_a_version_that_comes_first_waits_for_the_plan_that_is_under_way(world: World, foreseen: MakePlan) -> None:
    commands = world.progress(**MADE)
    assert kinds(commands) == [StoreHead, *kinds(commands)[1:]]
    assert not {AskPrices, MakePlan, StoreRound} & set(kinds(commands))
    assert one(world.send(planned(foreseen)), StoreRound).head.round == 2


def test_prices_that_are_still_under_way_are_used_for_what_is_there_then(world: World) -> None:
    one(world.progress(open=ledger(BROUGHT)), AskPrices)
    assert AskPrices not in kinds(world.progress(**{**MADE, "steps": 70}))
    wish = one(world.send(quoted()), MakePlan)
    assert wish.snapshot.jobs[0].steps_left == 930
    assert one(world.send(planned(wish)), StoreRound).head.round == 2


def priced_anew(commands: list[RoundCommand]) -> None:
    request = one(commands, AskPrices).request
    assert (request.round, request.revision) == (2, 1)
    assert StoreRound not in kinds(commands)


def test_a_fork_that_was_rejected_makes_the_plan_void(world: World, foreseen: MakePlan) -> None:
    world.send(planned(foreseen))
    priced_anew(world.progress(**{**MADE, "steps": 40}))
    wish = one(world.send(quoted(revision=1)), MakePlan)
    assert wish.snapshot.jobs[0].steps_left == 960
    assert one(world.send(planned(wish)), StoreRound).head.round == 2


def test_a_node_that_came_meanwhile_makes_the_plan_void(world: World, foreseen: MakePlan) -> None:
    world.send(planned(foreseen))
    world.node("n2", "V100")
    priced_anew(world.progress(**MADE))
    wish = one(world.send(quoted(revision=1)), MakePlan)
    assert [node.node for node in wish.snapshot.nodes] == ["n1", "n2"]


def test_a_job_that_came_meanwhile_makes_the_plan_void(world: World, foreseen: MakePlan) -> None:
    world.send(planned(foreseen))
    world.job("job-b")
    world.progress("job-b")
    priced_anew(world.progress(**MADE))


def test_a_void_plan_that_comes_late_is_not_carried_out(world: World, foreseen: MakePlan) -> None:
    world.node("n2", "V100")
    world.progress(**MADE)
    priced_anew(world.send(planned(foreseen)))
    assert world.send(planned(foreseen)) == []
    assert world.send(quoted(revision=0)) == []
    assert MakePlan in kinds(world.send(quoted(revision=1)))


def test_what_was_foreseen_is_dropped_if_the_round_brings_nothing_after_all(world: World, foreseen: MakePlan) -> None:
    world.send(planned(foreseen))
    world.progress(closed_round=1, barren=1)
    request = one(world.tick(1.1), AskPrices).request
    assert (request.round, request.revision) == (2, 1)


def test_with_pricing_away_the_next_round_is_foreseen_at_the_last_prices(world: World) -> None:
    one(world.progress(open=ledger(BROUGHT)), AskPrices)
    commands = world.send(QuoteFailed(at=0.0, round=2, reason="no answer"))
    assert kinds(commands) == [Warn, MakePlan]
    world.send(planned(one(commands, MakePlan)))
    assert StoreRound in kinds(world.progress(**MADE))


def test_an_open_round_that_is_taken_up_again_without_prices_is_foreseen_in_vain_once() -> None:
    first = World()
    first.node()
    first.job()
    first.progress()
    first.begin()
    stored = first.place(first.quote())
    leases = [lease for node in stored.leases for lease in node.leases]
    world = World(RoundMachine(RoundSettings(epoch=1, round_s=10.0, grace_s=2.0)))
    world.machine.recover(stored.head, stored.memory, leases, None, 0.0)
    world.node()
    world.job()
    world.progress()
    world.tick()
    world.open()
    one(world.progress(open=ledger(BROUGHT)), AskPrices)
    assert world.send(QuoteFailed(at=0.0, round=2, reason="no answer")) == []
    assert world.progress(open=ledger(BROUGHT), reason="still being made") == []
    assert one(world.progress(**MADE), AskPrices).request.revision == 1
