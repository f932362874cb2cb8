"""The allocator's machine: events in, commands out."""

from __future__ import annotations

from typing import TypeVar

import pytest

from builders import a_node, an_entry
from builders_round_machine import World, kinds, one
from hadare.machines.round_events import (
    AskClose,
    AskOpen,
    AskPrices,
    Closed,
    CloseFailed,
    Granted,
    GrantLeases,
    MakePlan,
    NodeRegistered,
    Opened,
    OpenFailed,
    Planned,
    Quoted,
    QuoteFailed,
    RoundStored,
    StoreHead,
    StoreNodeStatus,
    StoreRound,
    TellTaken,
    Warn,
)
from hadare.machines.round_phases import Pace, Phase, RoundSettings
from hadare.machines.rounds import RoundMachine
from hadare.model.devices import NodeState
from hadare.model.jobs import Desired, Measured, OpenRound
from hadare.model.leases import Lease
from hadare.model.plans import PriceBook
from hadare.model.rounds import AllocatorMemory, CloseAnswer, OpenAnswer
from hadare.scheduling.policies import policy_of

C = TypeVar("C")


@pytest.fixture
def world() -> World:
    """One node with a V100 and one job with a model."""
    world = World()
    world.node()
    world.job()
    world.progress()
    return world


def test_an_empty_cluster_starts_no_round() -> None:
    assert World().tick() == []


def test_a_round_goes_from_prices_to_leases_and_stores_before_it_grants(world: World) -> None:
    assert world.begin().request.round == 1
    stored = world.place(world.quote())
    assert stored.head.state == "open"
    assert len(world.store().request.jobs) == 1
    (lease,) = one(world.open(), GrantLeases).leases
    assert (lease.node, lease.devices, lease.duration_s, lease.base_version) == ("n1", (0,), 10.0, 0)


def test_a_plan_is_written_whole_before_anything_of_it_is_asked_for(world: World) -> None:
    world.begin()
    wish = world.quote()
    plan, memory = policy_of(wish.policy).plan(wish.snapshot, wish.memory)
    commands = world.send(Planned(at=0.0, plan=plan, memory=memory))
    assert AskOpen not in kinds(commands)
    assert GrantLeases not in kinds(commands)
    assert kinds(commands)[0] is StoreRound


def test_pricing_is_told_what_the_plan_takes(world: World) -> None:
    world.begin()
    wish = world.quote()
    plan, memory = policy_of(wish.policy).plan(wish.snapshot, wish.memory)
    taken = one(world.send(Planned(at=0.0, plan=plan, memory=memory)), TellTaken).taken
    assert [(cell.node, cell.type, cell.taken) for cell in taken.cells] == [("n1", "V100", 1)]


def test_an_answer_of_another_round_is_ignored(world: World) -> None:
    world.begin()
    assert world.send(Quoted(at=0.0, round=7, book=PriceBook(round=7))) == []
    assert world.machine.phase is Phase.PLANNING


def test_a_quote_that_comes_twice_is_placed_once(world: World) -> None:
    world.begin()
    world.quote()
    assert world.send(Quoted(at=0.0, round=1, book=PriceBook(round=1))) == []


def test_without_any_prices_the_round_waits_and_asks_again_under_the_same_number(world: World) -> None:
    world.begin()
    assert kinds(world.send(QuoteFailed(at=0.0, round=1, reason="nobody serves"))) == [Warn]
    assert world.tick(0.5) == []
    assert one(world.tick(1.5), AskPrices).request.round == 1


def test_with_pricing_away_the_last_prices_are_used() -> None:
    world = World(RoundMachine(RoundSettings(epoch=2, round_s=10.0)))
    world.machine.recover(None, None, [], PriceBook(round=5), 0.0)
    world.node()
    world.job()
    world.progress()
    world.begin()
    commands = world.send(QuoteFailed(at=0.0, round=1, reason="no answer"))
    assert one(commands, MakePlan).snapshot.prices.round == 5


def test_a_tracker_that_cannot_be_asked_is_asked_again(world: World) -> None:
    world.begin()
    world.place(world.quote())
    world.store()
    world.send(OpenFailed(at=0.0, round=1, reason="no answer"))
    assert kinds(world.tick(1.1)) == [AskOpen]


