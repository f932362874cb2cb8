from collections.abc import Sequence
from dataclasses import replace

import pytest

from builders_scheduling import FIVE_UNEQUAL, SPEED, a_job, a_node, a_snapshot, devices_of, flat_book, rates
from hadare.model.devices import NodeState
from hadare.model.jobs import Constraints
from hadare.model.plans import Decision, GangMember, JobView, NodeView, RoundPlan
from hadare.scheduling.policies import Hadare, policy_of


def plan_of(jobs: Sequence[JobView], nodes: Sequence[NodeView] = FIVE_UNEQUAL) -> RoundPlan:
    return policy_of("hadare").plan(a_snapshot(jobs, nodes), {})[0]


def decision_of(plan: RoundPlan, job_id: str) -> Decision:
    return next(decision for decision in plan.decisions if decision.job_id == job_id)


def keep(job: JobView, plan: RoundPlan) -> JobView:
    return replace(job, placed=tuple(fork.gang for fork in plan.forks if fork.job_id == job.job_id))


def test_a_job_that_is_alone_is_forked_over_every_device() -> None:
    plan = plan_of([a_job()])
    assert devices_of(plan, "a") == {(f"n{i}", t): 1 for i, t in enumerate(SPEED)}
    assert [fork.fork for fork in plan.forks] == [0, 1, 2, 3, 4]


def test_a_fork_is_one_device_whatever_gang_the_job_asks_for() -> None:
    plan = plan_of([a_job(gang=4)], [a_node("n1", V100=4)])
    assert [fork.gang for fork in plan.forks] == [(GangMember(node="n1", type="V100", count=1),)] * 4


def test_a_job_with_a_single_fork_gets_its_fastest_device() -> None:
    assert devices_of(plan_of([a_job(max_forks=1)]), "a") == {("n0", "V100"): 1}


def test_nobody_waits_while_there_is_a_device_for_each() -> None:
    plan = plan_of([a_job(name, steps_left=left) for name, left in (("a", 10**6), ("b", 10**5), ("c", 10**7))])
    assert {fork.job_id for fork in plan.forks} == {"a", "b", "c"}


def test_the_job_with_the_least_work_left_gets_the_fastest_devices() -> None:
    plan = plan_of([a_job("long", steps_left=10**6), a_job("short", steps_left=50_000)])
    assert ("n0", "V100") in devices_of(plan, "short")
    assert len(devices_of(plan, "short")) > len(devices_of(plan, "long")) > 0


def test_priority_counts_against_work_left() -> None:
    jobs = [a_job("long", steps_left=10**6, priority=100.0), a_job("short", steps_left=50_000)]
    assert ("n0", "V100") in devices_of(plan_of(jobs), "long")


def test_a_job_takes_no_more_than_it_can_finish_with_while_others_wait() -> None:
    nodes = [a_node("n1", V100=8)]
    plan = plan_of([a_job("tiny", steps_left=100), a_job("long", steps_left=10**7)], nodes)
    assert devices_of(plan, "tiny") == {("n1", "V100"): 1}
    assert devices_of(plan, "long") == {("n1", "V100"): 7}


def test_of_two_jobs_with_different_tastes_each_gets_what_it_is_good_at() -> None:
    nodes = [a_node("n1", V100=1), a_node("n2", K80=1)]
    usual = a_job("usual", max_forks=1)
    host_bound = a_job("odd", max_forks=1, throughput=rates(types={"V100": 0.4, "K80": 1.0}))
    plan = plan_of([host_bound, usual], nodes)
    assert devices_of(plan, "usual") == {("n1", "V100"): 1}
    assert devices_of(plan, "odd") == {("n2", "K80"): 1}


def test_forks_slower_than_the_jobs_minimum_share_are_not_made() -> None:
    assert set(devices_of(plan_of([a_job(min_fork_share=0.4)]), "a")) == {("n0", "V100"), ("n1", "P100"), ("n2", "T4")}


