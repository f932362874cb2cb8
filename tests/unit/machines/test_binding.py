"""From a plan's gangs to leases: whole or not at all, in the order of speeds, with an address."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builders import a_job, a_node, some_progress
from hadare.machines.cluster import ClusterView
from hadare.machines.dispatch import Dispatch, dispatch, opening_of, placements
from hadare.model.jobs import JobProgress, Measured, RankPlace
from hadare.model.leases import Lease
from hadare.model.plans import Decision, ForkPlan, Gang, GangMember, RoundPlan

SPEEDS = {"V100": Measured(steps_per_s=20.0, count=9), "K80": Measured(steps_per_s=5.0, count=9)}


def a_cluster(*nodes: Any, **spec: Any) -> ClusterView:
    cluster = ClusterView()
    for node in nodes:
        cluster.inventories[node.node] = node
    cluster.records["job-a"] = a_job("job-a", batch_size=4, **spec)
    cluster.progress["job-a"] = some_progress("job-a", throughput=SPEEDS)
    return cluster


def a_gang(*places: tuple[str, str, int]) -> Gang:
    return tuple(GangMember(node=node, type=kind, count=count) for node, kind, count in places)


def a_fork(gang: Gang, fork: int = 0, job_id: str = "job-a", **changes: Any) -> ForkPlan:
    known = {"job_id": job_id, "fork": fork, "gang": gang, "quota": 100, "rate": 10.0, "price": 0.0, "payoff": 1.0}
    return ForkPlan(**{**known, **changes})


def carried_out(cluster: ClusterView, *forks: ForkPlan, previous: tuple[Lease, ...] = ()) -> Dispatch:
    decisions = tuple(Decision(job_id=job_id, code="chosen") for job_id in sorted({fork.job_id for fork in forks}))
    plan = RoundPlan(round=3, epoch=2, forks=forks, decisions=decisions)
    return dispatch(plan, cluster, previous, 10.0)


def test_a_gang_over_nodes_gets_a_lease_a_rank_the_fastest_first() -> None:
    cluster = a_cluster(a_node("n1", "K80", "K80"), a_node("n2", "V100"), gang=3)
    leases = carried_out(cluster, a_fork(a_gang(("n1", "K80", 2), ("n2", "V100", 1)))).leases
    assert [(lease.key.rank, lease.node, lease.devices) for lease in leases] == [
        (0, "n2", (0,)),
        (1, "n1", (0,)),
        (2, "n1", (1,)),
    ]
    assert [str(lease.key) for lease in leases] == ["job-a.3.0.0", "job-a.3.0.0.r1", "job-a.3.0.0.r2"]


def test_every_rank_knows_its_share_of_the_global_batch_and_where_to_meet() -> None:
    cluster = a_cluster(a_node("n1", "K80", "K80"), a_node("n2", "V100"), gang=3)
    leases = carried_out(cluster, a_fork(a_gang(("n1", "K80", 2), ("n2", "V100", 1)))).leases
    gangs = [lease.gang for lease in leases]
    assert [gang and gang.rank for gang in gangs] == [0, 1, 2]
    assert {gang and gang.shares for gang in gangs} == {(8, 2, 2)}  # 3 x 4 samples at speeds 20 : 5 : 5
    assert {gang and gang.address for gang in gangs} == {"host-of-n2:29400"}


def test_a_gang_that_splits_one_batch_shares_the_jobs_own_batch_size() -> None:
    cluster = a_cluster(a_node("n1", "V100", "K80"))
    fork = a_fork(a_gang(("n1", "K80", 1), ("n1", "V100", 1)), batch_shares=(1, 3))
    gangs = [lease.gang for lease in carried_out(cluster, fork).leases]
    assert {gang and gang.shares for gang in gangs} == {(3, 1)}


def test_a_gang_on_one_node_meets_there_on_the_port_of_its_first_device() -> None:
    cluster = a_cluster(a_node("n1", "K80", "V100", gang_address=""), gang=2)
    (first, _) = carried_out(cluster, a_fork(a_gang(("n1", "K80", 1), ("n1", "V100", 1)))).leases
    assert first.devices == (1,)
    assert first.gang is not None
    assert first.gang.address == "127.0.0.1:29401"


def test_rank_0_is_on_a_node_that_others_can_reach() -> None:
    cluster = a_cluster(a_node("n1", "V100", gang_address=""), a_node("n2", "K80"), gang=2)
    leases = carried_out(cluster, a_fork(a_gang(("n1", "V100", 1), ("n2", "K80", 1)))).leases
    assert [lease.node for lease in leases] == ["n2", "n1"]


def test_devices_that_cannot_meet_are_no_gang_and_the_job_is_told_what_to_set() -> None:
    cluster = a_cluster(a_node("n1", "V100", gang_address=""), a_node("n2", "K80", gang_address=""), gang=2)
    made = carried_out(cluster, a_fork(a_gang(("n1", "V100", 1), ("n2", "K80", 1))))
    assert made.leases == ()
    assert made.plan.forks == ()
    (decision,) = made.plan.decisions
    assert decision.code == "not_ready"
    assert "n1, n2 cannot meet" in decision.message
    assert "HADARE_GANG_ADDRESS" in decision.message


def test_more_devices_than_samples_are_no_gang() -> None:
    cluster = a_cluster(a_node("n1", "V100", "V100", "V100"))
    cluster.records["job-a"] = a_job("job-a", batch_size=2)
    made = carried_out(cluster, a_fork(a_gang(("n1", "V100", 3))))
    assert made.leases == ()
    assert "a batch of 2 samples is too small for 3 devices" in made.plan.decisions[0].message


def test_a_gang_of_which_one_device_has_gone_takes_none_and_leaves_the_rest_to_others() -> None:
    broken = a_node("n2", "V100")
    broken = replace(broken, devices=(replace(broken.devices[0], healthy=False),))
    cluster = a_cluster(a_node("n1", "V100"), broken, gang=2)
    cluster.records["job-b"], cluster.progress["job-b"] = a_job("job-b"), some_progress("job-b")
    whole = a_fork(a_gang(("n1", "V100", 1), ("n2", "V100", 1)))
    made = carried_out(cluster, whole, a_fork(a_gang(("n1", "V100", 1)), job_id="job-b"))
    assert [(lease.key.job_id, lease.node) for lease in made.leases] == [("job-b", "n1")]
    assert "has gone" in made.plan.decisions[0].message


def test_a_gang_keeps_the_devices_that_the_job_had() -> None:
    cluster = a_cluster(a_node("n1", "V100", "V100", "V100"), gang=2)
    warm = carried_out(cluster, a_fork(a_gang(("n1", "V100", 2)))).leases
    held = tuple(replace(lease, devices=(lease.devices[0] + 1,)) for lease in warm)
    again = carried_out(cluster, a_fork(a_gang(("n1", "V100", 2))), previous=held)
    assert [lease.devices for lease in again.leases] == [(1,), (2,)]


def test_a_job_that_asks_for_lockstep_gets_equal_shares() -> None:
    cluster = a_cluster(a_node("n1", "V100", "K80"), gang=2)
    (view,) = cluster.jobs({"job-a": 0.0}, {})
    cluster._views["job-a"] = replace(cluster._views["job-a"], view=replace(view, batching="lockstep"))
    gangs = [lease.gang for lease in carried_out(cluster, a_fork(a_gang(("n1", "K80", 1), ("n1", "V100", 1)))).leases]
    assert {gang and gang.shares for gang in gangs} == {(4, 4)}


def test_the_tracker_expects_one_result_of_a_gang_and_knows_all_its_ranks() -> None:
    cluster = a_cluster(a_node("n1", "K80", "K80"), a_node("n2", "V100"), gang=3)
    (job,) = carried_out(cluster, a_fork(a_gang(("n1", "K80", 2), ("n2", "V100", 1)))).opening.jobs
    (entry,) = job.forks
    assert (entry.node, entry.device_type, entry.ranks) == ("n2", "V100", 3)
    assert entry.others == (RankPlace(node="n1", device_type="K80"), RankPlace(node="n1", device_type="K80"))


def test_after_a_restart_the_leases_tell_the_same_ledger_and_the_same_whole_gangs() -> None:
    cluster = a_cluster(a_node("n1", "K80", "K80"), a_node("n2", "V100", "V100"), gang=3)
    gang = a_gang(("n1", "K80", 2), ("n2", "V100", 1))
    made = carried_out(cluster, a_fork(gang), a_fork(a_gang(("n2", "V100", 1)), fork=1))
    assert opening_of(3, 2, 10.0, tuple(reversed(made.leases))) == made.opening
    assert placements(made.leases) == {"job-a": (gang, a_gang(("n2", "V100", 1)))}


def test_only_one_process_evaluates_the_base() -> None:
    cluster = a_cluster(a_node("n1", "V100", "V100"), gang=2)
    stale: JobProgress = replace(cluster.progress["job-a"], version=1, rounds=1)
    cluster.progress["job-a"] = stale
    leases = carried_out(cluster, a_fork(a_gang(("n1", "V100", 2)))).leases
    assert [lease.evaluate_base for lease in leases] == [True, False]
