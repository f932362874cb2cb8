from collections.abc import Sequence

import pytest

from builders_scheduling import a_job, a_node, a_snapshot, devices_of, flat_book
from hadare.model.errors import Rejected
from hadare.model.plans import GangMember, JobView, NodeView, RoundPlan
from hadare.scheduling.policies import Hadar, policy_names, policy_of


def plan_of(jobs: Sequence[JobView], nodes: Sequence[NodeView], policy: Hadar | None = None) -> RoundPlan:
    return (policy or Hadar()).plan(a_snapshot(jobs, nodes), {})[0]


def test_policies_are_found_by_name() -> None:
    assert {"hadare", "hadar"} <= set(policy_names())
    assert policy_of("hadar").name == "hadar"


def test_an_unknown_policy_is_refused_with_the_known_names() -> None:
    with pytest.raises(Rejected, match="hadar, hadare"):
        policy_of("fair")


def test_a_job_has_one_fork_on_a_gang_of_the_size_it_asks_for() -> None:
    plan = plan_of([a_job(gang=3)], [a_node("n1", V100=4)])
    assert [(fork.fork, fork.gang) for fork in plan.forks] == [(0, (GangMember(node="n1", type="V100", count=3),))]


def test_a_job_does_not_wait_for_four_of_a_type_when_three_and_another_are_free() -> None:
    plan = plan_of([a_job(gang=4)], [a_node("n1", V100=3), a_node("n2", K80=1)])
    assert devices_of(plan, "a") == {("n1", "V100"): 3, ("n2", "K80"): 1}


def test_a_gang_larger_than_the_cluster_fits_nowhere() -> None:
    plan = plan_of([a_job(gang=9)], [a_node("n1", V100=4), a_node("n2", K80=4)])
    assert plan.forks == ()
    assert plan.decisions[0].code == "fits_nowhere"
    assert "asks for 9 devices" in plan.decisions[0].message


def test_the_programme_gives_up_a_job_for_two_that_are_worth_more_together() -> None:
    nodes = [a_node("n1", V100=2)]
    wide = a_job("wide", gang=2, priority=1.5)
    plan = plan_of([wide, a_job("x", priority=2.0), a_job("y", priority=2.0)], nodes)
    assert {fork.job_id for fork in plan.forks} == {"x", "y"}


def test_a_price_that_is_too_high_keeps_a_job_out_and_says_so() -> None:
    nodes = [a_node("n1", V100=1)]
    plan, _ = Hadar().plan(a_snapshot([a_job()], nodes, flat_book(nodes, 1e6)), {})
    assert plan.forks == ()
    assert plan.decisions[0].code == "price_too_high"


def test_by_option_what_prices_left_free_is_filled() -> None:
    nodes = [a_node("n1", V100=1)]
    plan, _ = Hadar(fill=True).plan(a_snapshot([a_job()], nodes, flat_book(nodes, 1e6)), {})
    assert [fork.filled for fork in plan.forks] == [True]


def test_a_job_that_waited_too_long_is_placed_whatever_it_pays_off() -> None:
    nodes = [a_node("n1", V100=1)]
    snapshot = a_snapshot([a_job()], nodes, flat_book(nodes, 1e6))
    plan, memory = Hadar(patience=3).plan(snapshot, {"waited": {"a": 3}, "credit": 0.9})
    assert [fork.filled for fork in plan.forks] == [True]
    assert memory == {"waited": {}, "ahead": {}, "credit": 0.0}


def test_an_overdue_gang_saves_up_until_it_has_its_devices() -> None:
    nodes = [a_node("n1", V100=4)]
    jobs = [a_job("wide", gang=4), *(a_job(f"x{i}", priority=50.0) for i in range(4))]
    memory = {"waited": {"wide": 8}, "credit": 2.6}
    served = []
    for _ in range(5):
        plan, memory = Hadar().plan(a_snapshot(jobs, nodes), memory)
        served.append({fork.job_id for fork in plan.forks} == {"wide"})
    assert served == [False, False, False, True, False]


def test_a_waiting_gang_learns_who_holds_the_devices() -> None:
    plan = plan_of([a_job("a", gang=2, priority=9.0), a_job("b", gang=2)], [a_node("n1", V100=3)])
    decision = next(d for d in plan.decisions if d.job_id == "b")
    assert (decision.code, decision.blockers) == ("waiting_for_capacity", ("a",))
