"""A guard: the candidates of a round are evaluated by those who trained in it, and the best becomes the version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pytest

from builders import a_job, a_node, a_result, an_entry, an_object, some_progress
from hadare.machines.job_book import TrackerSettings
from hadare.machines.job_guard import Choice, Pauses
from hadare.machines.tracker import TrackerMachine
from hadare.machines.tracker_events import (
    AnswerResult,
    Candidate,
    Consolidate,
    Consolidated,
    DeleteObjects,
    ForkKept,
    GrantAnswered,
    GrantLease,
    JobChanged,
    NodeChanged,
    OpenAsked,
    Record,
    ResultArrived,
    RevokeAnswered,
    StoreManifest,
    StoreProgress,
    Ticked,
    TrackerCommand,
)
from hadare.model.devices import NodeState
from hadare.model.jobs import (
    ConsolidationSpec,
    Desired,
    Guarded,
    GuardSpec,
    JobState,
    ObjectRef,
    Until,
    VersionManifest,
)
from hadare.model.leases import Evaluation, Failure, Lease
from hadare.model.rounds import JobOpening, OpenRequest

C = TypeVar("C")

GUARD = ConsolidationSpec(guard=GuardSpec(metric="accuracy", better="higher", margin=0.01))
SCORES = {"average": 0.80, "fastest": 0.90, "longer": 0.70, "nesterov": 0.60}
STEPS = (100, 80, 10)
PARTS = {0: 100 / 190, 1: 80 / 190, 2: 10 / 190}


def candidate(name: str) -> Candidate:
    return Candidate(weights=weights(name), parts={0: 1.0} if name == "fastest" else PARTS)


def weights(name: str) -> ObjectRef:
    return an_object(f"v1-{name}")


class World:
    """A job of three forks, whose round has been consolidated into four candidates at 100 s."""

    def __init__(self, **spec: Any) -> None:
        self.progress = some_progress("job-a")
        self.record = a_job("job-a", **{"consolidation": GUARD, **spec})
        self.manifest: VersionManifest | None = None
        self.at = 100.0
        self.restart(epoch=1)
        self.open()
        for fork, steps in enumerate(STEPS):
            self.result(a_result(fork=fork, node=f"n{fork}", steps=steps))

    def restart(self, epoch: int) -> list[TrackerCommand]:
        self.machine = TrackerMachine(TrackerSettings(epoch=epoch, guard_s=15.0))
        self.machine.recover([self.record], [self.progress], [], self.at)
        return [command for name in ("n0", "n1", "n2") for command in self.node(name, NodeState.READY)]

    def send(self, event: Any) -> list[TrackerCommand]:
        commands = self.machine.handle(event)
        for command in commands:
            if isinstance(command, StoreProgress):
                self.progress = command.progress
            if isinstance(command, StoreManifest):
                self.manifest = command.manifest
        return commands

    def node(self, name: str, state: NodeState) -> list[TrackerCommand]:
        return self.send(NodeChanged(at=self.at, node=name, inventory=a_node(name), state=state))

    def open(self) -> None:
        forks = tuple(an_entry(fork, f"n{fork}", devices=(fork,)) for fork in range(len(STEPS)))
        opening = JobOpening(job_id="job-a", base_version=0, forks=forks)
        request = OpenRequest(round=1, epoch=1, round_s=360.0, jobs=(opening,))
        self.send(OpenAsked(at=self.at, request=request, token=1))

    def result(self, result: Any) -> list[TrackerCommand]:
        return self.send(ResultArrived(at=self.at, result=result, token=2))

    def consolidated(self, *names: str) -> list[Lease]:
        """The leases that follow from the candidates."""
        kept = tuple(ForkKept(fork=f, weight=w, delta_norm=1.0, agreement=0.9) for f, w in PARTS.items())
        made = Consolidated(
            at=self.at,
            job_id="job-a",
            round=1,
            weights=weights("average"),
            kept=kept,
            candidates={name: candidate(name) for name in names or SCORES},
        )
        return leases(self.send(made))

    def evaluated(self, lease: Lease, **changes: Any) -> list[TrackerCommand]:
        """The agent's answer to a lease, with the metrics of the candidate that it names."""
        assert lease.base is not None
        score = SCORES[lease.base.name.removeprefix("v1-")]
        seen = Evaluation(
            version=lease.base_version, sha256=lease.base.sha256, metrics={"accuracy": score, "loss": 1 - score}
        )
        result = a_result(
            kind="evaluate",
            key=lease.key,
            epoch=lease.epoch,
            node=lease.node,
            steps=0,
            object=None,
            evaluation=seen,
            reason="done",
        )
        return self.result(replace(result, **changes))

    def finish(self, pending: list[Lease]) -> list[TrackerCommand]:
        """Everything is evaluated in the order in which it was asked for; what happens at the end."""
        last: list[TrackerCommand] = []
        while pending:
            last = self.evaluated(pending.pop(0))
            pending += leases(last)
        return last

    def why(self) -> str:
        """The guard's reason in the version's manifest, which then is the average."""
        assert self.manifest is not None
        assert self.manifest.guard is not None
        assert (self.manifest.guard.chosen, self.progress.weights) == ("average", weights("average"))
        return self.manifest.guard.reason


