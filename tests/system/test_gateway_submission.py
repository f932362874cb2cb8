"""Submissions and deletions survive a crash before or after any of their writes, and nothing is half-stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from hadare.machines import admission
from hadare.machines.admission import SubmitIntent
from hadare.model.errors import Rejected
from hadare.runtime.bus import Backplane
from hadare.runtime.memory import MemoryHub
from hadare_gateway.intake import Intake

SUBMIT_WRITES = 4
DELETE_WRITES = 4


class Crash(BaseException):
    """The process is gone."""


class Fuse:
    """Ends the process at the n-th write: before it, or after it landed and before anyone heard."""

    def __init__(self, at: int, *, landed: bool) -> None:
        self.at = at
        self.landed = landed
        self.writes = 0

    async def write(self, act: Coroutine[Any, Any, Any]) -> Any:
        self.writes += 1
        if self.writes == self.at and not self.landed:
            act.close()
            raise Crash
        result = await act
        if self.writes == self.at:
            raise Crash
        return result


class Fragile:
    """A table or journal whose writes go through a fuse."""

    def __init__(self, real: Any, fuse: Fuse) -> None:
        self._real = real
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._real, name)
        if name not in ("create", "update", "put", "delete", "append"):
            return method
        return lambda *args, **named: self._fuse.write(method(*args, **named))


class FragileBackplane:
    """A backplane that crashes its owner at a chosen write."""

    def __init__(self, hub: MemoryHub, fuse: Fuse) -> None:
        self._real = hub.connect("gateway")
        self._fuse = fuse

    def table(self, records: Any) -> Any:
        return Fragile(self._real.table(records), self._fuse)

    @property
    def journal(self) -> Any:
        return Fragile(self._real.journal, self._fuse)


def fragile(hub: MemoryHub, at: int, landed: bool) -> Intake:
    return Intake(cast(Backplane, FragileBackplane(hub, Fuse(at, landed=landed))))


def sound(hub: MemoryHub) -> Intake:
    return Intake(hub.connect("another-gateway"))


def an_intent(request_id: str = "r1", **changes: Any) -> SubmitIntent:
    raw = {"workload": "pkg.mod:Net", "total_steps": 10, "batch_size": 2, "name": "mine", **changes}
    return admission.intent_of(admission.read_spec(raw), request_id, submitted_at=1.0, traceparent="t")


def stored(hub: MemoryHub) -> set[str]:
    """The families of the records that exist."""
    return {key.split(".")[0] for key in hub.buckets.get("jobs", {})}


def events(hub: MemoryHub) -> list[str]:
    return [event.event.what for event in hub.events]


async def crashed(act: Coroutine[Any, Any, Any]) -> None:
    with pytest.raises(Crash):
        await act


crash_points = pytest.mark.parametrize("landed", [False, True], ids=["before", "after"])


async def test_a_submission_has_as_many_crash_points_as_are_tested() -> None:
    fuse = Fuse(at=-1, landed=False)
    await Intake(cast(Backplane, FragileBackplane(MemoryHub(), fuse))).submit(an_intent())
    assert fuse.writes == SUBMIT_WRITES


@crash_points
@pytest.mark.parametrize("write", range(1, SUBMIT_WRITES + 1))
async def test_a_repeated_request_finishes_what_a_crash_interrupted(write: int, landed: bool) -> None:
    hub = MemoryHub()
    await crashed(fragile(hub, write, landed).submit(an_intent()))
    answer = await sound(hub).submit(an_intent())
    assert answer.job_id == admission.job_id_of("r1")
    assert stored(hub) == {"request", "name", "job"}
    assert events(hub) == ["submitted"]


@crash_points
@pytest.mark.parametrize("write", range(1, SUBMIT_WRITES + 1))
async def test_another_gateway_finishes_a_dangling_intent_without_being_asked(write: int, landed: bool) -> None:
    hub = MemoryHub()
    await crashed(fragile(hub, write, landed).submit(an_intent()))
    began = "request" in stored(hub)
    await sound(hub).finish_dangling(admission.request_key("r1"))
    assert stored(hub) == ({"request", "name", "job"} if began else set())
    assert events(hub) == (["submitted"] if began else [])


@pytest.mark.parametrize(("write", "landed"), [(1, True), *((n, b) for n in (2, 3, 4) for b in (False, True))])
async def test_after_a_crash_another_spec_under_the_same_request_is_refused_once_the_intent_stands(
    write: int, landed: bool
) -> None:
    hub = MemoryHub()
    await crashed(fragile(hub, write, landed).submit(an_intent()))
    with pytest.raises(Rejected) as refusal:
        await sound(hub).submit(an_intent(total_steps=11))
    assert refusal.value.code == 409


async def test_a_submission_is_created_once_and_found_after_that() -> None:
    hub = MemoryHub()
    first = await sound(hub).submit(an_intent())
    second = await sound(hub).submit(an_intent())
    assert (first.created, second.created) == (True, False)
    assert first.job_id == second.job_id


async def test_a_taken_name_is_refused_and_leaves_nothing_of_the_refused_request() -> None:
    hub = MemoryHub()
    await sound(hub).submit(an_intent("r1"))
    before = set(hub.buckets["jobs"])
    with pytest.raises(Rejected, match="taken") as refusal:
        await sound(hub).submit(an_intent("r2"))
    assert refusal.value.code == 409
    assert set(hub.buckets["jobs"]) == before


@crash_points
@pytest.mark.parametrize("write", [1, 2])
async def test_a_crash_while_a_taken_name_is_refused_leaves_nothing_once_it_is_swept(write: int, landed: bool) -> None:
    hub = MemoryHub()
    await sound(hub).submit(an_intent("r1"))
    before = set(hub.buckets["jobs"])
    with pytest.raises((Crash, Rejected)):
        await fragile(hub, write, landed).submit(an_intent("r2"))
    await sound(hub).finish_dangling(admission.request_key("r2"))
    assert set(hub.buckets["jobs"]) == before


@pytest.mark.parametrize("gateways", [2, 5])
async def test_the_same_request_at_several_gateways_at_once_makes_one_job(gateways: int) -> None:
    hub = MemoryHub()
    answers = await asyncio.gather(*(sound(hub).submit(an_intent()) for _ in range(gateways)))
    assert sum(answer.created for answer in answers) == 1
    assert len({answer.job_id for answer in answers}) == 1
    assert events(hub) == ["submitted"]


async def test_of_rivals_for_one_name_exactly_one_gets_it_and_the_others_leave_nothing() -> None:
    hub = MemoryHub()
    rivals = (sound(hub).submit(an_intent(f"r{number}")) for number in range(4))
    outcomes = await asyncio.gather(*rivals, return_exceptions=True)
    assert sum(isinstance(outcome, Rejected) for outcome in outcomes) == 3
    assert len(hub.buckets["jobs"]) == 3


async def removal(hub: MemoryHub, intake: Callable[[], Intake]) -> None:
    await sound(hub).submit(an_intent())
    await intake().remove(an_intent().record)


async def test_a_deletion_has_as_many_crash_points_as_are_tested() -> None:
    fuse, hub = Fuse(at=-1, landed=False), MemoryHub()
    await removal(hub, lambda: Intake(cast(Backplane, FragileBackplane(hub, fuse))))
    assert fuse.writes == DELETE_WRITES


async def test_a_deletion_removes_every_record_of_the_job() -> None:
    hub = MemoryHub()
    await removal(hub, lambda: sound(hub))
    assert stored(hub) == set()
    assert events(hub) == ["submitted", "deleted"]


@crash_points
@pytest.mark.parametrize("write", range(1, DELETE_WRITES + 1))
async def test_a_deletion_that_crashed_is_never_undone_by_a_sweep(write: int, landed: bool) -> None:
    hub = MemoryHub()
    await crashed(removal(hub, lambda: fragile(hub, write, landed)))
    existed = "job" in stored(hub)
    await sound(hub).finish_dangling(admission.request_key("r1"))
    assert ("job" in stored(hub)) is existed


@crash_points
@pytest.mark.parametrize("write", range(1, DELETE_WRITES + 1))
async def test_a_deletion_that_crashed_is_finished_by_the_next_one_or_by_the_sweep(write: int, landed: bool) -> None:
    hub = MemoryHub()
    await crashed(removal(hub, lambda: fragile(hub, write, landed)))
    if "job" in stored(hub):
        await sound(hub).remove(an_intent().record)
    await sound(hub).free_stale("mine")
    assert stored(hub) == set()


@crash_points
@pytest.mark.parametrize("write", range(1, DELETE_WRITES + 1))
async def test_a_name_that_a_crashed_deletion_left_behind_can_be_used_again(write: int, landed: bool) -> None:
    hub = MemoryHub()
    await crashed(removal(hub, lambda: fragile(hub, write, landed)))
    if "job" in stored(hub):
        await sound(hub).remove(an_intent().record)
    assert (await sound(hub).submit(an_intent("r2"))).created


async def test_a_name_in_use_is_never_taken_for_stale() -> None:
    hub = MemoryHub()
    await sound(hub).submit(an_intent())
    await sound(hub).free_stale("mine")
    assert stored(hub) == {"request", "name", "job"}


async def test_a_request_whose_intent_was_lost_cannot_be_used_for_another_spec() -> None:
    hub = MemoryHub()
    await crashed(removal(hub, lambda: fragile(hub, 3, False)))
    with pytest.raises(Rejected) as refusal:
        await sound(hub).submit(an_intent(total_steps=11, name="other"))
    assert refusal.value.code == 409
    assert stored(hub) == {"name", "job"}
    assert len(hub.buckets["jobs"]) == 2
