"""Where the time between two rounds goes, from what agents and services have recorded on one machine. Pure.

Marks of one fork that stays, in order: its last step, saved, uploaded and reported, the version made, the next lease
accepted, its weights there and loaded, its first step. A phase is the time between two marks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from hadare.model.events import StoredEvent

PHASES = ("save", "upload", "others", "consolidate", "plan", "fetch", "load", "first_step")
"""``others``: until the last fork of the round is in and the tracker begins. ``plan``: publish the version, close the
round, price, place, store, open, dispatch, until the next lease is accepted."""

Spans = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Work:
    """A training lease that made steps. Times are seconds of the machine's monotonic clock."""

    node: str
    round: int
    accepted: float
    started: float
    loaded: float
    first_step: float
    last_step: float
    saved: float
    ended: float
    cold: bool


@dataclass(frozen=True, slots=True)
class Boundary:
    """One fork between two rounds; ``phases`` in ms, in the order of ``PHASES``."""

    node: str
    round: int
    total_ms: float
    phases: dict[str, float]


def works(node_events: Iterable[StoredEvent], job_id: str) -> list[Work]:
    """Every training lease of the job that ended with steps, by node and round."""
    starts: dict[tuple[Any, ...], dict[str, Any]] = {}
    found: list[Work] = []
    for stored in node_events:
        data = stored.event.data
        if data.get("kind") != "train" or data.get("job") != job_id:
            continue
        key = (stored.event.id, data["round"], data["fork"], data["attempt"])
        if stored.event.what == "lease_started":
            starts[key] = data
        elif stored.event.what == "lease_ended" and data.get("steps") and key in starts:
            found.append(_work(stored.event.id, starts[key], data))
    return sorted(found, key=lambda work: (work.node, work.round))


def _work(node: str, start: Mapping[str, Any], end: Mapping[str, Any]) -> Work:
    ended, started = float(end["at_s"]), float(start["at_s"])
    last = ended - float(end["since_last_s"])
    before = sum(float(end["phases_ms"].get(phase, 0.0)) for phase in ("load", "evaluate")) / 1e3
    return Work(
        node=node,
        round=int(end["round"]),
        accepted=started - float(start["waited_s"]),
        started=started,
        loaded=started + before,
        first_step=last - float(end["trained_s"]),
        last_step=last,
        saved=ended - float(end["upload_s"]),
        ended=ended,
        cold=bool(start["cold"]),
    )


def boundaries(found: Sequence[Work], consolidations: Mapping[int, tuple[float, float]]) -> list[Boundary]:
    """Between each round and the next, for each fork that stayed warm on its node.

    ``consolidations``: begin and end of each round's, on the same clock.
    """
    by_place = {(work.node, work.round): work for work in found}
    all_in = {r: max(work.ended for work in found if work.round == r) for r in {work.round for work in found}}
    return [
        _boundary(work, by_place[work.node, work.round + 1], all_in[work.round], consolidations[work.round])
        for work in found
        if work.round in consolidations
        and (work.node, work.round + 1) in by_place
        and not by_place[work.node, work.round + 1].cold
    ]


def _boundary(work: Work, after: Work, all_in: float, consolidation: tuple[float, float]) -> Boundary:
    began, ended = consolidation
    marks = [work.last_step, work.saved, work.ended, max(all_in, began), ended]
    marks += [after.accepted, after.started, after.loaded, after.first_step]
    spent = [max(0.0, (later - earlier) * 1e3) for earlier, later in pairwise(marks)]
    total = (after.first_step - work.last_step) * 1e3
    return Boundary(work.node, work.round, total, dict(zip(PHASES, spent, strict=True)))


def consolidations(spans: Spans, job_id: str, offset_s: float) -> dict[int, tuple[float, float]]:
    """From the tracker's spans. ``offset_s``: Unix time less the monotonic clock."""
    found = {}
    for span in spans:
        attributes = span["attributes"]
        if span["name"] == "consolidate job" and attributes.get("hadare.job") == job_id:
            times = (span["start_ns"] / 1e9 - offset_s, span["end_ns"] / 1e9 - offset_s)
            found[int(attributes["hadare.round"])] = times
    return found


def result_bytes(spans: Spans, job_id: str) -> int:
    """What one fork has sent, the median over the rounds; 0 if nothing is known."""
    found = [
        span["attributes"].get("hadare.bytes", 0) / span["attributes"]["hadare.forks"]
        for span in spans
        if span["name"] == "consolidate job" and span["attributes"].get("hadare.job") == job_id
    ]
    return round(median(found)) if found else 0


def medians(found: Sequence[Boundary]) -> dict[str, float]:
    """Of each phase over all boundaries, in ms. They need not add up to the median of the whole."""
    return {phase: median(one.phases[phase] for one in found) for phase in PHASES}