def test_a_cold_fork_is_expected_to_train_for_less_of_the_round() -> None:
    nodes = [a_node("n1", V100=1), a_node("n2", V100=1)]
    job = a_job(steps_left=3000, restart_cost_s=180, placed=((GangMember(node="n1", type="V100", count=1),),))
    assert [(fork.gang[0].node, fork.quota) for fork in plan_of([job], nodes).forks] == [("n1", 2000), ("n2", 1000)]


def test_when_a_few_wait_each_keeps_a_device_and_when_many_wait_the_first_takes_all() -> None:
    nodes = [a_node(f"n{i}", V100=1) for i in range(8)]
    few = plan_of([a_job("a", steps_left=99_999), *(a_job(f"b{i}") for i in range(2))], nodes)
    many = plan_of([a_job("a", steps_left=99_999), *(a_job(f"b{i}") for i in range(9))], nodes)
    assert len(devices_of(few, "a")) == 6
    assert len(devices_of(many, "a")) == 8


def test_a_job_that_ends_in_this_round_takes_the_cheapest_device_that_suffices() -> None:
    # 100 s of a V100: a T4 does it within the round as well, and the V100 serves the other for the whole of it
    plan = plan_of([a_job("short", steps_left=1000), a_job("long", steps_left=10**6)])
    assert devices_of(plan, "short") == {("n2", "T4"): 1}
    assert ("n0", "V100") in devices_of(plan, "long")


def test_where_rounds_may_end_early_a_short_job_gets_more_than_suffices_unless_starting_there_takes_too_long() -> None:
    nodes = [a_node("n1", V100=8)]
    jobs = [a_job("short", steps_left=2_000), a_job("long", steps_left=10**7)]

    def devices_of_short(restart_cost_s: float, *, early: bool) -> int:
        own = [replace(job, restart_cost_s=restart_cost_s) for job in jobs]
        plan, _ = policy_of("hadare").plan(replace(a_snapshot(own, nodes), may_end_early=early), {})
        return devices_of(plan, "short")["n1", "V100"]

    full = devices_of_short(0.0, early=False)
    assert devices_of_short(0.0, early=True) > full
    assert devices_of_short(20.0, early=True) == devices_of_short(20.0, early=False)


def test_a_job_that_ends_in_this_round_and_is_alone_takes_all_it_can_use() -> None:
    assert len(devices_of(plan_of([a_job(steps_left=1000)]), "a")) == 5


def test_a_cluster_may_have_one_utility_whatever_its_jobs_name() -> None:
    jobs = [a_job("long", steps_left=10**6), a_job("short", steps_left=50_000)]
    plan, _ = Hadare(utility="makespan").plan(a_snapshot(jobs), {})
    assert ("n0", "V100") in devices_of(plan, "long")


def test_a_utility_that_this_process_does_not_know_counts_as_the_default() -> None:
    assert plan_of([a_job(utility="elsewhere")]).forks == plan_of([a_job()]).forks


def test_forks_that_gain_nothing_are_not_made() -> None:
    plan = plan_of([a_job(fork_gain=(1.0, 1.5, 1.5))])
    assert devices_of(plan, "a") == {("n0", "V100"): 1, ("n1", "P100"): 1}


def test_a_second_fork_must_gain_more_than_the_consolidation_costs() -> None:
    job = a_job(consolidation_cost_s=40.0)  # a ninth of the round, and a T400 does less than a ninth of a V100
    assert set(devices_of(plan_of([job], [a_node("n1", V100=1), a_node("n2", T400=1)]), "a")) == {("n1", "V100")}
    assert len(devices_of(plan_of([job], [a_node("n1", V100=1), a_node("n2", T4=1)]), "a")) == 2


def test_a_utility_of_the_makespan_turns_the_queue_around() -> None:
    jobs = [a_job("long", steps_left=10**6, utility="makespan"), a_job("short", steps_left=50_000, utility="makespan")]
    assert ("n0", "V100") in devices_of(plan_of(jobs), "long")