def test_jobs_that_the_tracker_refuses_get_no_lease(world: World) -> None:
    world.begin()
    world.place(world.quote())
    world.store()
    refused = OpenAnswer(round=1, refused={"job-a": "the job is cancelled"})
    commands = world.send(Opened(at=0.0, answer=refused))
    assert GrantLeases not in kinds(commands)
    assert world.machine.phase is Phase.IDLE


def test_a_round_ends_as_soon_as_progress_shows_every_job_closed(world: World) -> None:
    world.run_to_grant()
    world.beat()
    commands = world.progress(version=1, steps=100, closed_round=1)
    assert one(commands, StoreHead).head.state == "closed"


def test_the_next_round_starts_from_the_version_that_progress_shows(world: World) -> None:
    world.run_to_grant()
    world.progress(version=1, steps=100, closed_round=1)
    wish = one(world.send(Quoted(at=0.0, round=2, book=PriceBook(round=2))), MakePlan)
    assert wish.snapshot.jobs[0].steps_left == 900
    stored = world.place(wish)
    assert stored.leases[0].leases[0].base_version == 1


def test_a_round_is_closed_when_its_leases_and_the_grace_are_over(world: World) -> None:
    world.run_to_grant()
    world.beat()
    assert AskClose not in kinds(world.tick(11.9))
    assert one(world.tick(12.0), AskClose).request.round == 1


def test_a_close_that_was_not_answered_is_asked_again(world: World) -> None:
    world.run_to_grant()
    world.tick(12.0)
    world.send(CloseFailed(at=12.0, round=1, reason="no answer"))
    assert AskClose in kinds(world.tick(13.1))


def test_a_slow_consolidation_holds_up_the_others_for_a_bounded_time_only(world: World) -> None:
    world.run_to_grant()
    world.tick(12.0)
    world.send(Closed(at=12.0, answer=CloseAnswer(round=1, pending=("job-a",))))
    assert world.machine.phase is Phase.SETTLING
    commands = world.tick(42.1)
    assert one(commands, StoreHead).head.state == "closed"


def ledger(*outcomes: str) -> OpenRound:
    entries = tuple(an_entry(fork, outcome=outcome) for fork, outcome in enumerate(outcomes))
    return OpenRound(round=1, epoch=1, base_version=0, forks=entries)


def test_a_refused_lease_is_withdrawn_at_once_and_the_round_goes_on_without_it(world: World) -> None:
    (lease,) = world.run_to_grant().leases
    world.progress(open=ledger("expected"))
    request = one(
        world.send(Granted(at=0.1, key=lease.key, accepted=False, reason="device 0 is busy")), AskClose
    ).request
    assert request.only_withdrawn
    assert request.withdrawn == {"job-a.1.0.0": "not granted: device 0 is busy"}


def test_what_is_withdrawn_is_asked_again_until_the_ledger_shows_it(world: World) -> None:
    (lease,) = world.run_to_grant().leases
    world.progress(open=ledger("expected"))
    world.send(Granted(at=0.1, key=lease.key, accepted=False, reason="busy"))
    assert AskClose not in kinds(world.tick(0.5))
    assert one(world.tick(1.2), AskClose).request.only_withdrawn
    world.progress(open=ledger("missing"))
    assert AskClose not in kinds(world.tick(3.0))


def test_a_grant_without_an_answer_is_no_refusal_and_is_sent_again_for_the_time_that_is_left(world: World) -> None:
    (lease,) = world.run_to_grant().leases
    world.progress(open=ledger("expected"))
    assert AskClose not in kinds(world.send(Granted(at=5.0, key=lease.key, accepted=False, reached=False)))
    (again,) = one(world.tick(6.1), GrantLeases).leases
    assert again.key == lease.key
    assert again.duration_s == pytest.approx(lease.duration_s - 6.1)
    assert GrantLeases not in kinds(world.tick(6.3))


def test_a_grant_that_was_accepted_after_all_is_not_sent_again(world: World) -> None:
    (lease,) = world.run_to_grant().leases
    world.send(Granted(at=5.0, key=lease.key, accepted=False, reached=False))
    world.send(Granted(at=5.1, key=lease.key, accepted=True, incarnation="i1"))
    assert GrantLeases not in kinds(world.tick(6.1))


