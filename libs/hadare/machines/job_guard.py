"""The guard of a round: agents that trained in it evaluate the candidates, and the best becomes the version.

Rules of this file: it ends, by its deadline at the latest, and whatever goes wrong ends in the average with the reason.
Metrics count if they are of a candidate's very tensors, by their hash: no epoch or clock could say that better.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hadare.forking.outer import AVERAGE, choose
from hadare.machines.job_book import JobBook, NodeSeen
from hadare.machines.ledger import received
from hadare.machines.tracker_events import Candidate, Consolidated, GrantLease, TrackerCommand
from hadare.model.devices import NodeState
from hadare.model.jobs import Guarded, GuardSpec, LedgerEntry, ObjectRef, OpenRound
from hadare.model.leases import ForkResult, Lease, LeaseKey

LEAST_SPEED = 0.5
"""Only devices that did at least this part of the fastest fork's steps evaluate: the slowest would be waited for."""

MOST_PAUSES = 31
"""A job whose guard is always late loses its warm processes in one of so many rounds, and one."""

ROUND_PART = 0.5
"""The guard takes at most this part of a round's length, however long ``guard_s`` is."""

OWN_FAULT = ("exception", "not_finite")
"""Failures with which every other device would fail as well."""


@dataclass(slots=True)
class _Place:
    """A device that the job held in the round, with its warm process, and the candidate that it evaluates now."""

    entry: LedgerEntry
    candidate: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate to publish, its metrics if it was evaluated, and what the version's record says of the guard.

    ``late``: the time was up. Then evaluations were ended, and with them the warm processes of their forks."""

    name: str
    candidate: Candidate
    metrics: dict[str, float]
    told: Guarded
    late: bool = False


@dataclass(slots=True)
class Pauses:
    """Rounds without the guard after it was late: 1, 3, 7 … in a row, at most ``MOST_PAUSES``; in time: none."""

    late: int = 0
    left: int = 0

    def due(self) -> bool:
        """Whether the round that is asked for has a guard."""
        if not self.left:
            return True
        self.left -= 1
        return False

    def heed(self, choice: Choice) -> None:
        self.late = self.late + 1 if choice.late else 0
        self.left = min(2**self.late - 1, MOST_PAUSES)


class Guard:
    """One round's candidates under evaluation. Lives in memory: after a restart the round is consolidated again."""

    def __init__(self, book: JobBook, opened: OpenRound, made: Consolidated, at: float, round_s: float) -> None:
        spec = book.record.spec.consolidation.guard
        assert spec is not None
        self._book = book
        self._spec: GuardSpec = spec
        self._opened = opened
        self.made = made
        self._candidates = made.candidates
        # The average first: without its metrics the others have nothing to be measured by.
        self._order = sorted(made.candidates, key=lambda name: (name != AVERAGE, name))
        self._pending = list(self._order)
        self._limit_s = min(book.settings.guard_s, ROUND_PART * round_s or book.settings.guard_s)
        self._deadline = at + self._limit_s
        self._places = [_Place(entry) for entry in _fastest(opened)]
        self._metrics: dict[str, dict[str, float]] = {}
        self._attempts = 0
        self._gave_up = ""
        self._late = False

    def drive(self, at: float, nodes: Mapping[str, NodeSeen]) -> list[TrackerCommand]:
        """Leases for the devices that are free, as long as there is something to evaluate."""
        for place in [place for place in self._places if _is_lost(nodes.get(place.entry.node))]:
            self._strike(place, "its node is lost")
        if at >= self._deadline:
            self._late = not self._gave_up
            self._give_up(f"not all candidates were evaluated within {self._limit_s:g} s")
        elif self._pending and not self._places:
            self._give_up("no device of the round can evaluate")
        return [] if self._done() else list(self._leases(at))

    def refused(self, key: LeaseKey, reason: str) -> None:
        """An agent did not take the lease, or could not be reached."""
        for place in self._places:
            if place.candidate and place.attempt == key.attempt:
                self._strike(place, f"refused: {reason}")
                return

    def take(self, result: ForkResult) -> str:
        """Why the result counts nothing; empty if it does."""
        name = self._order[result.key.fork - 1] if result.key.fork <= len(self._order) else ""
        place = next((p for p in self._places if p.candidate == name and p.entry.node == result.node), None)
        if not name or place is None:
            return "nobody waits for this evaluation"
        seen = result.evaluation
        if result.failure is not None or seen is None:
            why = result.failure.message if result.failure else f"it was ended ({result.reason})"
            if result.failure is not None and result.failure.kind in OWN_FAULT:
                self._give_up(f"the evaluation failed: {why}")
            self._strike(place, why)
            return ""
        if seen.sha256 != self._candidates[name].weights.sha256:
            return "these are metrics of other weights"
        place.candidate = ""
        self._metrics[name] = seen.metrics
        if self._spec.metric not in seen.metrics:
            known = ", ".join(sorted(seen.metrics)) or "none"
            self._give_up(f"the evaluation has no metric {self._spec.metric!r}, it has: {known}")
        return ""

    def choice(self) -> Choice | None:
        """What to publish; ``None`` while candidates are evaluated."""
        if not self._done():
            return None
        scores = {name: metrics[self._spec.metric] for name, metrics in self._metrics.items() if self._has(metrics)}
        name = AVERAGE if self._gave_up else choose(scores, self._spec)
        told = Guarded(chosen=name, scores=scores, reason=self._gave_up[:4096])
        return Choice(name, self._candidates[name], self._metrics.get(name, {}), told, self._late)

    def objects(self) -> list[ObjectRef]:
        """The weights of all candidates."""
        return [candidate.weights for candidate in self._candidates.values()]

    def _has(self, metrics: Mapping[str, float]) -> bool:
        return self._spec.metric in metrics

    def _done(self) -> bool:
        return bool(self._gave_up) or len(self._metrics) == len(self._order)

    def _give_up(self, reason: str) -> None:
        self._gave_up = self._gave_up or reason

    def _strike(self, place: _Place, why: str) -> None:
        """The place is of no use; what it had to evaluate goes to another, if there is one."""
        self._places.remove(place)
        if place.candidate:
            self._pending.insert(0, place.candidate)
        if self._pending and not self._places:
            self._give_up(f"no device of the round can evaluate: {place.entry.node}: {why}")

    def _leases(self, at: float) -> Iterator[GrantLease]:
        for place in self._places:
            if place.candidate or not self._pending:
                continue
            self._attempts += 1
            place.candidate, place.attempt = self._pending.pop(0), self._attempts
            yield GrantLease(lease=self._lease(place, at))

    def _lease(self, place: _Place, at: float) -> Lease:
        book, entry = self._book, place.entry
        return Lease(
            kind="evaluate",
            key=LeaseKey(
                job_id=book.job_id,
                round=self._opened.round,
                fork=self._order.index(place.candidate) + 1,  # 0 is the evaluation of a version
                attempt=place.attempt,
                kind="evaluate",
            ),
            epoch=book.settings.epoch,
            node=entry.node,
            spec=book.record.spec,
            devices=entry.devices,
            device_type=entry.device_type,
            base_version=book.progress.version + 1,
            base=self._candidates[place.candidate].weights,
            duration_s=max(0.1, self._deadline - at),
            traceparent=book.record.traceparent,
        )


def _fastest(opened: OpenRound) -> list[LedgerEntry]:
    """Forks whose device is worth waiting for, the fastest first."""
    forks = sorted(received(opened), key=lambda entry: (-entry.steps, entry.fork))
    return [entry for entry in forks if entry.devices and entry.steps >= LEAST_SPEED * forks[0].steps]


def _is_lost(seen: NodeSeen | None) -> bool:
    return seen is None or seen.state is NodeState.LOST
