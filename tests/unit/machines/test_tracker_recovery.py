"""The tracker's machine where things were left behind: past rounds, dead forks, objects of no use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pytest

from builders import a_job, a_node, a_result, an_entry, an_object, some_progress
from hadare.machines.job_book import TrackerSettings
from hadare.machines.lease_state import LeaseLimits
from hadare.machines.tracker import TrackerMachine
from hadare.machines.tracker_events import (
    AnswerClose,
    CloseAsked,
    Consolidate,
    DeleteObjects,
    GrantLease,
    JobChanged,
    ListObjects,
    ManifestsRead,
    NodeChanged,
    ObjectsListed,
    OpenAsked,
    Record,
    ResultArrived,
    StoreManifest,
    StoreProgress,
    Ticked,
    TrackerCommand,
)
from hadare.model.devices import NodeState
from hadare.model.jobs import JobProgress, JobState, LedgerEntry, Trial, VersionManifest
from hadare.model.leases import Failure, LeaseKey
from hadare.model.rounds import CloseAnswer, CloseRequest, JobOpening, OpenRequest

C = TypeVar("C")

SHA = "0" * 64


class World:
    """A job with version 0 on two nodes, and what was stored of it last."""

    def __init__(self) -> None:
        self.machine = TrackerMachine(TrackerSettings(keep_versions=2, sweep_s=10.0))
        self.progress = JobProgress(job_id="job-a", name="job-a", state=JobState.QUEUED)
        self.at = 0.0
        for name in ("n1", "n2"):
            self.send(NodeChanged(at=0.0, node=name, inventory=a_node(name), state=NodeState.READY))
        self.send(JobChanged(at=0.0, record=a_job(total_steps=300)))

    def send(self, event: Any) -> list[TrackerCommand]:
        commands = self.machine.handle(event)
        for command in commands:
            if isinstance(command, StoreProgress):
                self.progress = command.progress
        return commands

    def initialise(self) -> None:
        key = LeaseKey(job_id="job-a", round=0, fork=0, attempt=1, kind="init")
        made = an_object(f"job-a.0.0.1.init.{SHA}")
        result = a_result("job-a", kind="init", key=key, base_version=-1, steps=0, object=made)
        self.send(ResultArrived(at=self.at, result=result, token=1))

    def open(self, *entries: LedgerEntry, number: int = 1) -> list[TrackerCommand]:
        jobs = (JobOpening(job_id="job-a", base_version=self.progress.version, forks=entries),) if entries else ()
        request = OpenRequest(round=number, epoch=1, round_s=10.0, jobs=jobs)
        return self.send(OpenAsked(at=self.at, request=request, token=2))

    def close(self, number: int = 1, **changes: Any) -> list[TrackerCommand]:
        request = CloseRequest(round=number, epoch=1, **changes)
        return self.send(CloseAsked(at=self.at, request=request, token=3))

    def outcomes(self) -> list[str]:
        return [entry.outcome for entry in self.progress.open.forks] if self.progress.open else []

    def sweep(self, *names: str) -> tuple[str, ...]:
        commands = self.send(ObjectsListed(at=self.at, names=names))
        return tuple(name for command in commands if isinstance(command, DeleteObjects) for name in command.names)


def one(commands: list[TrackerCommand], kind: type[C]) -> C:
    (found,) = [command for command in commands if isinstance(command, kind)]
    return found


@pytest.fixture
def world() -> World:
    world = World()
    world.initialise()
    return world


def test_a_round_that_opens_ends_the_one_before_with_what_it_has(world: World) -> None:
    world.open(an_entry(0, "n1"), an_entry(1, "n2"))
    world.send(ResultArrived(at=1.0, result=a_result(fork=0), token=4))
    commands = world.open(number=2)
    assert world.outcomes() == ["received", "missing"]
    assert [fork.fork for fork in one(commands, Consolidate).forks] == [0]


def test_a_round_that_opens_leaves_itself_open(world: World) -> None:
    world.open(an_entry(0, "n1"))
    world.open(an_entry(0, "n1"))
    assert world.outcomes() == ["expected"]


def test_the_close_of_a_later_round_ends_a_job_that_was_left_in_an_earlier_one(world: World) -> None:
    world.open(an_entry(0, "n1"))
    world.close(number=5)
    assert (world.progress.open, world.progress.closed_round) == (None, 1)


def test_only_the_withdrawn_forks_are_given_up_while_the_round_goes_on(world: World) -> None:
    world.open(an_entry(0, "n1"), an_entry(1, "n2"))
    world.close(withdrawn={"job-a.1.1.0": "its node agent was started again"}, only_withdrawn=True)
    assert world.outcomes() == ["expected", "missing"]


def test_a_job_whose_forks_are_all_withdrawn_is_out_of_its_round_at_once(world: World) -> None:
    world.open(an_entry(0, "n1"))
    world.close(withdrawn={"job-a.1.0.0": "its node agent was started again"}, only_withdrawn=True)
    assert (world.progress.open, world.progress.closed_round) == (None, 1)


@pytest.mark.parametrize("kind", ["fetch", "upload", "device"])
def test_trouble_of_the_cluster_is_no_failure_of_a_job_and_is_tried_again_after_a_while(kind: Any) -> None:
    world = World()
    for attempt in range(1, 8):
        key = LeaseKey(job_id="job-a", round=0, fork=0, attempt=attempt, kind="init")
        failure = Failure(kind=kind, message="the store is away")
        failed = a_result("job-a", kind="init", key=key, steps=0, object=None, failure=failure)
        world.at += 5.0
        commands = world.send(ResultArrived(at=world.at, result=failed, token=1))
        assert not [command for command in commands if isinstance(command, GrantLease)]
        assert one(world.send(Ticked(at=world.at + 3.0)), GrantLease).lease.key.attempt == attempt + 1
    assert (world.progress.state, world.progress.failures) == (JobState.QUEUED, 0)


def lose_rounds(world: World, count: int, failure: Failure | None = None) -> list[Record]:
    """Rounds whose only fork brings nothing; what the job's history says of them."""
    notes: list[Record] = []
    for number in range(1, count + 1):
        node = f"n{1 + number % 2}"
        commands = world.open(an_entry(0, node), number=number)
        if failure is not None:
            failed = a_result(round=number, node=node, steps=0, object=None, failure=failure)
            commands += world.send(ResultArrived(at=world.at, result=failed, token=4))
        commands += world.close(number=number)
        notes += [command for command in commands if isinstance(command, Record)]
    return notes


