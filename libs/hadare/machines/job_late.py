"""What forks tell of rounds that are closed already. No step counts any more; a failure does.

Code that hangs is ended well after its lease, when its round has long been closed without it: who heard no late failure
would lease it devices for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hadare.machines import ledger
from hadare.machines.conduct import tried
from hadare.machines.job_book import JobBook, fails_by_itself
from hadare.machines.tracker_events import TrackerCommand
from hadare.model.jobs import OpenRound
from hadare.model.leases import ForkResult

_MOST_ROUNDS = 16
"""An agent ends what hangs some seconds after its lease, which may be several short rounds later."""


@dataclass(slots=True)
class _Past:
    """A round as it was closed, ``told`` by so many of its forks since."""

    opened: OpenRound
    lost: bool
    told: set[int] = field(default_factory=set)


@dataclass(slots=True)
class LateFailures:
    """Of the job's newest closed rounds; forgotten with the tracker."""

    book: JobBook
    _past: dict[int, _Past] = field(default_factory=dict)

    def closed(self, opened: OpenRound, *, lost: bool) -> None:
        self._past[opened.round] = _Past(opened, lost)
        while len(self._past) > _MOST_ROUNDS:
            del self._past[min(self._past)]

    def take(self, result: ForkResult) -> list[TrackerCommand]:
        """What follows from a fork's failure that came too late: counted once a round, if that brought nothing and no
        version has come since."""
        past, failure, book = self._past.get(result.key.round), result.failure, self.book
        if past is None or failure is None or not _is_news(past, result):
            return []
        past.told.add(result.key.fork)
        excluded = book.note_excluded_type(result)
        changes: dict[str, Any] = book.after_failure(result, failure)
        known = book.progress.trials.get(result.node)
        if known is None or known.round <= result.key.round:
            changes["trials"] = tried(book.progress.trials, result)
        in_a_row = past.lost and past.opened.base_version == book.progress.version
        if in_a_row and not past.opened.own_fault and fails_by_itself(book, failure):
            past.opened = replace(past.opened, own_fault=True)
            changes["failures"] = book.progress.failures + 1
        return [*book.change(**changes), *excluded]


def _is_news(past: _Past, result: ForkResult) -> bool:
    """Not what the round has on record, told again by a sender that did not hear the answer."""
    entry, failure = ledger.find(past.opened, result.key.fork), result.failure
    if entry is None or failure is None or entry.outcome != "missing" or entry.fork in past.told:
        return False
    return not ledger.fault_in(past.opened, result) and entry.reason != failure.message[:4096]
