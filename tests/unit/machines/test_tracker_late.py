"""Failures that a tracker hears of when their round is closed already: of code that hangs, it never hears sooner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builders import a_job, a_node, a_result, an_entry, an_object
from hadare.machines.job_book import TrackerSettings
from hadare.machines.tracker import TrackerMachine
from hadare.machines.tracker_events import (
    AnswerResult,
    CloseAsked,
    JobChanged,
    NodeChanged,
    OpenAsked,
    ResultArrived,
    StoreProgress,
    TrackerCommand,
)
from hadare.model.devices import NodeState
from hadare.model.jobs import JobProgress, JobState
from hadare.model.leases import Failure, ForkResult, LeaseKey, ResultAnswer
from hadare.model.rounds import CloseRequest, JobOpening, OpenRequest

HUNG = Failure(kind="hung", message="it did not hand back in time")
NODES = ("n1", "n2")


def late(fork: int = 0, round_: int = 1, failure: Failure = HUNG) -> ForkResult:
    result = a_result(round=round_, node=NODES[fork], steps=0, object=None, failure=failure, reason="failed")
    return replace(result, throughput=0.0, key=replace(result.key, fork=fork))


class World:
    """A job with version 0 and a fork on each of two nodes, of which nobody hears in time."""

    def __init__(self) -> None:
        self.machine = TrackerMachine(TrackerSettings())
        self.stored: list[JobProgress] = []
        for node in NODES:
            self.send(NodeChanged(at=0.0, node=node, inventory=a_node(node), state=NodeState.READY))
        self.send(JobChanged(at=0.0, record=a_job()))
        key = LeaseKey(job_id="job-a", round=0, fork=0, attempt=1, kind="init")
        self.tell(a_result(kind="init", key=key, base_version=-1, steps=0, object=an_object("job-a-v0")))

    def send(self, event: Any) -> list[TrackerCommand]:
        commands = self.machine.handle(event)
        self.stored += [command.progress for command in commands if isinstance(command, StoreProgress)]
        return commands

    def tell(self, result: ForkResult) -> ResultAnswer:
        commands = self.send(ResultArrived(at=1.0, result=result, token=9))
        (answer,) = [command.answer for command in commands if isinstance(command, AnswerResult)]
        return answer

    def a_round_without_results(self, round_: int) -> None:
        forks = tuple(an_entry(fork, node=node) for fork, node in enumerate(NODES))
        opening = JobOpening(job_id="job-a", base_version=self.progress.version, forks=forks)
        request = OpenRequest(round=round_, epoch=1, round_s=10.0, jobs=(opening,))
        self.send(OpenAsked(at=0.0, request=request, token=1))
        self.send(CloseAsked(at=12.0, request=CloseRequest(round=round_, epoch=1), token=2))

    @property
    def progress(self) -> JobProgress:
        return self.stored[-1]


def test_a_job_that_hangs_in_every_round_is_given_up_and_says_why() -> None:
    world = World()
    for round_ in (1, 2, 3):
        world.a_round_without_results(round_)
        assert world.progress.failures == round_ - 1
        for fork in range(2):
            assert not world.tell(late(fork, round_)).counted
        assert world.progress.failures == round_, "once a round, however many of its forks hang"
    assert world.progress.state is JobState.FAILED
    assert "did not hand back in time" in world.progress.reason
    assert "on n1, n2" in world.progress.reason


def test_a_failure_counts_though_later_rounds_have_closed_meanwhile() -> None:
    world = World()
    for round_ in (1, 2):
        world.a_round_without_results(round_)
    world.tell(late(round_=1))
    assert (world.progress.failures, world.progress.error) == (1, HUNG.message)


def test_a_late_failure_that_is_told_again_counts_once() -> None:
    world = World()
    world.a_round_without_results(1)
    for _ in range(3):
        world.tell(late())
    assert world.progress.failures == 1


def test_a_failure_that_the_round_has_on_record_does_not_count_again() -> None:
    world = World()
    forks = (an_entry(0, node="n1"),)
    opening = JobOpening(job_id="job-a", base_version=0, forks=forks)
    request = OpenRequest(round=1, epoch=1, round_s=10.0, jobs=(opening,))
    world.send(OpenAsked(at=0.0, request=request, token=1))
    assert world.tell(late()).counted
    assert world.progress.failures == 1
    world.tell(late())
    assert world.progress.failures == 1


def test_what_says_nothing_of_the_job_does_not_count_when_it_is_late_either() -> None:
    world = World()
    world.a_round_without_results(1)
    world.tell(late(failure=Failure(kind="fetch", message="the store is away")))
    assert world.progress.failures == 0


def test_a_device_type_without_enough_memory_is_left_out_though_it_told_late() -> None:
    world = World()
    world.a_round_without_results(1)
    full = Failure(kind="out_of_memory", message="CUDA out of memory", type_specific=True)
    world.tell(late(failure=full))
    assert set(world.progress.excluded_types.values()) == {"CUDA out of memory"}
    assert world.progress.failures == 0
