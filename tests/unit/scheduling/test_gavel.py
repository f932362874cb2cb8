"""Gavel as a policy: whose turn it is, on which type, and where."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from builders_rounds import Rounds
from builders_scheduling import a_job, a_node, a_snapshot, devices_of, rates
from hadare.model.jobs import Constraints
from hadare.model.plans import Gang, GangMember, JobView, NodeView, RoundPlan
from hadare.scheduling.baselines.gavel_rounds import Account, priorities, recall
from hadare.scheduling.policies import Gavel, policy_of
from hadare.scheduling.policies.base import Memory

THREE = (a_node("n1", V100=1), a_node("n2", P100=1), a_node("n3", K80=1))


def on(node: str, device_type: str, count: int = 1) -> tuple[Gang, ...]:
    return ((GangMember(node=node, type=device_type, count=count),),)


def plan(jobs: list[JobView], nodes: tuple[NodeView, ...] = THREE, memory: Memory | None = None) -> RoundPlan:
    return Gavel().plan(a_snapshot(jobs, nodes), memory or {})[0]


def test_it_is_known_by_name() -> None:
    assert policy_of("gavel") == Gavel()


def test_the_priority_is_the_share_over_what_was_had() -> None:
    shares, time_s = np.array([[0.5], [0.5], [0.0], [0.5]]), np.array([[100.0], [300.0], [100.0], [0.0]])
    found = priorities(shares, time_s, np.array([500.0]), np.ones((4, 1)))
    assert found.ravel() == pytest.approx([2.5, 0.5 / 0.6, 0.0, 5e8])
    assert not priorities(shares, time_s, np.array([500.0]), np.zeros((4, 1))).any()


def test_a_reset_keeps_what_was_missed_as_deficit() -> None:
    one = np.array([[1.0]])
    account = Account(one * 0.5, one * 150, one * 0, np.array([150.0]), reset_s=0.0, at_s=400.0, solved_for="old")
    account.reset(one * 0.8, now_s=400.0, credit_s=50.0, solved_for="new")
    assert account.deficit_s[0, 0] == 0.5 * 400 - 100
    assert (account.time_s[0, 0], account.worker_s[0], account.shares[0, 0]) == (50.0, 50.0, 0.8)


def test_time_is_counted_for_jobs_that_are_gone_too_and_newcomers_have_half_a_round() -> None:
    row = [[0.5], [180.0], [7.0]]
    memory = {"types": ["V100"], "jobs": {"a": row, "gone": row}, "worker_s": [360.0], "at_s": 0.0, "reset_s": 0.0}
    account = recall({**memory, "ran": {"a": "V100", "gone": "V100"}}, ["a", "new"], ["V100"], 300.0, credit_s=180.0)
    assert account.time_s.ravel().tolist() == [480.0, 180.0]
    assert account.worker_s.tolist() == [360.0 + 2 * 300.0 + 180.0]
    assert account.deficit_s.ravel().tolist() == [7.0, 0.0]
    assert account.shares.ravel().tolist() == [0.5, 0.0]


def test_a_type_that_is_new_begins_with_nothing_had() -> None:
    memory = {"types": ["V100"], "jobs": {"a": [[0.5], [200.0], [7.0]]}, "worker_s": [200.0], "at_s": 0.0}
    account = recall(memory, ["a"], ["K80", "V100"], 0.0, credit_s=180.0)
    assert account.time_s.tolist() == [[180.0, 200.0]]
    assert account.shares.tolist() == [[0.0, 0.5]]


def test_equal_jobs_take_turns_so_that_all_get_the_same_time() -> None:
    cluster = Rounds(Gavel(), [a_node("n1", V100=2)])
    cluster.arrive(*(a_job(name, steps_left=10**8) for name in "abc"))
    for _ in range(30):
        cluster.run()
    assert {job: len(rounds) for job, rounds in cluster.served.items()} == {"a": 20, "b": 20, "c": 20}


def test_a_job_of_twice_the_weight_gets_twice_the_time() -> None:
    cluster = Rounds(Gavel(), [a_node("n1", V100=1)])
    cluster.arrive(a_job("a", steps_left=10**8, priority=2.0), a_job("b", steps_left=10**8))
    for _ in range(30):
        cluster.run()
    assert len(cluster.served["a"]) == pytest.approx(20, abs=1)
    assert len(cluster.served["b"]) == pytest.approx(10, abs=1)


def test_each_job_spends_its_time_on_the_type_that_it_gains_most_from() -> None:
    """a is ten times faster on the V100, b hardly."""
    nodes = (a_node("n1", V100=1), a_node("n2", K80=1))
    a = a_job("a", throughput=rates(10, types={"V100": 10.0, "K80": 1.0}))
    b = a_job("b", throughput=rates(10, types={"V100": 1.1, "K80": 1.0}))
    first = plan([a, b], nodes)
    assert devices_of(first, "a") == {("n1", "V100"): 1}
    assert devices_of(first, "b") == {("n2", "K80"): 1}


def test_a_gang_never_spans_types() -> None:
    nodes = (a_node("n1", V100=3), a_node("n2", P100=3))
    found = plan([a_job("a", gang=4)], nodes)
    assert found.forks == ()
    decision = found.decisions[0]
    assert decision.code == "fits_nowhere"
    assert "more than 3" in decision.message


def test_a_gang_that_does_not_fit_is_skipped_and_a_smaller_one_takes_its_place() -> None:
    """After a round of the single jobs the gang is most urgent; a draining device leaves it no room."""
    whole = (a_node("n1", V100=2), a_node("n2", V100=2))
    jobs = [a_job("gang", gang=4, steps_left=10**8), *(a_job(n, steps_left=10**8) for n in ("x", "y"))]
    cluster = Rounds(Gavel(), whole)
    cluster.arrive(*jobs)
    served = [{fork.job_id for fork in cluster.run().forks} for _ in range(8)]
    assert {"gang"} in served
    assert {"x", "y"} in served


def test_a_job_that_runs_on_stays_on_its_devices() -> None:
    nodes = tuple(a_node(f"n{i}", V100=1) for i in range(3))
    jobs = [a_job("a", placed=on("n2", "V100")), a_job("b"), a_job("c", placed=on("n0", "V100"))]
    found = plan(jobs, nodes)
    assert devices_of(found, "a") == {("n2", "V100"): 1}
    assert devices_of(found, "c") == {("n0", "V100"): 1}


def test_devices_that_no_share_claims_go_to_jobs_without_one() -> None:
    """A newcomer between two resets has no share yet."""
    memory = Gavel().plan(a_snapshot([a_job("a")]), {})[1]
    found = plan([a_job("a"), a_job("new")], memory=memory)
    assert {fork.job_id for fork in found.forks} == {"a", "new"}


def test_shares_are_solved_anew_only_after_the_shortest_time_between_resets() -> None:
    jobs = [a_job("a"), a_job("b")]
    memory = Gavel().plan(a_snapshot(jobs[:1]), {})[1]
    early = Gavel().plan(a_snapshot(jobs, now_s=5 * 360.0), memory)[1]
    late = Gavel().plan(a_snapshot(jobs, now_s=6 * 360.0), memory)[1]
    assert not any(early["jobs"]["b"][0])
    assert any(late["jobs"]["b"][0])
    assert any(Gavel(min_reset_rounds=0).plan(a_snapshot(jobs, now_s=360.0), memory)[1]["jobs"]["b"][0])


def test_nothing_is_solved_anew_while_nothing_changes_and_rates_are_a_change() -> None:
    job = a_job("a")
    memory = Gavel().plan(a_snapshot([job]), {})[1]
    same = Gavel().plan(a_snapshot([replace(job, steps_left=5)], now_s=9999.0), memory)[1]
    faster = Gavel().plan(a_snapshot([replace(job, throughput=rates(20.0))], now_s=9999.0), memory)[1]
    assert same["reset_s"] == 0.0
    assert faster["reset_s"] == 9999.0


def test_who_is_blind_to_types_gives_everybody_the_same_time() -> None:
    nodes = (a_node("n1", V100=1), a_node("n2", K80=1))
    fast = a_job("a", throughput=rates(10, types={"V100": 10.0, "K80": 1.0}))
    jobs = [fast, a_job("b"), a_job("c", throughput=rates(10, types={"V100": 1.0, "K80": 3.0}))]
    shares = Gavel(aware=False).plan(a_snapshot(jobs, nodes), {})[1]["jobs"]
    assert [sum(shares[job][0]) for job in "abc"] == pytest.approx([2 / 3] * 3)
    aware = Gavel().plan(a_snapshot(jobs, nodes), {})[1]["jobs"]
    assert [sum(aware[job][0]) for job in "abc"] != pytest.approx([2 / 3] * 3, abs=0.02)


def test_types_are_served_fastest_first_and_a_job_has_one_type_a_round() -> None:
    """Newcomers without shares are equally urgent: the first by id gets the fastest type."""
    memory = Gavel().plan(a_snapshot([a_job("z")], THREE), {})[1]
    found = plan([a_job("a"), a_job("b"), a_job("c")], THREE, memory)
    assert [fork.gang[0].type for fork in found.forks] == ["V100", "P100", "K80"]


def test_a_job_alone_runs_where_it_is_fastest_whatever_the_types_index_says() -> None:
    nodes = (a_node("n1", V100=1), a_node("n2", A10G=1))
    job = a_job("a", throughput=rates(10, types={"V100": 10.0, "A10G": 8.0}))
    found = plan([job], nodes)
    assert devices_of(found, "a") == {("n1", "V100"): 1}


def test_large_gangs_find_their_devices_before_small_ones() -> None:
    nodes = (a_node("n1", V100=4), a_node("n2", V100=3))
    found = plan([a_job("a", gang=2), a_job("b", gang=2), a_job("c", gang=3)], nodes)
    assert [len(fork.gang) for fork in found.forks] == [1, 1, 1]


def test_constraints_leave_no_device_idle_that_another_could_use() -> None:
    nodes = (a_node("n1", V100=1), NodeView(node="n2", state=THREE[0].state, devices={"V100": 1}, labels={"zone": "b"}))
    jobs = [a_job("a", constraints=Constraints(labels={"zone": "b"})), a_job("b"), a_job("c")]
    found = plan(jobs, nodes)
    assert len(found.forks) == 2
    assert devices_of(found, "a") in ({}, {("n2", "V100"): 1})


@pytest.mark.parametrize(("jobs", "nodes"), [([a_job("a")], ()), ([], THREE)], ids=["no node", "no job"])
def test_shares_are_solved_as_soon_as_there_is_something_to_share(
    jobs: list[JobView], nodes: tuple[NodeView, ...]
) -> None:
    """A first round without nodes or jobs must not keep the shares of nobody for the time between two solutions."""
    _, memory = Gavel().plan(a_snapshot(jobs, nodes), {})
    _, memory = Gavel().plan(a_snapshot([a_job("a")], THREE, now_s=360.0), memory)
    assert sum(memory["jobs"]["a"][0]) > 0
