"""The cluster as a policy and as pricing see it."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_job, a_node, an_entry, some_progress
from hadare.machines.cluster import ClusterView, Costs
from hadare.model.devices import Device, NodeState, NodeStatus
from hadare.model.jobs import Desired, JobState, Measured, OpenRound
from hadare.model.plans import JobView


def a_cluster(*jobs: str, **progress: Any) -> ClusterView:
    cluster = ClusterView()
    cluster.inventories["n1"] = a_node("n1", "V100")
    for job_id in jobs or ("job-a",):
        cluster.records[job_id] = a_job(job_id)
        cluster.progress[job_id] = some_progress(job_id, **progress)
    return cluster


def view(cluster: ClusterView) -> JobView:
    (only,) = cluster.jobs({"job-a": 0.0}, {})
    return only


IN_A_ROUND = OpenRound(round=3, epoch=1, base_version=0, forks=(an_entry(),))


def test_a_job_with_a_model_and_no_open_round_can_be_placed() -> None:
    assert view(a_cluster()).unready == ""


@pytest.mark.parametrize(
    ("progress", "why"),
    [
        ({"version": -1, "reason": "no node is ready"}, "no node is ready"),
        ({"open": IN_A_ROUND}, "its round 3 is not closed yet"),
        ({"steps": 1000}, "evaluated"),
        ({"state": JobState.EVALUATING}, "evaluated"),
    ],
)
def test_a_job_that_cannot_be_placed_says_why(progress: dict[str, Any], why: str) -> None:
    assert why in view(a_cluster(**progress)).unready


def test_a_job_that_names_no_utility_gets_the_one_that_is_asked_for_and_else_its_own() -> None:
    cluster = a_cluster("job-a", "job-b")
    cluster.records["job-b"] = a_job("job-b", utility="makespan")
    utilities = [job.utility for job in cluster.jobs({}, {}, "completion_times")]
    assert utilities == ["completion_times", "makespan"]
    assert [job.utility for job in cluster.bidders({})] == ["throughput", "makespan"]


def test_a_job_in_an_open_round_still_bids_for_the_next_one() -> None:
    (bidder,) = a_cluster(open=IN_A_ROUND).bidders({"job-a": 0.0})
    assert bidder.unready == ""


def test_a_job_tells_how_many_rounds_in_a_row_brought_nothing() -> None:
    assert view(a_cluster(barren=4)).barren == 4


def test_a_paused_job_does_not_bid() -> None:
    cluster = a_cluster(open=IN_A_ROUND)
    cluster.records["job-a"] = a_job("job-a", desired=Desired.PAUSED)
    assert cluster.bidders({})[0].unready.startswith("paused")


def test_ended_and_cancelled_jobs_are_not_active() -> None:
    cluster = a_cluster("job-a", "job-b", "job-c")
    cluster.progress["job-a"] = some_progress("job-a", state=JobState.COMPLETED)
    cluster.records["job-b"] = a_job("job-b", desired=Desired.CANCELLED)
    assert cluster.active() == ["job-c"]


def test_a_job_forks_only_after_as_many_rounds_as_it_asks_for() -> None:
    cluster = a_cluster(rounds=1)
    cluster.records["job-a"] = a_job("job-a", fork_after=2)
    assert view(cluster).max_forks == 1
    cluster.progress["job-a"] = some_progress("job-a", rounds=2)
    assert view(cluster).max_forks is None


def test_what_one_job_measured_serves_another_of_the_same_workload() -> None:
    cluster = a_cluster("job-a", "job-b")
    cluster.progress["job-b"] = some_progress("job-b", throughput={"V100": Measured(steps_per_s=77.0, count=4)})
    views = {job.job_id: job for job in cluster.jobs({}, {})}
    assert views["job-a"].throughput["V100"].steps_per_s == pytest.approx(77.0)


def test_moving_and_forking_cost_what_the_cluster_says() -> None:
    cluster = ClusterView(Costs(restart_s=3.0, transfer_bytes_s=5.0))
    cluster.records["job-a"] = a_job("job-a")
    cluster.progress["job-a"] = some_progress("job-a")  # its weights have 10 bytes
    assert (view(cluster).restart_cost_s, view(cluster).consolidation_cost_s) == (3.0, 4.0)


def test_unhealthy_devices_are_not_offered() -> None:
    cluster = ClusterView()
    devices = (
        Device(index=0, type="V100", memory_gb=16.0),
        Device(index=1, type="V100", memory_gb=16.0, healthy=False, reason="Xid 79"),
    )
    cluster.inventories["n1"] = a_node("n1", devices=devices)
    (node,) = cluster.nodes({"n1": NodeStatus(node="n1", state=NodeState.READY)})
    assert node.devices == {"V100": 1}


def test_a_node_without_a_status_gets_no_forks() -> None:
    assert a_cluster().nodes({})[0].state is NodeState.SUSPECT