def leases(commands: list[TrackerCommand]) -> list[Lease]:
    return [command.lease for command in commands if isinstance(command, GrantLease)]


def one(commands: list[TrackerCommand], kind: type[C]) -> C:
    (found,) = [command for command in commands if isinstance(command, kind)]
    return found


@pytest.fixture
def world() -> World:
    return World()


def test_candidates_are_evaluated_on_the_devices_that_trained_fastest_the_average_first(world: World) -> None:
    first, second = world.consolidated()
    assert (first.node, first.devices, first.base) == ("n0", (0,), weights("average"))
    assert (second.node, second.devices, second.base) == ("n1", (1,), weights("fastest"))
    assert (first.kind, first.epoch, first.duration_s) == ("evaluate", 1, 15.0)


def test_no_version_is_published_before_all_candidates_are_evaluated(world: World) -> None:
    for lease in world.consolidated():
        world.evaluated(lease)
    assert (world.progress.version, world.progress.steps) == (0, 0)
    assert world.progress.open is not None


def test_the_best_candidate_becomes_the_version_with_its_metrics_and_the_others_go(world: World) -> None:
    commands = world.finish(world.consolidated())
    assert (world.progress.version, world.progress.weights) == (1, weights("fastest"))
    assert (world.progress.metrics, world.progress.metrics_version) == ({"accuracy": 0.9, "loss": 1 - 0.9}, 1)
    gone = {name for command in commands if isinstance(command, DeleteObjects) for name in command.names}
    assert {weights(name).name for name in SCORES} & gone == {weights(n).name for n in SCORES if n != "fastest"}


def test_the_history_tells_what_was_chosen_and_from_what(world: World) -> None:
    told = one(world.finish(world.consolidated()), Record).event.data["guard"]
    assert told == {"chosen": "fastest", "scores": SCORES, "reason": ""}


def test_all_steps_count_whichever_forks_the_chosen_version_is_of(world: World) -> None:
    world.finish(world.consolidated())
    assert world.manifest is not None
    assert (world.progress.steps, world.manifest.steps) == (190, 190)
    assert [(parent.fork, parent.weight) for parent in world.manifest.parents] == [(0, 1.0), (1, 0.0), (2, 0.0)]
    assert world.progress.path == 100.0


def test_a_gain_within_the_margin_keeps_the_average() -> None:
    world = World(consolidation=ConsolidationSpec(guard=GuardSpec(metric="accuracy", better="higher", margin=0.2)))
    world.finish(world.consolidated())
    assert world.why() == ""
    assert world.progress.metrics_version == 1


def test_a_slow_evaluation_delays_the_round_by_no_more_than_the_limit(world: World) -> None:
    world.consolidated()
    world.send(Ticked(at=world.at + 14.9))
    assert world.progress.version == 0
    world.send(Ticked(at=world.at + 15.0))
    assert world.progress.version == 1
    assert "not all candidates were evaluated within 15 s" in world.why()


def test_a_node_that_is_lost_leaves_its_candidate_to_another(world: World) -> None:
    first, second = world.consolidated()
    world.node("n0", NodeState.LOST)
    (again,) = leases(world.evaluated(second))
    assert (again.node, again.base) == ("n1", first.base)
    assert again.key != first.key


def test_without_a_device_left_it_is_the_average_with_the_reason(world: World) -> None:
    world.consolidated()
    world.node("n0", NodeState.LOST)
    world.node("n1", NodeState.LOST)
    assert "its node is lost" in world.why()


def test_an_agent_that_refuses_is_not_asked_again(world: World) -> None:
    first, second = world.consolidated()
    for lease in (first, second):
        world.send(GrantAnswered(at=world.at, key=lease.key, node=lease.node, accepted=False, reason="shutting down"))
    assert "refused: shutting down" in world.why()


def test_an_evaluation_that_raises_is_not_tried_elsewhere(world: World) -> None:
    first, _ = world.consolidated()
    world.evaluated(first, evaluation=None, failure=Failure(kind="exception", message="KeyError: 'label'"))
    assert "KeyError: 'label'" in world.why()
    assert (world.progress.failures, world.progress.version) == (0, 1)


def test_a_metric_that_nobody_reports_is_named(world: World) -> None:
    lease, _ = world.consolidated()
    assert lease.base is not None
    seen = Evaluation(version=1, sha256=lease.base.sha256, metrics={"mse": 0.1})
    world.evaluated(lease, evaluation=seen)
    assert "no metric 'accuracy', it has: mse" in world.why()


