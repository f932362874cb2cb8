from dataclasses import replace

from builders_scheduling import FIVE_UNEQUAL, a_job, a_node
from hadare.machines.prices import Announce, Command, PriceMachine, QuoteAsked, Recovered, Reply, Store, Taken
from hadare.model.plans import GangMember, JobView, NodeView, PriceBook


def quote(
    number: int, jobs: tuple[JobView, ...] = (), nodes: tuple[NodeView, ...] = FIVE_UNEQUAL, revision: int = 0
) -> QuoteAsked:
    return QuoteAsked(
        at=0.0, round=number, now_s=0.0, round_s=360.0, nodes=nodes, jobs=jobs or (a_job(),), revision=revision
    )


def reply(commands: list[Command]) -> PriceBook:
    return next(command.book for command in commands if isinstance(command, Reply))


def test_a_new_round_is_stored_before_it_is_answered_and_announced() -> None:
    commands = PriceMachine().handle(quote(1))
    assert [type(command) for command in commands] == [Store, Reply, Announce]
    assert {command.book for command in commands} == {reply(commands)}


def test_the_same_round_gets_the_same_book_whatever_came_since() -> None:
    machine = PriceMachine()
    first = reply(machine.handle(quote(1)))
    again = machine.handle(quote(1, jobs=(a_job("b", priority=9.0),)))
    assert again == [Reply(first)]


def test_a_cluster_that_has_changed_since_is_priced_anew_once() -> None:
    machine = PriceMachine()
    machine.handle(quote(1))
    grown = quote(1, nodes=(*FIVE_UNEQUAL, a_node("n9", V100=1)), revision=1)
    anew = machine.handle(grown)
    assert "n9" in {curve.node for curve in reply(anew).curves}
    assert machine.handle(grown) == machine.handle(quote(1)) == [Reply(reply(anew))]


def test_the_first_revision_of_the_next_round_is_newer_than_any_of_the_last() -> None:
    machine = PriceMachine()
    machine.handle(quote(1, revision=3))
    assert reply(machine.handle(quote(2))).round == 2


def test_an_older_round_is_answered_from_the_newest() -> None:
    machine = PriceMachine()
    machine.handle(quote(1))
    newest = reply(machine.handle(quote(2)))
    assert machine.handle(quote(1)) == [Reply(newest)]
    assert newest.round == 2


def test_an_unchanged_market_is_not_announced_again() -> None:
    machine = PriceMachine()
    machine.handle(quote(1))
    assert [type(command) for command in machine.handle(quote(2))] == [Store, Reply]


def test_a_material_change_is_announced() -> None:
    machine = PriceMachine()
    machine.handle(quote(1))
    commands = machine.handle(quote(2, jobs=(a_job(priority=2.0),)))
    assert Announce(reply(commands)) in commands


def test_a_node_that_came_is_announced() -> None:
    machine = PriceMachine()
    machine.handle(quote(1))
    commands = machine.handle(quote(2, nodes=(*FIVE_UNEQUAL, a_node("n9", V100=1))))
    assert Announce(reply(commands)) in commands


def test_what_a_plan_took_is_kept_with_the_book() -> None:
    machine = PriceMachine()
    machine.handle(quote(1, nodes=(a_node("n1", V100=4),)))
    commands = machine.handle(taken(1, GangMember(node="n1", type="V100", count=3)))
    assert [type(command) for command in commands] == [Store, Announce]
    assert commands[0].book.curves[0].taken == 3


def test_what_was_taken_counts_once() -> None:
    machine = PriceMachine()
    machine.handle(quote(1))
    event = taken(1, GangMember(node="n0", type="V100", count=1))
    machine.handle(event)
    assert machine.handle(event) == []


def test_what_an_older_round_took_is_ignored() -> None:
    machine = PriceMachine()
    machine.handle(quote(2))
    assert machine.handle(taken(1, GangMember(node="n0", type="V100", count=1))) == []


def test_members_of_one_cell_add_up_and_never_exceed_it() -> None:
    machine = PriceMachine()
    machine.handle(quote(1, nodes=(a_node("n1", V100=2),)))
    one = GangMember(node="n1", type="V100", count=1)
    machine.handle(taken(1, one, one, one))
    assert machine.book is not None
    assert machine.book.curves[0].taken == 2


def test_a_restarted_machine_gives_the_book_that_it_had_given() -> None:
    before = PriceMachine()
    book = reply(before.handle(quote(3)))
    after = PriceMachine()
    after.handle(Recovered(at=0.0, book=book))
    assert after.handle(quote(3, jobs=(a_job("b", priority=9.0),))) == [Reply(book)]


def test_recovery_never_goes_back_behind_what_was_quoted() -> None:
    machine = PriceMachine()
    book = reply(machine.handle(quote(3)))
    machine.handle(Recovered(at=0.0, book=replace(book, round=2)))
    assert machine.book == book


def test_a_first_start_finds_nothing_to_recover() -> None:
    machine = PriceMachine()
    assert machine.handle(Recovered(at=0.0, book=None)) == []
    assert machine.book is None


def taken(number: int, *members: GangMember) -> Taken:
    return Taken(at=0.0, round=number, occupancy=members)
