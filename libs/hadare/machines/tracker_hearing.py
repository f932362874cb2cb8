"""A tracker that takes over hears everybody out before it closes a round that it has not opened itself.

While no tracker was there, results came to nobody, and agents tell them again only after a pause. A round that was
closed before that would lose what its forks have done, to no fault of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hadare.machines import ledger
from hadare.machines.tracker_events import CloseAsked
from hadare.model.jobs import JobProgress


class Hearing:
    """Holds requests to close such rounds back until every fork has reported or was withdrawn, or the time is up."""

    def __init__(self) -> None:
        self._rounds: dict[str, int] = {}
        self._until = 0.0
        self._held: list[CloseAsked] = []

    def begin(self, opened: Iterable[JobProgress], until: float) -> None:
        """``opened``: the jobs of which a predecessor has left a round open."""
        self._rounds = {progress.job_id: progress.open.round for progress in opened if progress.open}
        self._until = until

    def holds(self, asked: CloseAsked, of_the_round: Iterable[JobProgress]) -> bool:
        """Whether it is too soon for an answer; then ``ripe`` hands the request out when it is not any more."""
        if not self._waits_for(asked, of_the_round):
            return False
        self._held.append(asked)
        return True

    def ripe(self, at: float) -> Iterator[CloseAsked]:
        """Every held request, as one that is asked now: ``holds`` may keep it again."""
        held, self._held = self._held, []
        return (replace(asked, at=at) for asked in held)

    def _waits_for(self, asked: CloseAsked, of_the_round: Iterable[JobProgress]) -> bool:
        request = asked.request
        if request.only_withdrawn or asked.at >= self._until:
            return False
        return any(
            not ledger.is_final(ledger.give_up(progress.open, request.withdrawn, progress.job_id))
            for progress in of_the_round
            if progress.open and self._rounds.get(progress.job_id) == request.round
        )