def test_fewer_steps_than_devices_make_fewer_forks() -> None:
    plan = plan_of([a_job(steps_left=3)])
    assert sum(fork.quota for fork in plan.forks) == 3
    assert all(fork.quota >= 1 for fork in plan.forks)


def test_a_job_stays_on_its_devices_when_the_queue_does_not_change() -> None:
    nodes = [a_node(f"n{i}", V100=2) for i in range(3)]
    jobs = [a_job(name, steps_left=left, restart_cost_s=20) for name, left in (("a", 90_000), ("b", 95_000))]
    first = plan_of(jobs, nodes)
    again = plan_of([keep(job, first) for job in jobs], nodes)
    assert [fork.gang for fork in again.forks] == [fork.gang for fork in first.forks]


def test_a_newcomer_takes_a_device_on_which_nobody_is_warm() -> None:
    nodes = [a_node("n1", V100=1), a_node("n2", V100=1)]
    there = a_job("b", max_forks=1, restart_cost_s=20, placed=((GangMember(node="n1", type="V100", count=1),),))
    plan = plan_of([a_job("a", max_forks=1, steps_left=10), there], nodes)
    assert devices_of(plan, "a") == {("n2", "V100"): 1}
    assert devices_of(plan, "b") == {("n1", "V100"): 1}


def test_two_jobs_of_nearly_equal_work_do_not_swap_devices() -> None:
    warm = a_job(
        "b",
        steps_left=100_050,
        max_forks=1,
        restart_cost_s=30,
        placed=((GangMember(node="n0", type="V100", count=1),),),
    )
    plan = plan_of([a_job("a", steps_left=100_000, max_forks=1, restart_cost_s=30), warm])
    assert devices_of(plan, "b") == {("n0", "V100"): 1}


def test_a_job_moves_to_a_free_faster_device_when_that_pays_for_the_restart() -> None:
    warm = a_job(max_forks=1, restart_cost_s=30, placed=((GangMember(node="n4", type="T400", count=1),),))
    assert devices_of(plan_of([warm]), "a") == {("n0", "V100"): 1}


def test_prices_come_before_the_filling_and_what_is_filled_says_so() -> None:
    jobs = [a_job("a", max_forks=1)]
    dear = flat_book(FIVE_UNEQUAL, price=1e6)
    plan, _ = policy_of("hadare").plan(a_snapshot(jobs, prices=dear), {})
    assert [(fork.filled, fork.payoff < 0) for fork in plan.forks] == [(True, True)]


def test_a_price_on_the_fast_type_sends_a_job_to_the_slow_one() -> None:
    nodes = [a_node("n1", V100=1), a_node("n2", P100=1)]
    book = flat_book(nodes, price=1e-9)
    dear_v100 = replace(
        book, curves=tuple(replace(c, u_min=9.0, u_max=9.0) if c.type == "V100" else c for c in book.curves)
    )
    plan, _ = policy_of("hadare").plan(a_snapshot([a_job(max_forks=1)], nodes, dear_v100), {})
    assert devices_of(plan, "a") == {("n2", "P100"): 1}


def test_a_job_that_waited_longest_is_served_first() -> None:
    nodes = [a_node("n1", V100=1)]
    jobs = [a_job("huge", steps_left=10**9), a_job("small", steps_left=1000)]
    plan, memory = policy_of("hadare").plan(a_snapshot(jobs, nodes), {"waited": {"huge": 8}, "credit": 0.9})
    assert devices_of(plan, "huge") == {("n1", "V100"): 1}
    assert memory == {"waited": {"small": 1}, "ahead": {"small": 0.0}, "credit": 0.0, "newest": 0.0}


def test_overdue_jobs_get_a_tenth_of_the_devices_and_no_more() -> None:
    nodes = [a_node("n1", V100=20)]
    big = [a_job(f"big-{i}", steps_left=10**9, max_forks=1) for i in range(20)]
    small = [a_job(f"small-{i}", steps_left=100_000, max_forks=1) for i in range(20)]
    memory = {"waited": {job.job_id: 20 for job in big}}
    plan, after = policy_of("hadare").plan(a_snapshot([*big, *small], nodes), memory)
    assert sum(fork.job_id.startswith("big") for fork in plan.forks) == 2
    assert after["credit"] == 0.0