def test_the_forks_of_an_agent_that_was_started_again_are_not_waited_for(world: World) -> None:
    (lease,) = world.run_to_grant().leases
    world.progress(open=ledger("expected"))
    world.send(Granted(at=0.1, key=lease.key, accepted=True, incarnation="i1"))
    restarted = NodeRegistered(at=4.0, node="n1", inventory=a_node("n1", incarnation="i2"))
    assert one(world.send(restarted), AskClose).request.withdrawn == {"job-a.1.0.0": "its node agent was started again"}


def test_a_lease_that_the_new_life_of_an_agent_has_taken_goes_on(world: World) -> None:
    (lease,) = world.run_to_grant().leases
    world.progress(open=ledger("expected"))
    world.send(Granted(at=0.1, key=lease.key, accepted=True, incarnation="i2"))
    commands = world.send(NodeRegistered(at=4.0, node="n1", inventory=a_node("n1", incarnation="i2")))
    assert AskClose not in kinds(commands)


def test_a_job_that_is_left_in_a_past_round_has_it_closed_though_no_round_follows(world: World) -> None:
    world.run_to_grant()
    world.progress(open=ledger("expected"))
    world.tick(12.1)
    world.send(Closed(at=12.2, answer=CloseAnswer(round=1, pending=("job-a",))))
    one(world.tick(60.0), StoreHead)  # settling is over: the rounds go on without the job
    one(world.tick(62.0), AskPrices)
    assert not world.place(world.quote(2)).leases
    world.send(RoundStored(at=62.0, round=2))
    request = one(world.tick(64.0), AskClose).request
    assert (request.round, request.only_withdrawn) == (2, False)
    assert AskClose not in kinds(world.tick(65.0))


def test_rounds_that_bring_nothing_follow_one_another_ever_more_slowly() -> None:
    pace = Pace(RoundSettings(epoch=1, round_s=10.0, retry_s=1.0))
    pace.version_made()
    assert [pace.round_ended() for _ in range(6)] == [0.0, 1.0, 2.0, 4.0, 8.0, 10.0]
    pace.version_made()
    assert pace.round_ended() == 0.0


def test_a_job_without_a_model_is_not_placed_and_the_plan_says_so() -> None:
    world = World()
    world.node()
    world.job()
    world.progress(version=-1, reason="its initial model is being built on n1")
    world.begin()
    stored = world.place(world.quote())
    assert stored.head.forks == 0
    (decision,) = stored.pages[0].decisions
    assert (decision.code, decision.message) == ("not_ready", "its initial model is being built on n1")


def test_a_paused_job_is_not_placed_and_the_plan_says_so() -> None:
    world = World()
    world.node()
    world.job(desired=Desired.PAUSED)
    world.progress()
    world.begin()
    assert world.place(world.quote()).pages[0].decisions[0].code == "paused"


def test_with_all_nodes_lost_jobs_wait_with_the_reason(world: World) -> None:
    commands = world.tick(60.0)
    assert one(commands, StoreNodeStatus).status.state is NodeState.LOST
    assert isinstance(commands[-1], AskPrices)
    assert world.place(world.quote()).pages[0].decisions[0].code == "no_nodes"


def test_nothing_new_means_no_new_round() -> None:
    world = World()
    world.job()
    world.progress()
    world.begin()
    world.place(world.quote())
    world.send(RoundStored(at=0.0, round=1))
    assert world.tick(5.0) == []


def test_a_job_that_is_cancelled_while_the_plan_is_made_gets_no_lease(world: World) -> None:
    world.begin()
    wish = world.quote()
    world.job(desired=Desired.CANCELLED)
    assert world.place(wish).head.forks == 0


def test_an_arrival_keeps_its_time_over_rounds_and_restarts() -> None:
    world = World()
    world.at = 100.0
    world.node()
    world.job()
    world.progress()
    arrivals = world.begin().request.arrivals
    restarted = RoundMachine(RoundSettings(epoch=2, round_s=10.0))
    stored = world.place(world.quote())
    restarted.recover(stored.head, stored.memory, [], None, 5.0)
    assert restarted.clock_s(5.0) == pytest.approx(stored.head.clock_s)
    assert stored.memory.arrivals == arrivals


def recovered_from(stored: StoreRound, at: float = 0.0) -> World:
    restarted = RoundMachine(RoundSettings(epoch=2, round_s=10.0, grace_s=2.0))
    leases: list[Lease] = [lease for node in stored.leases for lease in node.leases]
    restarted.recover(stored.head, stored.memory, leases, PriceBook(round=1), at)
    return World(restarted)