def test_a_job_without_progress_does_not_go_unnoticed(world: World) -> None:
    notes = lose_rounds(world, 11)
    stalled = [note.event.data["rounds"] for note in notes if note.event.what == "stalled"]
    assert stalled == [5, 10]
    assert world.progress.reason.startswith("11 rounds in a row brought nothing, the last one was 11: n2: no result")
    assert world.progress.state is JobState.WAITING


def test_a_job_whose_processes_are_killed_in_every_round_is_given_up_with_the_reason(world: World) -> None:
    lose_rounds(world, 6, Failure(kind="killed", message="the process ended by signal 11"))
    assert world.progress.state is JobState.FAILED
    assert "signal 11" in world.progress.reason


@pytest.mark.parametrize("kind", ["fetch", "upload", "device"])
def test_rounds_that_the_cluster_has_lost_never_make_a_job_fail(world: World, kind: Any) -> None:
    lose_rounds(world, 12, Failure(kind=kind, message="the store is away"))
    assert (world.progress.failures, world.progress.barren) == (0, 12)
    assert not world.progress.state.ended


def test_the_store_is_searched_once_in_every_interval(world: World) -> None:
    asked = [
        any(isinstance(command, ListObjects) for command in world.send(Ticked(at=float(at)))) for at in range(0, 26, 5)
    ]
    assert asked == [False, False, True, False, True, False]


def test_the_result_of_a_closed_round_goes_when_it_was_of_no_use_twice(world: World) -> None:
    world.open(an_entry(0, "n1"))
    world.close()
    left = f"job-a.1.0.0.{SHA}"
    assert world.sweep(left) == ()
    assert world.sweep(left) == (left,)


@pytest.mark.parametrize(
    "name",
    [
        f"job-a.0.0.1.init.{SHA}",  # version 0
        f"job-a.1.0.0.{SHA}",  # the open round's: its result may be on its way
        f"job-a.2.0.0.{SHA}",  # of a round that is yet to open here
        f"job-a.v1.{SHA}",  # a version that is being made
        "somebody-elses",
        f"weights.of.mine.{SHA}",
    ],
)
def test_what_may_be_needed_and_what_is_not_understood_stays(world: World, name: str) -> None:
    world.open(an_entry(0, "n1"))
    assert [world.sweep(name) for _ in range(3)] == [(), (), ()]


@pytest.mark.parametrize("label", ["gone.v3", "gone.v3.changes", "gone.4.0.0", "job-a.0.0.2.init", "job-a.v0.changes"])
def test_objects_of_deleted_jobs_second_initial_models_and_changes_to_a_published_version_go(
    world: World, label: str
) -> None:
    name = f"{label}.{SHA}"
    assert [world.sweep(name) for _ in range(2)] == [(), (name,)]


def test_the_kept_versions_of_a_job_that_had_ended_before_a_restart_stay() -> None:
    machine = TrackerMachine(TrackerSettings(keep_versions=2))
    ended = JobProgress(
        job_id="job-a",
        name="job-a",
        state=JobState.COMPLETED,
        version=1,
        weights=an_object(f"job-a.v1.{SHA}"),
    )
    machine.recover([a_job()], [ended], [], 0.0)
    kept = (f"job-a.v1.{SHA}", f"job-a.0.0.1.init.{SHA}")
    for _ in range(3):
        assert machine.handle(ObjectsListed(at=0.0, names=kept)) == []


