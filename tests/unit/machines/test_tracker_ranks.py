"""Gangs in the tracker: one entry a fork, whose steps are rank 0's; what the other ranks tell is noted, not counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pytest

from builders import a_job, a_node, a_result, an_entry, an_object
from hadare.machines.job_book import TrackerSettings
from hadare.machines.tracker import TrackerMachine
from hadare.machines.tracker_events import (
    AnswerResult,
    CloseAsked,
    Consolidate,
    Consolidated,
    ForkKept,
    JobChanged,
    NodeChanged,
    OpenAsked,
    Record,
    ResultArrived,
    RevokeJob,
    StoreProgress,
    TrackerCommand,
)
from hadare.model.devices import NodeState
from hadare.model.jobs import Desired, JobProgress, JobState, LedgerEntry, RankPlace
from hadare.model.leases import Failure, FailureKind, ForkResult, LeaseKey, ResultAnswer
from hadare.model.rounds import CloseRequest, JobOpening, OpenRequest

C = TypeVar("C")

GANG = an_entry(
    0,
    ranks=3,
    others=(RankPlace(node="n2", device_type="P100"), RankPlace(node="n3", device_type="K80")),
)


def a_rank(rank: int, round_: int = 1, **changes: Any) -> ForkResult:
    """What rank 1 on n2 or rank 2 on n3 tells."""
    node, kind = {0: ("n1", "V100"), 1: ("n2", "P100"), 2: ("n3", "K80")}[rank]
    result = a_result(round=round_, node=node, device_type=kind, **changes)
    result = replace(result, key=replace(result.key, rank=rank))
    return result if rank == 0 else replace(result, object=None)


def failed(kind: FailureKind, **changes: Any) -> dict[str, Any]:
    failure = Failure(kind=kind, message=f"it was {kind}", **changes)
    return {"failure": failure, "reason": "failed", "steps": 0, "throughput": 0.0, "object": None}


class World:
    """A job with version 0 whose round 1 has a gang over three nodes."""

    def __init__(self, *entries: LedgerEntry) -> None:
        self.machine = TrackerMachine(TrackerSettings())
        self.stored: list[JobProgress] = []
        for node in ("n1", "n2", "n3"):
            self.send(NodeChanged(at=0.0, node=node, inventory=a_node(node), state=NodeState.READY))
        self.send(JobChanged(at=0.0, record=a_job()))
        key = LeaseKey(job_id="job-a", round=0, fork=0, attempt=1, kind="init")
        self.tell(a_result(kind="init", key=key, base_version=-1, steps=0, object=an_object("job-a-v0")))
        self.open(*(entries or (GANG,)))

    def send(self, event: Any) -> list[TrackerCommand]:
        commands = self.machine.handle(event)
        self.stored += [command.progress for command in commands if isinstance(command, StoreProgress)]
        return commands

    def open(self, *entries: LedgerEntry, round_: int = 1, mode: str = "") -> list[TrackerCommand]:
        base = self.progress.version
        opening = JobOpening(job_id="job-a", base_version=base, forks=entries, mode=mode)
        request = OpenRequest(round=round_, epoch=1, round_s=10.0, jobs=(opening,))
        return self.send(OpenAsked(at=0.0, request=request, token=1))

    def tell(self, result: ForkResult) -> list[TrackerCommand]:
        return self.send(ResultArrived(at=1.0, result=result, token=9))

    def answer(self, result: ForkResult) -> ResultAnswer:
        return one(self.tell(result), AnswerResult).answer

    def consolidated(self, round_: int = 1) -> None:
        weights = an_object(f"job-a-after-{round_}")
        kept = (ForkKept(fork=0, weight=1.0, delta_norm=1.0, agreement=1.0),)
        self.send(Consolidated(at=2.0, job_id="job-a", round=round_, weights=weights, kept=kept))

    @property
    def progress(self) -> JobProgress:
        return self.stored[-1]

    @property
    def entry(self) -> LedgerEntry:
        assert self.progress.open is not None
        return self.progress.open.forks[0]


def one(commands: list[TrackerCommand], kind: type[C]) -> C:
    found = [command for command in commands if isinstance(command, kind)]
    assert len(found) == 1, commands
    return found[0]


def test_rank_0_alone_brings_the_steps() -> None:
    world = World()
    assert not world.answer(a_rank(1)).counted
    assert not world.answer(a_rank(2)).counted
    commands = world.tell(a_rank(0))
    assert one(commands, AnswerResult).answer.counted
    assert [fork.steps for fork in one(commands, Consolidate).forks] == [100]
    world.consolidated()
    assert world.progress.steps == 100


def test_each_ranks_rate_is_learnt_for_its_own_device_type() -> None:
    world = World()
    for rank, rate in ((0, 20.0), (1, 12.0), (2, 4.0)):
        world.tell(a_rank(rank, throughput=rate))
    rates = {kind: measured.steps_per_s for kind, measured in world.progress.throughput.items()}
    assert rates == {"V100": 20.0, "P100": 12.0, "K80": 4.0}


def test_a_rank_that_tells_twice_is_noted_once() -> None:
    world = World()
    world.tell(a_rank(1, throughput=12.0))
    before = world.progress
    assert "noted already" in world.answer(a_rank(1, throughput=12.0)).reason
    assert world.progress is before
    assert world.progress.throughput["P100"].count == 1


def test_a_rank_that_tells_after_the_round_has_closed_is_noted_once_too() -> None:
    world = World()
    world.tell(a_rank(0))
    world.consolidated()
    world.tell(a_rank(2, throughput=4.0))
    assert world.progress.throughput["K80"].count == 1
    assert "noted already" in world.answer(a_rank(2, throughput=4.0)).reason
    assert world.progress.throughput["K80"].count == 1
    assert world.progress.steps == 100


def test_a_rank_of_a_round_long_gone_changes_nothing() -> None:
    world = World()
    world.tell(a_rank(0))
    world.consolidated()
    world.open(replace(GANG), round_=2)
    world.tell(a_rank(0, 2, base_version=1))
    world.consolidated(2)
    before = world.progress
    assert "is closed" in world.answer(a_rank(1)).reason
    assert world.progress is before


def test_a_rank_from_another_node_than_the_ledgers_is_refused() -> None:
    world = World()
    stranger = replace(a_rank(1, throughput=12.0), node="n3")
    assert "no fork 0 attempt 0 rank 1 on n3" in world.answer(stranger).reason
    assert "P100" not in world.progress.throughput


def test_a_rank_that_fails_ends_the_fork_with_its_reason_and_rank_0s_word_is_a_repeat() -> None:
    world = World(GANG, an_entry(1))
    world.tell(a_rank(2, **failed("device")))
    assert world.entry.outcome == "missing"
    assert world.entry.reason == "rank 2 on n3 (K80): it was device"
    assert world.answer(a_rank(0, **failed("gang"))).counted
    assert world.entry.reason == "rank 2 on n3 (K80): it was device"


def test_steps_of_a_gang_that_was_given_up_are_not_counted() -> None:
    world = World(GANG, an_entry(1))
    world.tell(a_rank(1, **failed("killed")))
    assert "on record already" in world.answer(a_rank(0)).reason
    assert world.entry.steps == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_failures_because_another_rank_ended_count_against_nobody(rank: int) -> None:
    world = World()
    for round_ in range(1, 8):
        world.tell(a_rank(rank, round_, **failed("gang", node_specific=True)))
        assert world.progress.closed_round == round_
        assert (world.progress.failures, world.progress.excluded, world.progress.error) == (0, {}, "")
        world.open(GANG, round_=round_ + 1)
    assert world.progress.state is JobState.RUNNING


def test_an_exception_in_every_rank_counts_once_a_round() -> None:
    world = World()
    for rank in (2, 0, 1):
        world.tell(a_rank(rank, **failed("exception")))
    assert world.progress.failures == 1


def test_a_fault_of_the_job_that_its_rank_tells_after_the_round_is_lost_counts_all_the_same() -> None:
    world = World()
    for round_ in (1, 2, 3):
        world.tell(a_rank(0, round_, **failed("gang")))
        assert world.progress.failures == round_ - 1
        world.tell(a_rank(1, round_, **failed("exception")))
        world.tell(a_rank(2, round_, **failed("exception")))
        assert world.progress.failures == round_
        world.open(GANG, round_=round_ + 1)
    assert world.progress.state is JobState.FAILED
    assert world.progress.reason == "rank 1 on n2 (P100): it was exception"


def test_a_type_without_enough_memory_is_left_out_whenever_its_rank_tells() -> None:
    world = World()
    world.tell(a_rank(0, **failed("gang")))
    world.tell(a_rank(2, **failed("out_of_memory", type_specific=True)))
    assert world.progress.excluded_types == {"K80": "it was out_of_memory"}
    assert world.progress.failures == 0


def test_a_node_that_lacks_something_is_left_out_by_the_failure_of_its_rank() -> None:
    world = World()
    world.tell(a_rank(1, **failed("import", node_specific=True)))
    assert world.progress.excluded == {"n2": "it was import"}
    assert world.progress.failures == 0


def test_times_of_updates_and_exchanges_are_kept_by_how_the_gang_is_spread() -> None:
    packed = replace(GANG, fork=1, others=(RankPlace(node="n1", device_type="V100"),), ranks=2)
    world = World(GANG, packed)
    world.tell(a_rank(0, update_s=0.5, exchange_s=0.2))
    two = a_rank(0, update_s=0.1, exchange_s=0.01)
    world.tell(replace(two, key=replace(two.key, fork=1), object=an_object("other")))
    times = world.progress.gang_times
    assert (times["spread"].update_s, times["spread"].exchange_s, times["spread"].count) == (0.5, 0.2, 1)
    assert (times["packed"].update_s, times["packed"].exchange_s, times["packed"].count) == (0.1, 0.01, 1)


def test_what_one_device_tells_of_updates_is_no_gangs() -> None:
    world = World(an_entry(0))
    world.tell(a_rank(0, update_s=0.5))
    assert world.progress.gang_times == {}


def test_a_withdrawn_gang_is_known_by_its_first_rank() -> None:
    world = World(GANG, an_entry(1))
    reason = {"job-a.1.0.0": "rank 2 on n3 (K80): not granted: busy"}
    world.send(
        CloseAsked(at=1.0, request=CloseRequest(round=1, epoch=1, withdrawn=reason, only_withdrawn=True), token=3)
    )
    assert (world.entry.outcome, world.entry.reason) == ("missing", reason["job-a.1.0.0"])


def test_a_job_that_is_cancelled_is_ended_on_every_node_of_its_gang() -> None:
    world = World()
    commands = world.send(JobChanged(at=1.0, record=a_job(desired=Desired.CANCELLED)))
    assert [order.node for order in commands if isinstance(order, RevokeJob)] == ["n1", "n2", "n3"]


def test_a_change_of_mode_is_a_line_of_the_jobs_history_and_no_change_is_none() -> None:
    world = World()
    world.tell(a_rank(0))
    world.consolidated()

    def told(round_: int, mode: str) -> list[dict[str, Any]]:
        commands = world.open(GANG, round_=round_, mode=mode)
        world.tell(a_rank(0, round_, base_version=world.progress.version))
        world.consolidated(round_)
        return [record.event.data for record in commands if isinstance(record, Record) and record.event.what == "mode"]

    assert told(2, "gang: 3 devices make 9 steps/s") == [
        {"round": 2, "chosen": "gang", "why": "3 devices make 9 steps/s"}
    ]
    assert told(3, "gang: 3 devices make 10 steps/s") == []
    assert told(4, "forks: it has one device")[0]["chosen"] == "forks"
    assert told(5, "") == []
