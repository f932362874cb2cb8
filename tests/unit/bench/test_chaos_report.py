import pytest

from builders_chaos import NODE, an_evidence, job_event, lease_started
from hadare.bench.chaos.cluster import Life
from hadare.bench.chaos.faults import Struck
from hadare.bench.chaos.plan import Fault, Kind
from hadare.bench.chaos.report import Outcome, summarise
from hadare.bench.chaos.witness import Failover
from hadare.model.events import Event, StoredEvent

OFFSET = 1000.0
"""The server's clock is so far ahead of the monotonic one."""


def a_fault(kind: Kind, at: float, for_s: float = 0.0, hit: str = "it") -> Struck:
    return Struck(Fault(number=0, kind=kind, at_s=at, for_s=for_s, draw=0.0, leader=True), hit, at, at + for_s)


def planned(round_no: int, at: float) -> StoredEvent:
    return StoredEvent(sequence=1, at=OFFSET + at, event=Event(kind="round", id=str(round_no), what="planned"))


def made(round_no: int, at: float) -> StoredEvent:
    event = job_event("consolidated", version=round_no, round=round_no).event
    return StoredEvent(sequence=1, at=OFFSET + at, event=event)


def an_outcome(struck: list[Struck], failovers: list[Failover] | None = None) -> Outcome:
    """Rounds 1, 2 and 3 were planned at 10, 13 and 16 s; 1 and 3 brought versions, at 13 and 19 s."""
    evidence = an_evidence(
        round_events=[planned(1, 10.0), planned(2, 13.0), planned(3, 16.0)], job_events=[made(1, 13.0), made(3, 19.0)]
    )
    return Outcome(
        evidence=evidence,
        violations=[],
        struck=struck,
        missed=[],
        failovers=failovers or [],
        replayed=0,
        doubled=0,
        held_back=0,
        wall_offset=OFFSET,
        faults_over=30.0,
        seconds=40.0,
    )


def test_recovery_lasts_until_a_round_that_was_planned_after_the_fault_brings_a_version() -> None:
    report = summarise(an_outcome([a_fault(Kind.KILL_NATS, 11.0), a_fault(Kind.KILL_NATS, 15.0)]), 1)
    (kind,) = report.by_kind
    assert (kind.kind, kind.faults) == ("kill nats", 2)
    assert (kind.recovery_s_median, kind.recovery_s_max) == pytest.approx((6.0, 8.0))


def test_a_fault_after_the_last_round_has_no_recovery() -> None:
    (kind,) = summarise(an_outcome([a_fault(Kind.REPLAY, 17.0)]), 1).by_kind
    assert (kind.recovery_s_median, kind.recovery_s_max) == (None, None)


def test_a_failover_is_alone_if_the_bus_was_well_and_only_what_brought_it_about_hit_the_role() -> None:
    failovers = [Failover("allocator", 2, "a-1", "a-2", at, gap) for at, gap in ((20.0, 3.0), (60.0, 4.0), (99.0, 5.0))]
    kills = [a_fault(Kind.KILL_ALLOCATOR, at, hit="allocator-1") for at in (17.2, 57.2, 94.2)]
    others = [a_fault(Kind.KILL_AGENT, 18.0, hit="n1"), a_fault(Kind.KILL_NATS, 58.0, hit="nats")]
    again = a_fault(Kind.CUT_LEADER, 95.0, 2.0, hit="allocator-2")
    found = summarise(an_outcome([*kills, *others, again], failovers), 1).failovers
    assert (found.count, found.max_s, found.alone, found.alone_max_s) == (3, 5.0, 1, 3.0)


def test_steps_of_leases_that_are_in_no_version_are_lost() -> None:
    evidence = an_evidence(
        node_events=[*an_evidence().node_events, lease_started(3, 20.0)],
        lives=[Life(NODE, 42, 5.0, 22.0)],
        reported={"j1.3.0.0": (NODE, 70)},
    )
    outcome = an_outcome([])
    report = summarise(Outcome(**{f: getattr(outcome, f) for f in outcome.__slots__} | {"evidence": evidence}), 1)
    assert (report.steps_counted, report.steps_lost) == (500, 70)
    assert (report.node_deaths, report.steps_lost_with_nodes, report.most_steps_lost_with_a_node) == (1, 70, 70)
