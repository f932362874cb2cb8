"""The tracker's machine: events in, commands out."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from builders import a_job, a_node, a_result, an_entry, an_object
from hadare.machines.job_book import TrackerSettings
from hadare.machines.tracker import TrackerMachine
from hadare.machines.tracker_events import (
    AnswerClose,
    AnswerOpen,
    AnswerResult,
    CloseAsked,
    Consolidate,
    Consolidated,
    DeleteObjects,
    ForgetJob,
    ForkKept,
    GrantLease,
    JobChanged,
    JobDeleted,
    NodeChanged,
    OpenAsked,
    Record,
    RefuseQuestion,
    ResultArrived,
    RevokeAnswered,
    RevokeJob,
    StoreManifest,
    StoreProgress,
    Ticked,
    TrackerCommand,
)
from hadare.model.devices import NodeState
from hadare.model.jobs import Desired, JobProgress, JobState, LedgerEntry, Until
from hadare.model.leases import Evaluation, Failure, ForkResult, LeaseKey
from hadare.model.rounds import CloseRequest, JobOpening, OpenRequest

C = TypeVar("C")


class World:
    """A machine with the little state that its shell would keep."""

    def __init__(self, machine: TrackerMachine | None = None) -> None:
        self.machine = machine or TrackerMachine(TrackerSettings(keep_versions=2))
        self.at = 0.0
        self.stored: list[JobProgress] = []
        self.versions = 0

    def send(self, event: Any) -> list[TrackerCommand]:
        commands = self.machine.handle(event)
        self.stored += [command.progress for command in commands if isinstance(command, StoreProgress)]
        return commands

    @property
    def progress(self) -> JobProgress:
        return self.stored[-1]

    def node(self, name: str = "n1", state: NodeState = NodeState.READY) -> list[TrackerCommand]:
        return self.send(NodeChanged(at=self.at, node=name, inventory=a_node(name), state=state))

    def job(self, **changes: Any) -> list[TrackerCommand]:
        return self.send(JobChanged(at=self.at, record=a_job(**changes)))

    def result(self, result: ForkResult, token: int = 9) -> list[TrackerCommand]:
        return self.send(ResultArrived(at=self.at, result=result, token=token))

    def initialise(self, job_id: str = "job-a") -> list[TrackerCommand]:
        key = LeaseKey(job_id=job_id, round=0, fork=0, attempt=1, kind="init")
        made = a_result(job_id, kind="init", key=key, base_version=-1, steps=0, object=an_object(f"{job_id}-v0"))
        return self.result(made)

    def open(self, *entries: LedgerEntry, round_number: int = 1, epoch: int = 1, base: int = 0) -> list[TrackerCommand]:
        opening = JobOpening(job_id="job-a", base_version=base, forks=entries or (an_entry(),))
        request = OpenRequest(round=round_number, epoch=epoch, round_s=10.0, jobs=(opening,))
        return self.send(OpenAsked(at=self.at, request=request, token=7))

    def close(self, round_number: int = 1, epoch: int = 1, **changes: Any) -> list[TrackerCommand]:
        request = CloseRequest(round=round_number, epoch=epoch, **changes)
        return self.send(CloseAsked(at=self.at, request=request, token=8))

    def consolidated(
        self, *forks: int, round_number: int = 1, rejected: dict[int, str] | None = None, notes: tuple[str, ...] = ()
    ) -> Any:
        self.versions += 1
        kept = tuple(ForkKept(fork=f, weight=1 / len(forks), delta_norm=1.0, agreement=1.0) for f in forks)
        weights = an_object(f"job-a-v{self.versions}") if forks else None
        told = {"kept": kept, "rejected": rejected or {}, "notes": notes}
        return self.send(Consolidated(at=self.at, job_id="job-a", round=round_number, weights=weights, **told))


def one(commands: list[TrackerCommand], kind: type[C]) -> C:
    found = [command for command in commands if isinstance(command, kind)]
    assert len(found) == 1, commands
    return found[0]


def kinds(commands: list[TrackerCommand]) -> list[type]:
    return [type(command) for command in commands]


@pytest.fixture
def ready() -> World:
    """A job with version 0 and two nodes."""
    world = World()
    world.node("n1")
    world.node("n2")
    world.job(total_steps=300)
    world.initialise()
    return world


def test_a_new_job_is_stored_queued_before_its_init_lease_goes_out() -> None:
    world = World()
    world.node()
    commands = world.job()
    assert kinds(commands) == [StoreProgress, Record, StoreProgress, GrantLease]
    assert world.stored[0].state is JobState.QUEUED
    assert one(commands, GrantLease).lease.kind == "init"


def test_a_job_seen_twice_is_initialised_once() -> None:
    world = World()
    world.node()
    world.job()
    assert world.job() == []


def test_without_a_ready_node_a_job_waits_with_the_reason_and_starts_when_one_comes() -> None:
    world = World()
    world.job()
    assert "no node is ready" in world.progress.reason
    assert one(world.node(), GrantLease).lease.node == "n1"


def test_the_initial_model_and_version_0_become_visible_in_one_write_after_the_manifest() -> None:
    world = World()
    world.node()
    world.job()
    commands = world.initialise()
    assert kinds(commands)[:2] == [StoreManifest, StoreProgress]
    assert (world.progress.version, world.progress.state) == (0, JobState.WAITING)
    assert one(commands, AnswerResult).answer.counted


def test_an_init_that_fails_for_the_nodes_own_reasons_is_tried_on_another_node() -> None:
    world = World()
    world.node("n1")
    world.node("n2")
    first = one(world.job(), GrantLease).lease
    failure = Failure(kind="import", message="No module named 'foo'", node_specific=True)
    failed = a_result(kind="init", key=first.key, node=first.node, steps=0, object=None, failure=failure)
    second = one(world.result(failed), GrantLease).lease
    assert second.node != first.node
    assert world.progress.excluded == {first.node: "No module named 'foo'"}


def test_a_job_that_no_node_can_run_fails_with_every_nodes_reason() -> None:
    world = World()
    world.node("n1")
    lease = one(world.job(), GrantLease).lease
    failure = Failure(kind="import", message="No module named 'foo'", tail="Traceback ...", node_specific=True)
    world.result(a_result(kind="init", key=lease.key, node="n1", steps=0, object=None, failure=failure))
    assert world.progress.state is JobState.FAILED
    assert "n1: No module named 'foo'" in world.progress.reason
    assert world.progress.error == "Traceback ..."


def fail_three_times(world: World, message: str, tail: str) -> None:
    world.node()
    lease = one(world.job(), GrantLease).lease
    for _ in range(3):
        failure = Failure(kind="exception", message=message, tail=tail)
        commands = world.result(a_result(kind="init", key=lease.key, steps=0, object=None, failure=failure))
        leases = [command.lease for command in commands if isinstance(command, GrantLease)]
        lease = leases[0] if leases else lease
    assert world.progress.state is JobState.FAILED


def test_a_job_whose_own_code_fails_is_given_up_after_three_attempts() -> None:
    world = World()
    fail_three_times(world, "ValueError: no", "Traceback ...")
    assert world.progress.reason.startswith("it failed 3 times in a row (on n1): ValueError: no")


def test_what_a_failure_and_its_traceback_both_say_is_said_once() -> None:
    world = World()
    fail_three_times(world, "ValidationError: no", "Traceback ...\nmsgspec.ValidationError: no")
    assert world.progress.reason == "it failed 3 times in a row (on n1): ValidationError: no"


def test_a_round_is_opened_in_the_ledger_before_the_allocator_hears_of_it(ready: World) -> None:
    commands = ready.open()
    assert kinds(commands) == [StoreProgress, AnswerOpen]
    assert one(commands, AnswerOpen).answer.accepted == ("job-a",)
    assert ready.progress.state is JobState.RUNNING


def test_opening_the_same_round_twice_changes_nothing(ready: World) -> None:
    ready.open()
    commands = ready.open()
    assert kinds(commands) == [AnswerOpen]
    assert one(commands, AnswerOpen).answer.accepted == ("job-a",)


def test_a_round_from_another_base_version_is_refused(ready: World) -> None:
    answer = one(ready.open(base=3), AnswerOpen).answer
    assert answer.refused == {"job-a": "its version is 0, not 3"}


def test_a_question_of_an_older_epoch_is_fenced(ready: World) -> None:
    ready.open(epoch=5)
    assert kinds(ready.close(epoch=4)) == [RefuseQuestion]


def test_a_result_is_stored_before_it_is_acknowledged(ready: World) -> None:
    ready.open(an_entry(0), an_entry(1, "n2"))
    commands = ready.result(a_result())
    assert kinds(commands) == [StoreProgress, AnswerResult]
    assert one(commands, AnswerResult).answer.counted


def test_the_last_result_starts_the_consolidation_of_all_forks(ready: World) -> None:
    ready.open(an_entry(0), an_entry(1, "n2"))
    ready.result(a_result(fork=0, steps=120))
    commands = ready.result(a_result(fork=1, node="n2", steps=30))
    assert [(fork.fork, fork.steps) for fork in one(commands, Consolidate).forks] == [(0, 120), (1, 30)]


def test_steps_and_version_appear_together_and_the_manifest_before_them(ready: World) -> None:
    ready.open(an_entry(0), an_entry(1, "n2"))
    ready.result(a_result(fork=0, steps=120))
    ready.result(a_result(fork=1, node="n2", steps=30))
    commands = ready.consolidated(0, 1)
    manifest, progress = commands[0], commands[1]
    assert isinstance(manifest, StoreManifest)
    assert isinstance(progress, StoreProgress)
    assert (progress.progress.version, progress.progress.steps) == (1, 150)
    assert progress.progress.open is None
    assert [parent.steps for parent in manifest.manifest.parents] == [120, 30]


def test_a_fork_that_the_consolidation_rejects_counts_no_steps(ready: World) -> None:
    ready.open(an_entry(0), an_entry(1, "n2"))
    ready.result(a_result(fork=0, steps=120))
    ready.result(a_result(fork=1, node="n2", steps=30))
    ready.consolidated(0, rejected={1: "not finite"})
    assert ready.progress.steps == 120


@pytest.mark.parametrize("notes", [(), ("mask differs between the forks",)])
def test_the_history_tells_what_was_decided_of_tensors_without_a_mean(ready: World, notes: tuple[str, ...]) -> None:
    ready.open(an_entry(0))
    ready.result(a_result(fork=0, steps=120))
    story = next(c.event.data for c in ready.consolidated(0, notes=notes) if isinstance(c, Record))
    assert story.get("notes", []) == list(notes)


def test_the_same_result_twice_is_acknowledged_and_counted_once(ready: World) -> None:
    ready.open(an_entry(0), an_entry(1, "n2"))
    ready.result(a_result(steps=120))
    again = ready.result(a_result(steps=120))
    assert kinds(again) == [AnswerResult]
    assert one(again, AnswerResult).answer.counted
    ready.result(a_result(fork=1, node="n2", steps=30))
    ready.consolidated(0, 1)
    assert ready.progress.steps == 150


def test_another_result_for_a_counted_fork_counts_nothing_and_its_object_goes(ready: World) -> None:
    ready.open(an_entry(0), an_entry(1, "n2"))
    ready.result(a_result(steps=120))
    commands = ready.result(a_result(steps=499, object=an_object("impostor")))
    assert not one(commands, AnswerResult).answer.counted
    assert one(commands, DeleteObjects).names == ("impostor",)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"epoch": 2}, "epoch 2"),
        ({"base_version": 4}, "from version 4"),
        ({"node": "n2"}, "on n2"),
        ({"fork": 5}, "no fork 5"),
        ({"round": 3}, "takes no part in round 3"),
        ({"key": LeaseKey(job_id="job-a", round=1, fork=0, attempt=1)}, "no fork 0 attempt 1"),
        ({"steps": 501}, "its quota was 500"),
    ],
)
def test_a_result_that_is_not_the_open_rounds_counts_nothing_and_says_why(
    ready: World, changes: dict[str, Any], why: str
) -> None:
    ready.open()
    answer = one(ready.result(a_result(**changes)), AnswerResult).answer
    assert not answer.counted
    assert why in answer.reason


def test_a_late_result_of_a_closed_round_counts_nothing(ready: World) -> None:
    ready.open(an_entry(0), an_entry(1, "n2"))
    ready.result(a_result(fork=0))
    assert one(ready.close(), AnswerClose).answer.missing == ("job-a.1",)
    ready.consolidated(0)
    answer = one(ready.result(a_result(fork=1, node="n2")), AnswerResult).answer
    assert (answer.counted, answer.reason) == (False, "round 1 of the job is closed")
    assert ready.progress.steps == 100


def test_closing_a_round_consolidates_what_has_arrived(ready: World) -> None:
    ready.open(an_entry(0), an_entry(1, "n2"))
    ready.result(a_result(fork=0))
    commands = ready.close()
    assert [fork.fork for fork in one(commands, Consolidate).forks] == [0]
    assert one(commands, AnswerClose).answer.pending == ("job-a",)


def test_a_round_without_any_result_is_lost_and_keeps_version_and_steps(ready: World) -> None:
    ready.open()
    ready.close()
    assert (ready.progress.version, ready.progress.steps, ready.progress.lost_rounds) == (0, 0, 1)
    assert ready.progress.open is None


def test_a_fork_with_zero_steps_is_not_consolidated(ready: World) -> None:
    ready.open(an_entry(0), an_entry(1, "n2"))
    ready.result(a_result(fork=0, steps=0))
    commands = ready.result(a_result(fork=1, node="n2"))
    assert [fork.fork for fork in one(commands, Consolidate).forks] == [1]


def test_throughput_is_learned_per_rank_and_type(ready: World) -> None:
    ready.open(an_entry(0, ranks=2))
    ready.result(a_result(throughput=20.0, ranks=2))
    assert ready.progress.throughput["V100"].steps_per_s == pytest.approx(20.0)


def test_a_job_with_all_its_steps_is_evaluated_and_then_complete(ready: World) -> None:
    ready.open()
    ready.result(a_result(steps=300))
    lease = one(ready.consolidated(0), GrantLease).lease
    assert (lease.kind, lease.base_version) == ("evaluate", 1)
    seen = Evaluation(version=1, sha256=an_object("job-a-v1").sha256, metrics={"accuracy": 0.97})
    ready.result(a_result(kind="evaluate", key=lease.key, node=lease.node, object=None, evaluation=seen))
    assert ready.progress.state is JobState.COMPLETED
    assert (ready.progress.metrics, ready.progress.metrics_version) == ({"accuracy": 0.97}, 1)


def test_metrics_of_other_weights_than_the_versions_are_not_taken(ready: World) -> None:
    ready.open(an_entry(0), an_entry(1, "n2"))
    foreign = Evaluation(version=0, sha256="f" * 64, metrics={"accuracy": 0.99})
    ready.result(a_result(evaluation=foreign))
    assert ready.progress.metrics == {}


def test_a_target_that_an_older_version_reached_is_checked_on_the_newest(ready: World) -> None:
    until = Until(metric="accuracy", at_least=0.9)
    ready.job(total_steps=300, until=until)
    ready.open()
    seen = Evaluation(version=0, sha256=an_object("job-a-v0").sha256, metrics={"accuracy": 0.95})
    ready.result(a_result(evaluation=seen))
    lease = one(ready.consolidated(0), GrantLease).lease
    newer = Evaluation(version=1, sha256=an_object("job-a-v1").sha256, metrics={"accuracy": 0.85})
    ready.result(a_result(kind="evaluate", key=lease.key, node=lease.node, object=None, evaluation=newer))
    assert ready.progress.state is JobState.WAITING


def test_old_weights_are_deleted_and_their_manifests_kept(ready: World) -> None:
    for number in (1, 2):
        ready.open(round_number=number, base=number - 1)
        ready.result(a_result(round=number, base_version=number - 1, steps=10))
        commands = ready.consolidated(0, round_number=number)
    gone = [command.manifest for command in commands if isinstance(command, StoreManifest)][-1]
    assert (gone.version, gone.weights_deleted) == (0, True)
    assert ("job-a-v0",) in [command.names for command in commands if isinstance(command, DeleteObjects)]


def test_cancel_ends_only_when_every_node_has_proven_itself_free(ready: World) -> None:
    ready.open(an_entry(0), an_entry(1, "n2"))
    commands = ready.job(total_steps=300, desired=Desired.CANCELLED)
    assert sorted(command.node for command in commands if isinstance(command, RevokeJob)) == ["n1", "n2"]
    ready.send(RevokeAnswered(at=0.0, job_id="job-a", node="n1", free=True))
    assert ready.progress.state is JobState.CANCELLING
    ready.send(RevokeAnswered(at=0.0, job_id="job-a", node="n2", free=True))
    assert ready.progress.state is JobState.CANCELLED


def test_a_node_that_could_not_be_freed_is_asked_again(ready: World) -> None:
    ready.open()
    ready.job(total_steps=300, desired=Desired.CANCELLED)
    ready.send(RevokeAnswered(at=0.0, job_id="job-a", node="n1", free=False))
    assert kinds(ready.send(Ticked(at=10.0))) == [RevokeJob]


def test_a_lost_node_does_not_hold_up_a_cancel(ready: World) -> None:
    ready.open()
    ready.job(total_steps=300, desired=Desired.CANCELLED)
    ready.node("n1", NodeState.LOST)
    assert ready.progress.state is JobState.CANCELLED


def test_a_result_of_a_cancelled_job_counts_nothing(ready: World) -> None:
    ready.open()
    ready.job(total_steps=300, desired=Desired.CANCELLED)
    assert not one(ready.result(a_result()), AnswerResult).answer.counted


def test_a_paused_job_finishes_its_round_and_takes_no_part_in_the_next(ready: World) -> None:
    ready.open()
    ready.job(total_steps=300, desired=Desired.PAUSED)
    ready.result(a_result())
    ready.consolidated(0)
    assert (ready.progress.state, ready.progress.steps) == (JobState.PAUSED, 100)
    assert one(ready.open(round_number=2, base=1), AnswerOpen).answer.refused == {"job-a": "the job is paused"}


def test_a_resumed_job_waits_for_the_next_round(ready: World) -> None:
    ready.job(total_steps=300, desired=Desired.PAUSED)
    ready.job(total_steps=300, desired=Desired.RUN)
    assert ready.progress.state is JobState.WAITING


def test_a_deleted_job_leaves_no_object_and_no_record(ready: World) -> None:
    commands = ready.send(JobDeleted(at=0.0, job_id="job-a"))
    assert one(commands, DeleteObjects).names == ("job-a-v0",)
    assert one(commands, ForgetJob).versions == (0,)


def test_after_a_restart_results_on_record_are_consolidated_without_being_sent_again(ready: World) -> None:
    ready.open()
    ready.result(a_result(steps=120))
    restarted = TrackerMachine(TrackerSettings(epoch=2))
    restarted.recover([a_job(total_steps=300)], [ready.progress], [], 0.0)
    commands = restarted.handle(Ticked(at=1.0))
    assert [fork.steps for fork in one(commands, Consolidate).forks] == [120]


def test_after_a_restart_the_open_round_still_takes_results(ready: World) -> None:
    ready.open()
    restarted = TrackerMachine(TrackerSettings(epoch=2))
    restarted.recover([a_job(total_steps=300)], [ready.progress], [], 0.0)
    commands = restarted.handle(ResultArrived(at=1.0, result=a_result(), token=1))
    assert one(commands, AnswerResult).answer.counted


def test_three_rounds_in_which_only_the_jobs_own_code_failed_end_it(ready: World) -> None:
    failure = Failure(kind="not_finite", message="the loss is not finite")
    for number, node in enumerate(("n1", "n2", "n1"), start=1):
        ready.open(an_entry(node=node), round_number=number)
        ready.result(a_result(round=number, node=node, steps=0, object=None, failure=failure, reason="failed"))
    assert ready.progress.state is JobState.FAILED
    assert "the loss is not finite" in ready.progress.reason


def test_a_job_that_only_one_node_fails_is_not_given_up_while_it_has_others_to_try(ready: World) -> None:
    failure = Failure(kind="exception", message="CUDA error: unspecified launch failure")
    for number in range(1, 9):
        ready.open(round_number=number)
        ready.result(a_result(round=number, steps=0, object=None, failure=failure, reason="failed"))
    assert not ready.progress.state.ended
    ready.open(round_number=9)
    ready.result(a_result(round=9, steps=0, object=None, failure=failure, reason="failed"))
    assert ready.progress.state is JobState.FAILED


def test_what_failed_elsewhere_before_a_version_came_or_by_its_device_does_not_count_against_the_job(
    ready: World,
) -> None:
    own = Failure(kind="exception", message="CUDA error: unspecified launch failure")
    broken = Failure(kind="device", message="device 0 is unhealthy: Xid 79")

    def fails(number: int, node: str, failure: Failure, version: int) -> None:
        ready.open(an_entry(node=node), round_number=number, base=version)
        came = {"round": number, "node": node, "base_version": version, "failure": failure, "reason": "failed"}
        ready.result(a_result(**came, steps=0, object=None))

    fails(1, "n2", own, 0)
    ready.open(round_number=2)
    ready.result(a_result(round=2))
    ready.consolidated(0, round_number=2)
    fails(3, "n2", broken, 1)
    for number in (4, 5, 6):
        fails(number, "n1", own, 1)
    assert not ready.progress.state.ended
    fails(7, "n2", own, 1)
    assert ready.progress.state is JobState.FAILED


def test_a_killed_process_on_another_node_is_no_second_witness_against_a_job(ready: World) -> None:
    own = Failure(kind="exception", message="CUDA error: unspecified launch failure")
    killed = Failure(kind="killed", message="the fork's process ended by signal 9")
    for number, (node, failure) in enumerate((("n1", own), ("n2", killed), ("n1", own), ("n1", own)), start=1):
        ready.open(an_entry(node=node), round_number=number)
        ready.result(a_result(round=number, node=node, steps=0, object=None, failure=failure, reason="failed"))
    assert not ready.progress.state.ended
    ready.open(an_entry(node="n2"), round_number=5)
    ready.result(a_result(round=5, node="n2", steps=0, object=None, failure=own, reason="failed"))
    assert ready.progress.state is JobState.FAILED


def test_a_job_that_failed_on_the_only_node_is_given_up() -> None:
    world = World()
    world.node("n1")
    world.job(total_steps=300)
    world.initialise()
    failure = Failure(kind="exception", message="KeyError: 'label'")
    for number in (1, 2, 3):
        world.open(round_number=number)
        world.result(a_result(round=number, steps=0, object=None, failure=failure, reason="failed"))
    assert world.progress.state is JobState.FAILED


def test_an_initial_model_that_failed_on_a_node_is_built_on_another(ready: World) -> None:
    failure = Failure(kind="exception", message="CUDA error")
    nodes = []
    commands = ready.job(job_id="job-b")
    for attempt in (1, 2, 3):
        lease = one(commands, GrantLease).lease
        nodes.append(lease.node)
        failed = a_result("job-b", kind="init", key=lease.key, node=lease.node, steps=0, object=None, failure=failure)
        commands = ready.result(failed, token=attempt)
    assert set(nodes[:2]) == {"n1", "n2"}
    assert ready.progress.state is JobState.FAILED


def test_a_killed_fork_costs_its_round_and_nothing_else(ready: World) -> None:
    failure = Failure(kind="killed", message="its process was killed")
    for number in (1, 2, 3, 4):
        ready.open(round_number=number)
        ready.result(a_result(round=number, steps=0, object=None, failure=failure, reason="failed"))
    assert (ready.progress.state, ready.progress.lost_rounds) == (JobState.WAITING, 4)
