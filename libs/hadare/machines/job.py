"""One job's life, from queued to its end: what is to be done for it now, given its record, its progress and the nodes.

``drive`` is level-triggered: it looks at what is, not at what happened, so it is called after every event, on every
tick and after a restart, and does the right thing each time.
"""

from __future__ import annotations

from collections.abc import Mapping

from hadare.machines.conduct import failing_on
from hadare.machines.job_book import JobBook, NodeSeen, delete
from hadare.machines.job_round import JobRound
from hadare.machines.job_side import SideLeases
from hadare.machines.tracker_events import RevokeJob, TrackerCommand
from hadare.model.devices import NodeState
from hadare.model.jobs import Desired, JobState

_REVOKE_TIMEOUT_S = 60.0
_PATIENCE = 3


class Job:
    """A job's book, its open round, and its init or evaluate lease. The last two are rebuilt by ``drive``."""

    def __init__(self, book: JobBook) -> None:
        self.book = book
        self.round = JobRound(book)
        self.side = SideLeases(book)
        self._unfreed: dict[str, float] = {}

    def drive(self, at: float, nodes: Mapping[str, NodeSeen]) -> list[TrackerCommand]:
        """What is to be done for the job now. Nothing, if it has ended or waits for something that is under way."""
        book, progress = self.book, self.book.progress
        if progress.state.ended:
            return []
        if book.record.desired is Desired.CANCELLED:
            return self._cancel(at, nodes)
        if progress.open is not None:
            closing = self.round.close(at, nodes)
            if book.progress.open is None:
                return [*closing, *self.drive(at, nodes)]
            if closing or not book.paused:
                return closing
            return book.become(progress.state, f"pauses at the end of round {progress.open.round}")
        if progress.failures >= book.settings.max_attempts and not self._may_be_the_nodes_fault(nodes):
            return book.fail(self._why_given_up())
        if nodes and progress.excluded.keys() >= nodes.keys():
            return book.fail(book.why_nowhere())
        if book.paused:
            return book.become(JobState.PAUSED, "paused by its user")
        if book.is_decided():
            return self.side.conclude()
        if progress.version < 0 or book.must_evaluate():
            return self.side.drive(at, nodes)
        if progress.state in (JobState.PAUSED, JobState.QUEUED, JobState.EVALUATING):
            return book.become(JobState.WAITING, "waits for the next round")
        return []

    def _why_given_up(self) -> str:
        """Never only that it got no devices in the last round."""
        progress, failed = self.book.progress, failing_on(self.book.progress)
        where = f" (on {', '.join(failed[:8])})" if failed else ""
        said = progress.error.strip().rsplit("\n", 1)[-1]
        kind, colon, text = said.partition(": ")
        plain = kind.rpartition(".")[2] + colon + text  # a traceback gives the module too, a reason does not
        last = f"{progress.reason}; {said}" if said and plain not in progress.reason else progress.reason
        return f"it failed {progress.failures} times in a row{where}: {last}"

    def _may_be_the_nodes_fault(self, nodes: Mapping[str, NodeSeen]) -> bool:
        """Whether one node alone failed the job, and it has others to try. Not for ever: they may never be free."""
        progress, failed = self.book.progress, failing_on(self.book.progress)
        if len(failed) != 1 or progress.failures >= _PATIENCE * self.book.settings.max_attempts:
            return False
        return not nodes or any(node not in failed and node not in progress.excluded for node in nodes)

    def refusal(self, base_version: int, round_number: int, epoch: int) -> str:
        """Why the job cannot take part in a round; empty if it can (or does so already)."""
        progress, wish = self.book.progress, self.book.record.desired
        known = progress.open
        if known is not None and (known.round, known.epoch, known.base_version) == (round_number, epoch, base_version):
            return ""
        if progress.state.ended or wish is not Desired.RUN:
            return f"the job is {progress.state if progress.state.ended else wish}"
        if known is not None:
            return f"its round {known.round} is not closed yet"
        if progress.closed_round >= round_number:
            return f"its round {progress.closed_round} is closed already"
        if progress.version != base_version:
            return f"its version is {progress.version}, not {base_version}"
        return "its last version is being evaluated" if self.book.must_evaluate() else ""

    def sit_out(self) -> list[TrackerCommand]:
        """A round has opened without the job."""
        if self.book.progress.state is JobState.RUNNING and self.book.progress.open is None:
            return self.book.become(JobState.WAITING, "got no devices in this round")
        return []

    def freed(self, node: str, at: float, free: bool) -> None:
        """A node's answer to the revocation: free of the job, or to be asked again."""
        if free:
            self._unfreed.pop(node, None)
        elif node in self._unfreed:
            self._unfreed[node] = at + self.book.settings.retry_s

    def _cancel(self, at: float, nodes: Mapping[str, NodeSeen]) -> list[TrackerCommand]:
        commands: list[TrackerCommand] = []
        if self.book.progress.state is not JobState.CANCELLING:
            self._unfreed = dict.fromkeys(sorted(self._holding()), at)
            commands += self.book.become(JobState.CANCELLING, "its processes are being ended")
        for node in sorted(self._unfreed):
            if node not in nodes or nodes[node].state is NodeState.LOST:
                del self._unfreed[node]
            elif self._unfreed[node] <= at:
                self._unfreed[node] = at + _REVOKE_TIMEOUT_S
                commands.append(RevokeJob(job_id=self.book.job_id, node=node, reason="cancelled by its user"))
        if self._unfreed or self.round.consolidating:
            return commands
        return [*commands, *self.round.drop_guard(), *self._cancelled()]

    def resume_cancel(self, at: float) -> None:
        """After a restart in mid-cancel: ask every node again."""
        if self.book.progress.state is JobState.CANCELLING:
            self._unfreed = dict.fromkeys(sorted(self._holding()), at)

    def _cancelled(self) -> list[TrackerCommand]:
        book, opened = self.book, self.book.progress.open
        self.side.rest()
        closed = book.progress.closed_round if opened is None else opened.round
        reason = "cancelled by its user"
        return [
            *book.change(state=JobState.CANCELLED, reason=reason, open=None, closed_round=closed, eta_s=None),
            book.note("cancelled"),
            *delete(entry.object for entry in (opened.forks if opened else ())),
        ]

    def _holding(self) -> set[str]:
        """Nodes on which something of the job may be running."""
        opened = self.book.progress.open
        forks = opened.forks if opened else ()
        ranks = {place.node for entry in forks for place in entry.others}
        return {entry.node for entry in forks} | ranks | ({self.side.node} - {""})
