"""What the ranks of a job's gangs tell beside rank 0, whose result alone is the fork's.

Rules of this file: their results count no steps; each is noted once, also if it comes when the round is closed already
(rank 0 may well be the first to tell of the end). A rank that failed ends the fork; its failure is judged like any
other, but failures of kind ``gang`` only say that another rank has ended, and count against nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hadare.machines import ledger
from hadare.machines.conduct import tried
from hadare.machines.job_book import JobBook, fails_by_itself
from hadare.machines.tracker_events import TrackerCommand
from hadare.model.jobs import GangSpan, GangTimes, JobProgress, LedgerEntry, OpenRound
from hadare.model.leases import ForkResult
from hadare.scheduling.throughput import observe

SMALLEST_GAIN = 0.2


@dataclass(slots=True)
class Ranks:
    """``past``: the job's last round as it was closed, for who comes late; forgotten with the tracker."""

    book: JobBook
    past: OpenRound | None = None
    past_was_lost: bool = False

    def closed(self, opened: OpenRound, *, lost: bool) -> None:
        self.past, self.past_was_lost = opened, lost

    def take(self, result: ForkResult) -> tuple[str, list[TrackerCommand]]:
        """Why the result counts no steps, as it never does for a rank beside the first, and what follows from it."""
        progress = self.book.progress
        late = self.past is not None and self.past.round == result.key.round
        opened = self.past if late else progress.open
        if opened is None or opened.round != result.key.round:
            return ledger.not_in_round(progress, result), []
        fault = ledger.fault_in(opened, result)
        entry = ledger.find(opened, result.key.fork)
        if fault or entry is None:
            return fault, []
        if result.key.rank in entry.reported:
            return f"rank {result.key.rank} of {entry.ranks} is noted already", []
        noted = ledger.note_rank(opened, result)
        if late:
            return _NOTED, self._take_late(noted, result)
        return _NOTED, self._take(noted, result)

    def _take(self, opened: OpenRound, result: ForkResult) -> list[TrackerCommand]:
        book, failure = self.book, result.failure
        excluded = book.note_excluded_type(result)
        if failure is not None:
            own = opened.own_fault or fails_by_itself(book, failure)
            opened = ledger.fail_rank(replace(opened, own_fault=own), result, failure)
        return [*book.change(open=opened, **self._learnt(result)), *excluded]

    def _take_late(self, past: OpenRound, result: ForkResult) -> list[TrackerCommand]:
        """A fault that only this rank knows of counts once, like that of a fork, if its round brought nothing."""
        book, failure = self.book, result.failure
        excluded = book.note_excluded_type(result)
        changes = self._learnt(result)
        counts = failure is not None and self.past_was_lost and not past.own_fault and fails_by_itself(book, failure)
        if counts:
            changes["failures"] = book.progress.failures + 1
        self.past = replace(past, own_fault=past.own_fault or counts)
        commands = [*book.change(**changes), *excluded]
        if counts and failure is not None and book.progress.failures >= book.settings.max_attempts:
            commands += book.fail(f"{_who(result)}: {failure.message}")
        return commands

    def _learnt(self, result: ForkResult) -> dict[str, Any]:
        changes = self.book.after_failure(result, result.failure) if result.failure is not None else {}
        seen = replace(result, steps=1) if result.throughput > 0 else result  # its steps are in rank 0's result
        trials = tried(self.book.progress.trials, seen)
        return {**changes, **throughput_of(self.book.progress, result), "trials": trials}


_NOTED = "its rate is noted; a gang's steps are those of its rank 0"


def throughput_of(progress: JobProgress, result: ForkResult) -> dict[str, Any]:
    """The change of progress by what a rank has measured, if it has: of its own device type alone."""
    if result.throughput <= 0:
        return {}
    known = progress.throughput
    rate = observe(known.get(result.device_type), result.throughput)
    return {"throughput": {**known, result.device_type: rate}}


def gang_times_of(progress: JobProgress, entry: LedgerEntry, result: ForkResult) -> dict[str, Any]:
    """The same by the times of a gang's updates, as its rank 0 tells them."""
    if result.update_s <= 0 or not entry.others:
        return {}
    span: GangSpan = "packed" if all(place.node == entry.node for place in entry.others) else "spread"
    known = progress.gang_times.get(span) or GangTimes(update_s=0.0, exchange_s=0.0, count=0)
    count = known.count + 1
    gain = max(SMALLEST_GAIN, 1.0 / count)
    times = GangTimes(
        update_s=known.update_s + gain * (result.update_s - known.update_s),
        exchange_s=known.exchange_s + gain * (result.exchange_s - known.exchange_s),
        count=count,
    )
    return {"gang_times": {**progress.gang_times, span: times}}


def _who(result: ForkResult) -> str:
    return f"rank {result.key.rank} on {result.node} ({result.device_type})"
