"""A gang's leases while a round runs: one rank that is lost ends the others, at once and wherever they are."""

from __future__ import annotations

from dataclasses import replace

from builders import an_entry, some_progress
from builders_leases import a_lease
from hadare.machines.round_events import EndLeases
from hadare.machines.round_grants import Grants
from hadare.machines.round_orders import Orders
from hadare.model.devices import NodeState, NodeStatus
from hadare.model.jobs import JobProgress, LedgerEntry, OpenRound
from hadare.model.leases import GangRank, Lease


def a_gang(world: int = 3, fork: int = 0) -> tuple[Lease, ...]:
    """Rank n is on node-n."""
    alone = a_lease("job-a", fork=fork)
    return tuple(
        replace(
            alone,
            node=f"node-{rank}",
            key=replace(alone.key, rank=rank),
            gang=GangRank(rank=rank, shares=(1,) * world, address="node-0:29400"),
        )
        for rank in range(world)
    )


GANG = a_gang()
SINGLE = a_lease("job-a", fork=1)


def granted(*leases: Lease) -> Grants:
    grants = Grants(leases or (*GANG, SINGLE))
    for lease in leases or (*GANG, SINGLE):
        grants.answered(lease.key, accepted=True, incarnation=f"{lease.node}-1", reason="")
    return grants


def progress(*entries: LedgerEntry, **changes: object) -> JobProgress:
    return some_progress("job-a", open=OpenRound(round=1, epoch=1, base_version=0, forks=entries), **changes)


def nodes_but(node: str, state: NodeState = NodeState.LOST) -> dict[str, NodeStatus]:
    """All nodes, of which one is not well."""
    known = {f"node-{n}": NodeStatus(node=f"node-{n}", state=NodeState.READY) for n in range(3)}
    return {**known, node: NodeStatus(node=node, state=state, reason="heartbeats are late")}


def ended(grants: Grants) -> list[str]:
    return [lease.node for lease, _ in grants.to_end()]


def test_a_refused_rank_withdraws_the_fork_by_its_first_rank_and_names_itself() -> None:
    grants = Grants((*GANG, SINGLE))
    assert grants.answered(GANG[2].key, accepted=False, incarnation="i", reason="device 0 is a T4")
    why = "rank 2 on node-2 (V100): not granted: device 0 is a T4"
    assert grants.withdrawn == {"job-a.1.0.0": why}
    assert grants.to_end() == [(GANG[0], why), (GANG[1], why)]


def test_what_is_to_be_ended_is_said_once() -> None:
    grants = granted()
    grants.look_at_nodes(nodes_but("node-1"))
    assert len(grants.to_end()) == 3
    grants.look_at_nodes(nodes_but("node-2"))
    assert grants.to_end() == []


def test_a_second_refusal_of_one_gang_is_no_news() -> None:
    grants = Grants(GANG)
    assert grants.answered(GANG[2].key, accepted=False, incarnation="i", reason="no")
    assert not grants.answered(GANG[1].key, accepted=False, incarnation="i", reason="no")


def test_an_agent_that_was_started_again_ends_the_gang_everywhere_else() -> None:
    grants = granted()
    grants.restarted("node-0", "node-0-1")
    assert ended(grants) == ["node-1", "node-2"]
    assert grants.withdrawn == {"job-a.1.0.0": "rank 0 on node-0 (V100): its node agent was started again"}


def test_a_lost_node_ends_a_gang_but_a_fork_of_its_own_may_still_report() -> None:
    grants = granted(*GANG, replace(SINGLE, node="node-1"))
    grants.look_at_nodes(nodes_but("node-1"))
    assert list(grants.withdrawn) == ["job-a.1.0.0"]


