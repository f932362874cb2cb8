"""What a tracker learns of a job's forks, and what placement makes of it where a job asks for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import a_job, a_node, a_result, an_entry, an_object, some_progress
from hadare.forking.gain import gain
from hadare.machines.cluster import ClusterView
from hadare.machines.job_book import TrackerSettings
from hadare.machines.tracker import TrackerMachine
from hadare.machines.tracker_events import (
    Consolidated,
    ForkKept,
    OpenAsked,
    Record,
    ResultArrived,
    StoreProgress,
    TrackerCommand,
)
from hadare.model.jobs import ForkTruth, JobRecord, Measured
from hadare.model.plans import JobView
from hadare.model.rounds import JobOpening, OpenRequest

TRUTH = ForkTruth(rounds=4, noise_steps=100.0, gain=1.0, fastest_steps=60, agreement=0.5)


class World:
    """A job that trains round after round on one or several forks."""

    def __init__(self, **spec: Any) -> None:
        self.record: JobRecord = a_job("job-a", total_steps=10**6, **spec)
        self.progress = some_progress("job-a", total_steps=10**6)
        self.machine = TrackerMachine(TrackerSettings())
        self.machine.recover([self.record], [self.progress], [], 0.0)
        self.number = 0
        self.notes: list[str] = []

    def send(self, event: Any) -> list[TrackerCommand]:
        commands = self.machine.handle(event)
        for command in commands:
            if isinstance(command, StoreProgress):
                self.progress = command.progress
            if isinstance(command, Record):
                self.notes.append(command.event.what)
        return commands

    def round(self, *steps: int, loss: float = 1.0, agreement: float = 0.6) -> None:
        self.number += 1
        forks = tuple(an_entry(fork, f"n{fork}") for fork in range(len(steps)))
        opening = JobOpening(job_id="job-a", base_version=self.progress.version, forks=forks)
        request = OpenRequest(round=self.number, epoch=1, round_s=10.0, jobs=(opening,))
        self.send(OpenAsked(at=0.0, request=request, token=1))
        for fork, n in enumerate(steps):
            result = a_result(round=self.number, fork=fork, node=f"n{fork}", steps=n, metrics={"loss": loss})
            self.send(ResultArrived(at=0.0, result=replace(result, base_version=self.progress.version), token=2))
        kept = tuple(
            ForkKept(fork=fork, weight=n / sum(steps), delta_norm=n**0.5, agreement=agreement)
            for fork, n in enumerate(steps)
        )
        weights = an_object(f"v{self.progress.version + 1}")
        self.send(Consolidated(at=0.0, job_id="job-a", round=self.number, weights=weights, kept=kept))


def view_of(world: World) -> JobView:
    cluster = ClusterView()
    cluster.inventories = {"n0": a_node("n0", "V100"), "n1": a_node("n1", "P100", "K80")}
    rates = {"V100": 10.0, "P100": 6.0, "K80": 3.0}
    throughput = {kind: Measured(steps_per_s=rate, count=9) for kind, rate in rates.items()}
    cluster.records["job-a"] = world.record
    cluster.progress["job-a"] = replace(world.progress, throughput=throughput)
    (view,) = cluster.jobs({"job-a": 0.0}, {})
    return view


def test_a_round_of_several_forks_tells_what_they_were_worth() -> None:
    world = World()
    world.round(60, 36, 24)
    truth = world.progress.truth
    assert truth is not None
    assert (truth.rounds, truth.fastest_steps, truth.agreement) == (1, 60, pytest.approx(0.6))
    assert truth.gain == pytest.approx(gain((60, 36, 24), truth.noise_steps))


def test_a_round_of_one_fork_tells_nothing_and_forgets_nothing() -> None:
    world = World()
    world.round(60)
    assert world.progress.truth is None
    world.round(60, 36)
    known = world.progress.truth
    assert known is not None
    world.round(60)
    assert world.progress.truth == replace(known, alone=1)


def test_placement_takes_summed_steps_for_progress_unless_the_job_asks_for_what_was_measured() -> None:
    faithful, measured = World(), World(fork_gain="measured")
    for world in (faithful, measured):
        world.progress = replace(world.progress, truth=TRUTH)
    assert view_of(faithful).fork_gain == ()
    assert view_of(measured).fork_gain == (1.0, gain((60, 36), 100.0), gain((60, 36, 18), 100.0))


def test_a_gain_that_was_measured_long_ago_is_measured_again() -> None:
    world = World(fork_gain="measured")
    world.progress = replace(world.progress, truth=replace(TRUTH, alone=4))
    assert view_of(world).fork_gain
    world.progress = replace(world.progress, truth=replace(TRUTH, alone=5))
    assert view_of(world).fork_gain == ()


def test_as_long_as_nothing_was_measured_forks_are_worth_their_sum() -> None:
    assert view_of(World(fork_gain="measured")).fork_gain == ()


def test_a_job_that_forks_after_the_bend_stays_alone_until_then_and_its_history_says_when() -> None:
    world = World(fork_after="auto")
    for loss in (3.0, 2.5, 2.0):
        world.round(60, loss=loss)
        assert view_of(world).max_forks == 1
    world.round(60, loss=1.9)
    assert view_of(world).max_forks is None
    assert world.notes.count("bent") == 1
    assert world.progress.losses == ()


def test_a_job_that_has_begun_to_fork_does_not_stop_when_its_loss_falls_again() -> None:
    world = World(fork_after="auto")
    for loss in (3.0, 2.0, 1.9, 0.9, 0.1):
        world.round(60, loss=loss)
    assert world.progress.bent
    assert view_of(world).max_forks is None


def test_a_job_that_has_not_been_taken_up_does_not_fork_if_it_is_to_wait() -> None:
    world = World(fork_after="auto")
    cluster = ClusterView()
    cluster.inventories["n0"] = a_node("n0", "V100")
    cluster.records["job-a"] = world.record
    (view,) = cluster.jobs({"job-a": 0.0}, {})
    assert view.max_forks == 1