def test_another_form_of_a_kept_version_of_an_ended_job_goes_after_a_restart() -> None:
    machine = TrackerMachine(TrackerSettings(keep_versions=2))
    own, other, newest = f"job-a.v1.{SHA}", f"job-a.v1.{'1' * 64}", f"job-a.v2.{SHA}"
    ended = JobProgress(
        job_id="job-a", name="job-a", state=JobState.COMPLETED, version=2, weights=an_object(newest), steps=9
    )
    machine.recover([a_job()], [ended], [], 0.0)
    assert machine.unread_manifests((own, newest)) == ()
    assert machine.unread_manifests((own, other, newest)) == ("job-a.1",)
    read = VersionManifest(job_id="job-a", version=1, base_version=0, steps=5, weights=an_object(own))
    machine.handle(ManifestsRead(at=0.0, manifests=(read,)))
    swept = [machine.handle(ObjectsListed(at=0.0, names=(own, other, newest))) for _ in range(2)]
    assert swept == [[], [DeleteObjects(names=(other,))]]
    assert machine.unread_manifests((own, newest)) == ()


def test_a_version_that_is_read_only_when_it_is_too_old_already_is_retired_then() -> None:
    machine = TrackerMachine(TrackerSettings(epoch=2, keep_versions=2))
    newest = VersionManifest(job_id="job-a", version=5, base_version=4, steps=5, weights=an_object("job-a.v5"))
    machine.recover([a_job()], [some_progress(version=5, weights=newest.weights)], [newest], 0.0)
    old, kept = (replace(newest, version=v, weights=an_object(f"job-a.v{v}")) for v in (3, 4))
    commands = machine.handle(ManifestsRead(at=0.0, manifests=(old, kept)))
    assert [c.manifest.version for c in commands if isinstance(c, StoreManifest)] == [3]
    assert [c.names for c in commands if isinstance(c, DeleteObjects)] == [(old.weights.name,)]


def test_after_a_restart_a_job_that_one_node_failed_is_not_given_up_before_the_others_are_seen(world: World) -> None:
    failed = some_progress(
        "job-a", failures=3, trials={"n1": Trial(round=3, failed=3, first=1, version=0)}, closed_round=3
    )
    machine = TrackerMachine(TrackerSettings(epoch=2))
    machine.recover([a_job()], [failed], [], 0.0, [a_node("n1"), a_node("n2")])
    machine.handle(NodeChanged(at=0.0, node="n1", inventory=a_node("n1"), state=NodeState.READY))
    progress = machine.progress_of("job-a")
    assert progress is not None
    assert not progress.state.ended


def successor_of(world: World, at: float) -> World:
    """A tracker that takes over from what was stored."""
    world.machine = TrackerMachine(TrackerSettings(epoch=2, hear_s=4.0))
    world.machine.recover([a_job(total_steps=300)], [world.progress], [], at, [a_node("n1"), a_node("n2")])
    world.at = at
    return world


def closed(commands: list[TrackerCommand]) -> list[CloseAnswer]:
    return [command.answer for command in commands if isinstance(command, AnswerClose)]


def test_a_tracker_that_takes_over_hears_the_forks_out_before_it_closes_their_round(world: World) -> None:
    world.open(an_entry(0, "n1"), an_entry(1, "n2"))
    successor = successor_of(world, at=100.0)
    assert closed(successor.close()) == []
    assert closed(successor.send(ResultArrived(at=101.0, result=a_result(fork=0), token=4))) == []
    commands = successor.send(ResultArrived(at=102.0, result=a_result(fork=1, node="n2"), token=5))
    (answer,) = closed(commands)
    assert (answer.missing, successor.outcomes()) == ((), ["received", "received"])


def test_a_tracker_that_takes_over_does_not_wait_for_ever(world: World) -> None:
    world.open(an_entry(0, "n1"), an_entry(1, "n2"))
    successor = successor_of(world, at=100.0)
    successor.send(ResultArrived(at=100.5, result=a_result(fork=0), token=4))
    successor.close()
    assert closed(successor.send(Ticked(at=103.9))) == []
    (answer,) = closed(successor.send(Ticked(at=104.0)))
    assert answer.missing == ("job-a.1",)


def test_a_tracker_that_takes_over_does_not_wait_for_forks_that_were_withdrawn(world: World) -> None:
    world.open(an_entry(0, "n1"))
    successor = successor_of(world, at=100.0)
    assert closed(successor.close(withdrawn={"job-a.1.0.0": "n1 is lost"}))


def test_a_tracker_waits_for_no_fork_of_a_round_that_it_has_opened_itself(world: World) -> None:
    successor = successor_of(world, at=100.0)
    successor.open(an_entry(0, "n1"))
    assert closed(successor.close())[0].missing == ("job-a.0",)


def test_agents_tell_again_in_time_to_be_heard_by_a_tracker_that_takes_over() -> None:
    assert LeaseLimits().retry_max_s < TrackerSettings().hear_s


def test_of_an_ended_job_only_the_newest_versions_own_weights_stay_after_a_restart(world: World) -> None:
    assert world.progress.weights is not None
    world.progress = replace(world.progress, state=JobState.FAILED)
    successor = successor_of(world, at=100.0)
    names = (world.progress.weights.name, f"job-a.0.0.2.init.{'1' * 64}")
    assert (successor.sweep(*names), successor.sweep(*names)) == ((), names[1:])
