"""What a fork that fails teaches about a job: types that are too small for it, and faults of its own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from builders import a_job, a_node, a_result, an_entry, some_progress
from hadare.machines.cluster import ClusterView
from hadare.machines.job_book import TrackerSettings
from hadare.machines.tracker import TrackerMachine
from hadare.machines.tracker_events import NodeChanged, OpenAsked, Record, ResultArrived, StoreProgress, TrackerCommand
from hadare.model.devices import NodeState
from hadare.model.jobs import JobProgress, JobRecord, JobState
from hadare.model.leases import Failure
from hadare.model.rounds import JobOpening, OpenRequest
from hadare.wire import codec

TOO_SMALL = Failure(kind="out_of_memory", message="CUDA out of memory", type_specific=True)
BUG = Failure(kind="exception", message="KeyError: 'label'")


class World:
    """A job in its first round, with a fork on each of two types; the tracker can be started again."""

    def __init__(self) -> None:
        self.progress = some_progress("job-a")
        self.record: JobRecord = a_job("job-a")
        self.restart()

    def restart(self) -> None:
        self.machine = TrackerMachine(TrackerSettings(max_attempts=3))
        self.machine.recover([self.record], [self.progress], [], 0.0)

    def send(self, event: Any) -> list[TrackerCommand]:
        commands = self.machine.handle(event)
        for command in commands:
            if isinstance(command, StoreProgress):
                self.progress = command.progress
        return commands

    def open(self, number: int, *types: str) -> None:
        entries = tuple(an_entry(fork, f"n-{kind}", device_type=kind) for fork, kind in enumerate(types))
        opening = JobOpening(job_id="job-a", base_version=0, forks=entries)
        request = OpenRequest(round=number, epoch=1, round_s=10.0, jobs=(opening,))
        self.send(OpenAsked(at=0.0, request=request, token=1))

    def fail(self, number: int, fork: int, kind: str, failure: Failure) -> list[TrackerCommand]:
        result = a_result(
            round=number, fork=fork, node=f"n-{kind}", device_type=kind, steps=0, object=None, failure=failure
        )
        return self.send(ResultArrived(at=0.0, result=result, token=2))


@pytest.fixture
def world() -> World:
    return World()


def test_a_type_without_enough_memory_is_excluded_with_the_reason(world: World) -> None:
    world.open(1, "K80", "V100")
    commands = world.fail(1, 0, "K80", TOO_SMALL)
    assert world.progress.excluded_types == {"K80": "CUDA out of memory"}
    assert world.progress.excluded == {}
    (told,) = [command for command in commands if isinstance(command, Record)]
    assert (told.event.what, told.event.data["device_type"]) == ("type_excluded", "K80")


def test_the_history_tells_of_an_excluded_type_once(world: World) -> None:
    world.open(1, "K80", "K80")
    world.fail(1, 0, "K80", TOO_SMALL)
    commands = world.fail(1, 1, "K80", TOO_SMALL)
    assert [c.event.what for c in commands if isinstance(c, Record)] == ["round_lost"]


def test_running_out_of_memory_on_every_type_neither_fails_the_job_nor_costs_it_an_attempt(world: World) -> None:
    for number, kind in enumerate(("K80", "T4", "P100", "V100"), start=1):
        world.open(number, kind)
        world.fail(number, 0, kind, TOO_SMALL)
    assert (world.progress.state, world.progress.failures, world.progress.lost_rounds) == (JobState.WAITING, 0, 4)
    assert set(world.progress.excluded_types) == {"K80", "T4", "P100", "V100"}


def test_a_job_that_takes_more_memory_than_any_node_has_fails_with_each_nodes_reason(world: World) -> None:
    for kind in ("K80", "V100"):
        inventory = a_node(f"n-{kind}", kind)
        world.send(NodeChanged(at=0.0, node=f"n-{kind}", inventory=inventory, state=NodeState.READY))
    for number, kind in enumerate(("K80", "V100"), start=1):
        assert not world.progress.state.ended
        world.open(number, kind)
        used = Failure(kind="out_of_memory", message=f"it used {number} GiB", node_specific=True)
        world.fail(number, 0, kind, used)
    assert world.progress.state is JobState.FAILED
    assert world.progress.reason == "no node can run it: n-K80: it used 1 GiB; n-V100: it used 2 GiB"


def test_an_excluded_type_has_no_rate_and_no_place_for_the_job(world: World) -> None:
    world.open(1, "K80")
    world.fail(1, 0, "K80", TOO_SMALL)
    cluster = ClusterView()
    cluster.inventories = {"n1": a_node("n1", "V100"), "n2": a_node("n2", "K80")}
    cluster.records["job-a"], cluster.progress["job-a"] = world.record, world.progress
    (view,) = cluster.jobs({"job-a": 0.0}, {})
    assert list(view.throughput) == ["V100"]
    assert view.excluded_types == {"K80": "CUDA out of memory"}


def test_the_jobs_own_fault_is_remembered_over_a_restart_of_the_tracker(world: World) -> None:
    world.open(1, "K80", "V100")
    world.fail(1, 0, "K80", BUG)
    world.restart()
    world.fail(1, 1, "V100", Failure(kind="device", message="Xid 79"))
    assert (world.progress.lost_rounds, world.progress.failures) == (1, 1)


def test_a_fault_of_one_round_is_not_held_against_the_job_in_the_next(world: World) -> None:
    world.open(1, "V100")
    world.fail(1, 0, "V100", BUG)
    world.open(2, "V100")
    world.fail(2, 0, "V100", Failure(kind="device", message="Xid 79"))
    assert (world.progress.lost_rounds, world.progress.failures) == (2, 1)


def test_a_record_of_before_there_were_excluded_types_is_read() -> None:
    plain = msgspec.to_builtins(some_progress("job-a"))
    del plain["excluded_types"]
    read = codec.decode(msgspec.msgpack.encode(plain), JobProgress)
    assert read == some_progress("job-a")
