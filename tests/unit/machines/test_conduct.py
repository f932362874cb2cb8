"""Who is to blame: a job that fails everywhere, or a node that fails everyone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builders import a_job, a_node, a_result, some_progress
from hadare.machines.cluster import ClusterView
from hadare.machines.conduct import accused, shunned, tried
from hadare.machines.nodes import NodeMachine
from hadare.machines.round_events import NodeHeard, NodeRegistered, ProgressSeen, StoreNodeStatus, Ticked
from hadare.machines.round_phases import RoundSettings
from hadare.machines.rounds import RoundMachine
from hadare.model.devices import Heartbeat, NodeState, NodeWish
from hadare.model.jobs import JobProgress, Trial
from hadare.model.leases import Failure, ForkResult

BROKEN = Failure(kind="exception", message="CUDA error: an illegal memory access was encountered")
JOBS = ("job-a", "job-b", "job-c")


def worked(node: str, round_number: int) -> ForkResult:
    return a_result(round=round_number, node=node)


def failed(node: str, round_number: int, failure: Failure = BROKEN) -> ForkResult:
    return a_result(round=round_number, node=node, steps=0, object=None, failure=failure)


def history(job_id: str, *results: ForkResult) -> JobProgress:
    trials: dict[str, Trial] = {}
    for result in results:
        trials = tried(trials, result)
    return some_progress(job_id, trials=trials)


def blame(*jobs: JobProgress, trusted_from: dict[str, int] | None = None, out: tuple[str, ...] = ()) -> list[str]:
    return sorted(accused(jobs, trusted_from or {}, out))


def on_bad_n1(job_id: str, round_number: int) -> JobProgress:
    """The job failed on n1 and worked on n2 in the next round."""
    return history(job_id, failed("n1", round_number), worked("n2", round_number + 1))


def test_a_node_that_failed_three_jobs_which_work_elsewhere_is_accused() -> None:
    jobs = [on_bad_n1(job_id, number) for number, job_id in enumerate(JOBS, start=1)]
    assert blame(*jobs) == ["n1"]
    (reason,) = accused(jobs, {}, ()).values()
    assert "job-a, job-b, job-c" in reason


def test_jobs_that_cannot_be_evaluated_accuse_nobody_though_they_train_elsewhere() -> None:
    def on_n1(job_id: str, round_number: int) -> JobProgress:
        evaluation = replace(failed("n1", round_number), kind="evaluate")
        return history(job_id, evaluation, worked("n2", round_number + 1))

    assert blame(*(on_n1(job_id, number) for number, job_id in enumerate(JOBS, start=1))) == []


def test_two_jobs_accuse_nobody() -> None:
    assert blame(on_bad_n1("job-a", 1), on_bad_n1("job-b", 2)) == []


def test_jobs_that_were_nowhere_else_yet_accuse_a_node_together_with_those_that_work_elsewhere() -> None:
    proven = [on_bad_n1("job-a", 1), on_bad_n1("job-b", 2)]
    assert blame(*proven, history("job-c", failed("n1", 3))) == ["n1"]
    assert blame(proven[0], history("job-b", failed("n1", 2)), history("job-c", failed("n1", 3))) == []


def test_one_round_accuses_nobody() -> None:
    assert blame(*(on_bad_n1(job_id, 1) for job_id in JOBS)) == []


def test_jobs_that_fail_everywhere_accuse_nobody() -> None:
    everywhere = [failed(node, number) for number in (1, 2, 3) for node in ("n1", "n2", "n3")]
    assert blame(*(history(job_id, *everywhere) for job_id in JOBS)) == []


def test_jobs_that_broke_everywhere_after_they_had_worked_accuse_nobody() -> None:
    results = [worked("n1", 1), worked("n2", 1), failed("n1", 2), failed("n2", 3), failed("n1", 4)]
    assert blame(*(history(job_id, *results) for job_id in JOBS)) == []


def test_a_node_on_which_anything_worked_since_is_not_accused() -> None:
    jobs = [on_bad_n1(job_id, number) for number, job_id in enumerate(JOBS, start=1)]
    assert blame(*jobs, history("job-d", worked("n1", 3))) == []


def test_two_bad_nodes_of_five_are_accused_together() -> None:
    def job(job_id: str, at: int) -> JobProgress:
        bad = [failed("n1", at), failed("n2", at)]
        return history(job_id, *bad, worked("n3", at), worked("n4", at), worked("n5", at))

    assert blame(*(job(job_id, number) for number, job_id in enumerate(JOBS, start=1))) == ["n1", "n2"]


def test_what_was_before_a_pardon_is_forgotten() -> None:
    jobs = [on_bad_n1(job_id, number) for number, job_id in enumerate(JOBS, start=1)]
    assert blame(*jobs, trusted_from={"n1": 4}) == []


def test_a_node_that_lacks_what_a_job_needs_is_not_accused() -> None:
    lacks = Failure(kind="import", message="No module named 'foo'", node_specific=True)
    jobs = [history(job_id, failed("n1", n, lacks), worked("n2", n)) for n, job_id in enumerate(JOBS, start=1)]
    assert blame(*jobs) == []


def test_a_store_that_is_away_accuses_nobody() -> None:
    away = Failure(kind="fetch", message="the store does not answer")
    jobs = [history(job_id, failed("n1", n, away), worked("n2", n)) for n, job_id in enumerate(JOBS, start=1)]
    assert blame(*jobs) == []


def test_of_two_forks_of_a_round_on_one_node_the_one_that_worked_counts_in_whatever_order_they_come() -> None:
    orders: tuple[tuple[ForkResult, ...], ...] = (
        (worked("n1", 1), failed("n1", 1)),
        (failed("n1", 1), worked("n1", 1)),
    )
    assert [history("job-a", *order).trials["n1"].failed for order in orders] == [0, 0]


def test_trials_are_bounded_and_the_oldest_go_first() -> None:
    trials = history("job-a", *(worked(f"n{number}", number) for number in range(1, 200))).trials
    assert len(trials) == 64
    assert min(trial.round for trial in trials.values()) == 136


def test_a_job_keeps_away_from_where_it_failed_and_longer_each_time() -> None:
    nodes = ("n1", "n2")
    once = history("job-a", failed("n1", 1))
    thrice = history("job-a", failed("n1", 1), failed("n1", 3), failed("n1", 6))
    assert [number for number in range(2, 20) if shunned(once, number, nodes)] == [2]
    assert [number for number in range(7, 20) if shunned(thrice, number, nodes)] == [7, 8, 9, 10]


def test_a_job_that_failed_everywhere_keeps_away_from_nothing() -> None:
    assert shunned(history("job-a", failed("n1", 1), failed("n2", 1)), 2, ("n1", "n2")) == {}


def test_the_policy_is_told_to_keep_a_job_away_from_where_it_failed() -> None:
    cluster = ClusterView()
    cluster.inventories = {name: a_node(name) for name in ("n1", "n2")}
    cluster.records["job-a"] = a_job()
    cluster.progress["job-a"] = history("job-a", failed("n1", 1))
    seen = {}
    for number in (2, 3):
        cluster.round = number
        (view,) = cluster.jobs({}, {})
        seen[number] = set(view.excluded)
    assert seen == {2: {"n1"}, 3: set()}


class Nodes:
    """A node machine with one node that is heard all the time."""

    def __init__(self, machine: NodeMachine | None = None) -> None:
        self.machine = machine or NodeMachine()
        self.machine.registered(a_node(), 0.0)

    def state(self, **beat: Any) -> NodeState:
        self.machine.heard(Heartbeat(node="n1", incarnation="i1", sequence=1), 0.0)
        self.machine.refresh(beat.get("at", 0.0))
        return self.machine.statuses["n1"].state


def test_a_node_in_quarantine_gets_no_forks_and_says_why_until_the_operator_puts_it_back() -> None:
    nodes = Nodes()
    nodes.machine.quarantine({"n1": "three jobs failed on it"})
    assert nodes.state() is NodeState.QUARANTINED
    assert nodes.machine.statuses["n1"].reason == "three jobs failed on it"
    nodes.machine.wished("n1", NodeWish(node="n1", drain=False, pardon=1), next_round=8)
    assert nodes.state() is NodeState.READY
    assert nodes.machine.trusted_from() == {"n1": 8}


def test_a_quarantine_outlives_the_allocator_and_the_silence_of_the_node() -> None:
    nodes = Nodes()
    nodes.machine.quarantine({"n1": "three jobs failed on it"})
    assert nodes.state(at=100.0) is NodeState.LOST
    stored = nodes.machine.statuses.values()
    again = NodeMachine()
    again.recover(stored)
    assert Nodes(again).state() is NodeState.QUARANTINED


def test_a_pardon_that_was_heard_before_a_restart_pardons_nothing_that_came_after_it() -> None:
    nodes = Nodes()
    pardon = NodeWish(node="n1", drain=False, pardon=1)
    nodes.machine.wished("n1", pardon, next_round=8)
    nodes.machine.quarantine({"n1": "three jobs failed on it"})
    nodes.state()
    again = NodeMachine()
    again.recover(nodes.machine.statuses.values())
    again.wished("n1", pardon, next_round=20)
    assert Nodes(again).state() is NodeState.QUARANTINED


def test_a_node_that_fails_every_job_is_taken_out_by_the_allocator_and_stays_out_over_its_restart() -> None:
    machine = RoundMachine(RoundSettings(epoch=1))
    for name in ("n1", "n2"):
        machine.handle(NodeRegistered(at=0.0, node=name, inventory=a_node(name)))
        machine.handle(NodeHeard(at=0.0, heartbeat=Heartbeat(node=name, incarnation="i1", sequence=1)))
    for number, job_id in enumerate(JOBS, start=1):
        machine.handle(ProgressSeen(at=0.0, job_id=job_id, progress=on_bad_n1(job_id, number)))
    stored = {c.status.node: c.status for c in machine.handle(Ticked(at=0.1)) if isinstance(c, StoreNodeStatus)}
    assert {node: status.state for node, status in stored.items()} == {
        "n1": NodeState.QUARANTINED,
        "n2": NodeState.READY,
    }
    assert "hadare undrain" in stored["n1"].reason
    successor = RoundMachine(RoundSettings(epoch=2))
    successor.recover(None, None, [], None, 0.0, stored.values())
    assert successor.nodes.quarantined() == {"n1"}