def test_a_job_whose_guard_does_not_choose_says_so_while_it_runs_and_once_in_its_history(world: World) -> None:
    def misled() -> list[TrackerCommand]:
        lease, _ = world.consolidated()
        assert lease.base is not None
        seen = Evaluation(version=lease.base_version, sha256=lease.base.sha256, metrics={"mse": 0.1})
        return world.evaluated(lease, evaluation=seen)

    told = [command.event for command in misled() if isinstance(command, Record)]
    why = "its guard does not choose: the evaluation has no metric 'accuracy', it has: mse"
    assert [event.data["reason"] for event in told if event.what == "guard_failed"] == [why]
    assert world.progress.reason == why
    opening = JobOpening(job_id="job-a", base_version=1, forks=(an_entry(0, "n0", devices=(0,)), an_entry(1, "n1")))
    world.send(OpenAsked(at=200.0, request=OpenRequest(round=2, epoch=1, round_s=360.0, jobs=(opening,)), token=3))
    assert (world.progress.state, world.progress.reason) == (JobState.RUNNING, why)


def test_a_guard_that_is_late_pauses_for_longer_each_time_and_not_once_it_was_in_time() -> None:
    late, in_time = (
        Choice("average", candidate("average"), {}, Guarded(chosen="average"), late) for late in (True, False)
    )
    pauses, paused = Pauses(), list[int]()
    for _ in range(7):
        pauses.heed(late)
        paused.append(0)
        while not pauses.due():
            paused[-1] += 1
    assert paused == [1, 3, 7, 15, 31, 31, 31]
    pauses.heed(in_time)
    assert pauses.due()
    pauses.heed(late)
    assert [pauses.due(), pauses.due()] == [False, True]


def test_the_round_after_a_late_guard_has_none_and_the_job_still_says_why(world: World) -> None:
    world.consolidated()
    world.send(Ticked(at=world.at + 15.0))
    opening = JobOpening(job_id="job-a", base_version=1, forks=(an_entry(0, "n0", devices=(0,)),))
    world.send(OpenAsked(at=200.0, request=OpenRequest(round=2, epoch=1, round_s=360.0, jobs=(opening,)), token=3))
    task = one(world.result(a_result(round=2, fork=0, node="n0", steps=10, base_version=1)), Consolidate)
    assert task.how.guard is None
    assert "not all candidates were evaluated within 15 s" in world.progress.reason


def test_metrics_of_other_weights_count_nothing(world: World) -> None:
    lease, _ = world.consolidated()
    answer = one(
        world.evaluated(lease, evaluation=Evaluation(version=1, sha256="f" * 64, metrics={"accuracy": 1.0})),
        AnswerResult,
    ).answer
    assert (answer.counted, answer.reason) == (False, "these are metrics of other weights")


def test_an_evaluation_that_comes_after_the_choice_changes_nothing(world: World) -> None:
    lease, _ = world.consolidated()
    world.send(Ticked(at=world.at + 15.0))
    before = world.progress
    assert one(world.evaluated(lease), AnswerResult).answer.counted is False
    assert world.progress == before


def test_the_same_evaluation_twice_counts_once(world: World) -> None:
    first, second = world.consolidated()
    pending = leases(world.evaluated(first))
    assert not leases(world.evaluated(first))
    world.finish([second, *pending])
    assert world.progress.weights == weights("fastest")


def test_after_a_restart_the_round_is_consolidated_and_evaluated_again_under_the_new_epoch(world: World) -> None:
    world.consolidated()
    assert one(world.restart(epoch=2), Consolidate).version == 1
    again = world.consolidated()
    assert {lease.epoch for lease in again} == {2}
    world.finish(again)
    assert (world.progress.weights, world.progress.steps) == (weights("fastest"), 190)


def test_a_single_candidate_needs_no_evaluation(world: World) -> None:
    assert world.consolidated("average") == []
    assert world.progress.version == 1


def test_a_job_that_is_cancelled_in_mid_guard_leaves_no_candidate_behind(world: World) -> None:
    world.consolidated()
    world.record = replace(world.record, desired=Desired.CANCELLED)
    world.send(JobChanged(at=world.at, record=world.record))
    commands: list[TrackerCommand] = []
    for name in ("n0", "n1", "n2"):
        commands += world.send(RevokeAnswered(at=world.at, job_id="job-a", node=name, free=True))
    gone = {name for command in commands if isinstance(command, DeleteObjects) for name in command.names}
    assert world.progress.state is JobState.CANCELLED
    assert {weights(name).name for name in SCORES} <= gone


def test_a_target_that_the_chosen_version_reaches_ends_the_job_at_once() -> None:
    world = World(until=Until(metric="accuracy", at_least=0.85))
    world.finish(world.consolidated())
    assert (world.progress.state, world.progress.reason) == (JobState.COMPLETED, "its target is reached")


def test_a_job_whose_last_version_was_chosen_by_its_guard_is_not_evaluated_again() -> None:
    world = World(total_steps=190)
    world.progress = replace(world.progress, total_steps=190)
    world.restart(epoch=1)
    world.finish(world.consolidated())
    assert (world.progress.state, world.progress.metrics["accuracy"]) == (JobState.COMPLETED, 0.9)
