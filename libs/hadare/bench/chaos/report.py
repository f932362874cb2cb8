"""What a run has shown, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hadare.bench.chaos.checks import counted_leases, lost_to_node_deaths
from hadare.bench.chaos.evidence import Evidence
from hadare.bench.chaos.faults import Struck
from hadare.bench.chaos.leases import spans
from hadare.bench.chaos.plan import Fault, Kind
from hadare.bench.chaos.witness import Failover, Violation
from hadare.model.events import StoredEvent

_QUIET_S = 8.0
_BUS = (Kind.KILL_NATS, Kind.FREEZE_NATS, Kind.DISK_FULL_STORE, Kind.KILL_ALL)
"""With no fault of these, and one of the role's own, so long before a failover, its length is the election's alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All that a run has brought. ``wall_offset``: the bus server's clock less the monotonic one, in seconds."""

    evidence: Evidence
    violations: Sequence[Violation]
    struck: Sequence[Struck]
    missed: Sequence[Fault]
    failovers: Sequence[Failover]
    replayed: int
    doubled: int
    held_back: int
    wall_offset: float
    faults_over: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KindReport:
    """Recovery: from the strike until a round that was planned after it has brought a version, in seconds.

    None: no round was planned any more.
    """

    kind: str
    faults: int
    recovery_s_median: float | None
    recovery_s_max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failovers:
    """From the last sign of a leader to the first of its successor, in seconds.

    ``alone``: the bus was well, and no other fault hit allocators (or trackers) shortly before.
    """

    count: int
    median_s: float | None
    max_s: float | None
    alone: int
    alone_max_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """``kinds`` and ``violations`` count; what they were is in ``by_kind`` and ``broken``.

    ``steps_lost``: made, and in no version. ``node_deaths``: agents that died with leases, ``steps_lost_with_nodes``.
    """

    faults: int
    kinds: int
    violations: int
    jobs: int
    steps_lost: int
    steps_counted: int
    seed: int
    seconds: float
    missed: int
    by_kind: tuple[KindReport, ...]
    failovers: Failovers
    ends: dict[str, int]
    rounds: int
    versions: int
    node_deaths: int
    steps_lost_with_nodes: int
    most_steps_lost_with_a_node: int
    doubled_messages: int
    held_back_results: int
    replayed_messages: int
    broken: tuple[Violation, ...]


def summarise(outcome: Outcome, seed: int) -> Report:
    """The report of a run."""
    evidence = outcome.evidence
    promised = {promise.job_id for promise in evidence.promises}
    lost, counted = _steps(evidence)
    deaths = {
        life: sum(evidence.reported.get(span.name, ("", 0))[1] for span in died)
        for life, died in lost_to_node_deaths(evidence).items()
    }
    ends = Counter(str(known.state) for job, known in evidence.progress.items() if job in promised)
    return Report(
        faults=len(outcome.struck),
        kinds=len({struck.fault.kind for struck in outcome.struck}),
        violations=len(outcome.violations),
        jobs=len(evidence.promises),
        steps_lost=lost,
        steps_counted=counted,
        seed=seed,
        seconds=round(outcome.seconds, 1),
        missed=len(outcome.missed),
        by_kind=_by_kind(outcome),
        failovers=_failovers(outcome),
        ends=dict(ends),
        rounds=sum(stored.event.what == "planned" for stored in evidence.round_events),
        versions=len(evidence.manifests),
        node_deaths=len(deaths),
        steps_lost_with_nodes=sum(deaths.values()),
        most_steps_lost_with_a_node=max(deaths.values(), default=0),
        doubled_messages=outcome.doubled,
        held_back_results=outcome.held_back,
        replayed_messages=outcome.replayed,
        broken=tuple(outcome.violations),
    )


def _steps(evidence: Evidence) -> tuple[int, int]:
    """Steps that were made and are in no version, and those that are in one."""
    counted = counted_leases(evidence)
    made = {name: steps for name, (_, steps) in evidence.reported.items()}
    for span in spans(evidence.node_events, evidence.lives):
        made[span.name] = max(made.get(span.name, 0), span.steps or 0)
    lost = sum(steps for name, steps in made.items() if name not in counted)
    return lost, sum(parent.steps for manifest in evidence.manifests.values() for parent in manifest.parents)


def recovery_s(
    struck: Struck, planned: Sequence[StoredEvent], made: Sequence[StoredEvent], offset: float
) -> float | None:
    """Seconds from the strike until a round planned after it brought a version; None if none did."""
    at = struck.at + offset
    rounds = {int(stored.event.id) for stored in planned if stored.at > at}
    first = min((stored.at for stored in made if int(stored.event.data["round"]) in rounds), default=None)
    return None if first is None else first - at


def _by_kind(outcome: Outcome) -> tuple[KindReport, ...]:
    planned = [stored for stored in outcome.evidence.round_events if stored.event.what == "planned"]
    made = [stored for stored in outcome.evidence.job_events if stored.event.what == "consolidated"]
    times: dict[str, list[float | None]] = {}
    for struck in outcome.struck:
        times.setdefault(struck.fault.kind, []).append(recovery_s(struck, planned, made, outcome.wall_offset))
    found = []
    for kind, all_of in sorted(times.items()):
        known = [seconds for seconds in all_of if seconds is not None]
        found.append(
            KindReport(
                kind=kind,
                faults=len(all_of),
                recovery_s_median=round(median(known), 1) if known else None,
                recovery_s_max=round(max(known), 1) if known else None,
            )
        )
    return tuple(found)


def _failovers(outcome: Outcome) -> Failovers:
    gaps = [failover.gap_s for failover in outcome.failovers]
    alone = [failover.gap_s for failover in outcome.failovers if _alone(failover, outcome.struck)]
    return Failovers(
        count=len(gaps),
        median_s=round(median(gaps), 2) if gaps else None,
        max_s=round(max(gaps), 2) if gaps else None,
        alone=len(alone),
        alone_max_s=round(max(alone), 2) if alone else None,
    )


def _alone(failover: Failover, struck: Sequence[Struck]) -> bool:
    """Whether the bus was well, and at most one fault, the one that brought it about, was near that hit the role."""
    begin = failover.at - failover.gap_s
    near = [one for one in struck if one.at < failover.at and one.undone_at > begin - _QUIET_S]
    bus_is_well = not any(one.fault.kind in _BUS for one in near)
    return bus_is_well and sum(one.hit.startswith(failover.role) for one in near) <= 1