def test_a_draining_queue_gives_a_type_to_who_makes_relatively_more_of_it_and_a_busy_one_to_who_comes_first() -> None:
    """A P100 is 0.84 as good a bargain to ``first`` as a V100; ``second`` has more than twice its work left."""
    nodes = [a_node("n1", V100=4), a_node("n2", P100=4)]
    jobs = [
        a_job("first", steps_left=1_000_000, throughput=rates(10.0, types={"V100": 1.0, "P100": 0.42})),
        a_job("second", steps_left=1_000_000, throughput=rates(4.0, types={"V100": 1.0, "P100": 0.5})),
    ]

    def p100s_of_the_first(newest: float) -> int:
        plan, _ = policy_of("hadare").plan(a_snapshot(jobs, nodes, now_s=200_000.0), {"newest": newest})
        return devices_of(plan, "first").get(("n2", "P100"), 0)

    assert (p100s_of_the_first(0.0), p100s_of_the_first(199_000.0)) == (0, 3)


def test_a_job_that_fits_nowhere_does_not_stand_in_the_way_of_others_that_are_overdue() -> None:
    jobs = [a_job("lost", throughput={}), a_job("huge", steps_left=10**9), a_job("small", steps_left=1000)]
    memory = {"waited": {"lost": 99, "huge": 9}, "credit": 0.9}
    plan, _ = policy_of("hadare").plan(a_snapshot(jobs, [a_node("n1", V100=1)]), memory)
    assert devices_of(plan, "huge")


def test_the_memory_counts_rounds_and_forgets_jobs_that_are_gone_or_served() -> None:
    nodes = [a_node("n1", V100=1)]
    jobs = [a_job("huge", steps_left=10**9), a_job("small", steps_left=1000)]
    _, memory = policy_of("hadare").plan(a_snapshot(jobs, nodes), {"waited": {"huge": 3, "small": 2, "gone": 5}})
    assert memory == {"waited": {"huge": 4}, "ahead": {"huge": 0.0}, "credit": 0.0, "newest": 0.0}


def test_a_job_is_not_overdue_while_what_was_ahead_of_it_when_its_wait_began_is_being_done() -> None:
    """100 rounds of work are before it: it may wait 200, and not one more because others came since."""
    nodes = [a_node("n1", V100=10)]
    jobs = [a_job("huge", steps_left=10**9), *(a_job(f"new-{i:02}", steps_left=40_000, max_forks=1) for i in range(20))]

    def is_served(waited: int) -> bool:
        memory = {"waited": {"huge": waited}, "ahead": {"huge": 100.0}}
        return bool(devices_of(policy_of("hadare").plan(a_snapshot(jobs, nodes), memory)[0], "huge"))

    assert [is_served(waited) for waited in (199, 200)] == [False, True]


def test_the_memory_keeps_the_rounds_of_work_that_were_ahead_when_a_wait_began() -> None:
    nodes = [a_node("n1", V100=1)]
    jobs = [a_job(f"a{i}", steps_left=7_200) for i in range(4)]  # two rounds of the V100 each
    _, memory = policy_of("hadare").plan(a_snapshot(jobs, nodes), {"waited": {"a3": 1}, "ahead": {"a3": 1.5}})
    assert memory["ahead"] == pytest.approx({"a1": 2.0, "a2": 4.0, "a3": 1.5})