def test_an_open_round_is_taken_up_after_a_restart_with_its_own_epoch(world: World) -> None:
    world.begin()
    stored = world.place(world.quote())
    later = recovered_from(stored)
    request = one(later.tick(0.1), AskOpen).request
    assert (request.round, request.epoch) == (1, 1)
    (lease,) = one(later.open(), GrantLeases).leases
    assert lease == stored.leases[0].leases[0]


def test_a_closed_round_is_not_taken_up_again(world: World) -> None:
    world.run_to_grant()
    head = one(world.progress(version=1, steps=100, closed_round=1), StoreHead).head
    restarted = RoundMachine(RoundSettings(epoch=2))
    restarted.recover(head, AllocatorMemory(round=1), [], None, 0.0)
    assert restarted.phase is Phase.IDLE


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"policy": "hadare"}, "throughput"),
        ({"policy": "hadar"}, "completion_times"),
        ({"policy": "hadar", "utility": "makespan"}, "makespan"),
    ],
)
def test_jobs_that_name_no_utility_are_priced_and_planned_by_the_policys_or_the_operators(
    settings: dict[str, str], wanted: str
) -> None:
    world = World(RoundMachine(RoundSettings(epoch=1, **settings)))
    world.node()
    world.job()
    world.progress()
    assert world.begin().request.utility == wanted
    assert [job.utility for job in world.quote().snapshot.jobs] == [wanted]


def test_a_memory_of_another_policy_is_not_used(world: World) -> None:
    world.begin()
    stored = world.place(world.quote())
    other = RoundMachine(RoundSettings(epoch=2, policy="hadar"))
    memory = AllocatorMemory(round=1, policy="hadare", memory={"waited": {"job-a": 5}})
    other.recover(stored.head, memory, [], PriceBook(round=1), 0.0)
    later = World(other)
    later.node()
    later.job()
    later.progress()
    later.begin()
    assert later.quote(2).memory == {}


def test_a_fork_keeps_the_device_on_which_its_job_is_warm() -> None:
    world = World()
    world.node("n1", "V100", "V100")
    world.job("job-a", max_forks=1)
    world.job("job-b", max_forks=1)
    world.progress("job-a")
    world.progress("job-b")
    world.begin()
    first = world.place(world.quote())
    held = {lease.key.job_id: lease.devices for node in first.leases for lease in node.leases}
    world.store()
    world.open(1, "job-a", "job-b")
    world.progress("job-a", version=1, closed_round=1)
    world.progress("job-b", version=1, closed_round=1)
    second = world.place(one(world.send(Quoted(at=0.0, round=2, book=PriceBook(round=2))), MakePlan))
    assert {lease.key.job_id: lease.devices for node in second.leases for lease in node.leases} == held


def test_only_the_fastest_fork_evaluates_a_version_whose_metrics_are_missing() -> None:
    world = World()
    world.node("n1", "V100")
    world.node("n2", "K80")
    world.job()
    world.progress(version=3, metrics_version=2, rounds=3, steps=100, closed_round=0)
    world.begin()
    stored = world.place(world.quote())
    evaluating = [lease.device_type for node in stored.leases for lease in node.leases if lease.evaluate_base]
    assert evaluating == ["V100"]


def test_a_round_ends_with_the_job_that_ends_if_its_boundary_is_cheaper_than_idle_devices() -> None:
    world = World(RoundMachine(RoundSettings(epoch=1, round_s=10.0, grace_s=2.0, boundary_s=0.1)))
    for number in range(4):
        world.node(f"n{number}", "V100")
    world.job("job-a", total_steps=100)
    world.job("job-b", max_forks=1)
    rate = {"V100": Measured(steps_per_s=10.0, count=5)}
    world.progress("job-a", total_steps=100, throughput=rate)
    world.progress("job-b", total_steps=100_000, throughput=rate)
    world.begin()
    stored = world.place(world.quote())
    durations = {lease.duration_s for node in stored.leases for lease in node.leases}
    (length,) = durations
    assert 1.0 <= length < 10.0
    assert stored.head.round_s == length


def test_forks_of_a_round_draw_different_data() -> None:
    world = World()
    world.node("n1", "V100", "V100", "V100")
    world.job()
    world.progress()
    world.begin()
    seeds = [lease.data_seed for node in world.place(world.quote()).leases for lease in node.leases]
    assert len(seeds) == len(set(seeds)) == 3