def test_a_suspect_node_ends_a_gang_only_if_its_rank_never_answered() -> None:
    suspect = nodes_but("node-1", NodeState.SUSPECT)
    answered = granted()
    answered.look_at_nodes(suspect)
    assert answered.to_end() == []
    silent = Grants(GANG)
    for lease in (GANG[0], GANG[2]):
        silent.answered(lease.key, accepted=True, incarnation="i", reason="")
    silent.look_at_nodes(suspect)
    why = "rank 1 on node-1 (V100): its node has not answered: heartbeats are late"
    assert silent.withdrawn == {"job-a.1.0.0": why}


def test_the_jobs_other_forks_go_on() -> None:
    grants = granted()
    grants.look_at_nodes(nodes_but("node-2"))
    assert "job-a.1.1.0" not in grants.withdrawn
    assert ended(grants) == ["node-0", "node-1", "node-2"]


def test_a_gang_that_the_tracker_has_given_up_is_ended_with_the_trackers_reason() -> None:
    grants = granted()
    grants.look_at(progress(an_entry(0), an_entry(1)))
    assert grants.to_end() == []
    grants.look_at(progress(an_entry(0, outcome="missing", reason="rank 1 on node-1 (K80): killed"), an_entry(1)))
    assert {reason for _, reason in grants.to_end()} == {"rank 1 on node-1 (K80): killed"}


def test_a_gang_whose_round_is_lost_is_ended_though_its_ledger_was_never_seen() -> None:
    grants = granted()
    grants.look_at(some_progress("job-a", closed_round=1, round_steps=0))
    assert len(grants.to_end()) == 3


def test_a_gang_that_has_brought_its_steps_is_left_alone() -> None:
    grants = granted()
    grants.look_at(progress(an_entry(0, outcome="received", steps=9), an_entry(1)))
    grants.look_at(some_progress("job-a", closed_round=1, round_steps=9))
    assert grants.to_end() == []


def test_grants_of_a_dead_gang_are_not_sent_again() -> None:
    grants = Grants(GANG)
    grants.unanswered(GANG[1].key, 0.0)
    grants.answered(GANG[2].key, accepted=False, incarnation="i", reason="no")
    assert grants.due(5.0) == ()


def test_the_tracker_is_asked_to_withdraw_a_gang_once_by_its_first_rank() -> None:
    grants = granted()
    grants.look_at_nodes(nodes_but("node-2"))
    known = {"job-a": progress(an_entry(0), an_entry(1))}
    assert list(grants.to_withdraw(known, 1.0)) == ["job-a.1.0.0"]


# --- the orders that follow ---


def orders() -> Orders:
    made = Orders(epoch=4, retry_s=1.0)
    made.add([(lease, "rank 2 is gone") for lease in GANG], at=0.0)
    return made


def nodes(due: list[EndLeases]) -> list[str]:
    return [command.node for command in due]


def test_each_node_is_told_which_leases_to_end_and_by_which_allocator() -> None:
    first = orders().due(0.0)[0]
    assert (first.node, first.order.leases, first.order.epoch) == ("node-0", ("job-a.1.0.0",), 4)
    assert first.order.reason == "rank 2 is gone"


def test_leases_on_one_node_go_in_one_order() -> None:
    made = Orders(epoch=1, retry_s=1.0)
    made.add([(replace(lease, node="n1"), "why") for lease in GANG], at=0.0)
    (command,) = made.due(0.0)
    assert command.order.leases == ("job-a.1.0.0", "job-a.1.0.0.r1", "job-a.1.0.0.r2")


def test_an_order_is_sent_again_until_it_is_answered() -> None:
    made = orders()
    assert nodes(made.due(0.0)) == ["node-0", "node-1", "node-2"]
    assert made.due(0.5) == []
    made.answered(["job-a.1.0.0"], 0.5, reached=True)
    made.answered(["job-a.1.0.0.r1"], 0.5, reached=False)
    assert nodes(made.due(1.5)) == ["node-1"]
    assert nodes(made.due(6.0)) == ["node-2"]  # its answer never came


def test_an_order_is_dropped_when_its_lease_has_ended_by_itself() -> None:
    made = orders()
    assert made.due(10.0) == []