@pytest.mark.parametrize(
    ("job", "nodes", "code", "said"),
    [
        (a_job(unready="paused by the user"), FIVE_UNEQUAL, "paused", "paused"),
        (a_job(unready="no model yet"), FIVE_UNEQUAL, "not_ready", "no model yet"),
        (a_job(steps_left=0), FIVE_UNEQUAL, "not_ready", "no steps left"),
        (a_job(), (), "no_nodes", "no node is ready"),
        (a_job(), (a_node("n1", V100=1, state=NodeState.DRAINING),), "no_nodes", "no node is ready"),
        (a_job(excluded={"n1": "cannot import w"}), (a_node("n1"),), "excluded_by_constraint", "n1: cannot import w"),
        (a_job(constraints=Constraints(types=("T4",))), (a_node("n1"),), "excluded_by_constraint", "V100"),
        (a_job(constraints=Constraints(labels={"zone": "b"})), (a_node("n1"),), "excluded_by_constraint", "zone=b"),
        (a_job(constraints=Constraints(min_memory_gb=40)), (a_node("n1"),), "excluded_by_constraint", "16 GB"),
        (a_job(throughput=rates(types={"T4": 1.0})), (a_node("n1"),), "fits_nowhere", "V100"),
    ],
)
def test_a_job_that_is_not_placed_learns_why(job: JobView, nodes: Sequence[NodeView], code: str, said: str) -> None:
    decision = decision_of(plan_of([job], nodes), "a")
    assert decision.code == code
    assert said in decision.message


def test_a_waiting_job_learns_who_is_before_it_and_its_position() -> None:
    plan = plan_of([a_job("a", steps_left=1000), a_job("b", steps_left=2000)], [a_node("n1", V100=1)])
    decision = decision_of(plan, "b")
    assert (decision.code, decision.position, decision.blockers) == ("waiting_for_capacity", 2, ("a",))
    assert decision.remedy


def test_a_chosen_job_learns_what_it_pays_and_what_it_is_worth() -> None:
    plan = plan_of([a_job()])
    decision = decision_of(plan, "a")
    assert decision.price == pytest.approx(sum(fork.price for fork in plan.forks))
    assert decision.payoff == pytest.approx(sum(fork.payoff for fork in plan.forks))
    assert decision.payoff > 0


def test_a_constraint_may_name_a_type_in_any_spelling() -> None:
    job = a_job(constraints=Constraints(types=("Tesla V100-SXM2-16GB",)))
    assert devices_of(plan_of([job]), "a") == {("n0", "V100"): 1}


def test_one_labelled_node_serves_the_job_that_asks_for_it() -> None:
    nodes = [a_node("n1"), replace(a_node("n2"), labels={"zone": "b"})]
    assert devices_of(plan_of([a_job(constraints=Constraints(labels={"zone": "b"}))], nodes), "a") == {
        ("n2", "V100"): 1
    }


def test_a_job_is_never_placed_on_a_type_that_it_does_not_fit_on() -> None:
    without = {t: x for t, x in rates().items() if t != "V100"}
    plan = plan_of([a_job(throughput=without, excluded_types={"V100": "CUDA out of memory"})])
    assert {kind for _, kind in devices_of(plan, "a")} == {"P100", "T4", "K80", "T400"}


def test_a_job_that_fits_on_no_type_waits_with_what_it_lacked_on_each() -> None:
    nodes = [a_node("n1", V100=1), a_node("n2", K80=1)]
    reasons = {"V100": "CUDA out of memory", "K80": "CUDA out of memory"}
    decision = decision_of(plan_of([a_job(throughput={}, excluded_types=reasons)], nodes), "a")
    assert decision.code == "excluded_by_constraint"
    assert "n2: K80 cannot run it: CUDA out of memory" in decision.message
    assert "another type" in decision.remedy


def test_forks_that_are_measured_to_be_worth_nothing_leave_their_devices_to_others() -> None:
    worthless = (1.0, 1.0, 1.0, 1.0, 1.0)
    jobs = [a_job("a", fork_gain=worthless, steps_left=50_000), a_job("b", steps_left=60_000)]
    faithful = [a_job("a", steps_left=50_000), a_job("b", steps_left=60_000)]
    assert len(devices_of(plan_of(jobs), "a")) < len(devices_of(plan_of(faithful), "a"))
