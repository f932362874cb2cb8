"""A job's part in a round: its results, its consolidation, and the write with which steps and version appear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from hadare.forking.outer import outer_of
from hadare.machines import ledger
from hadare.machines.conduct import tried
from hadare.machines.job_book import JobBook, NodeSeen, delete, fails_by_itself
from hadare.machines.job_guard import Choice, Guard, Pauses
from hadare.machines.job_late import LateFailures
from hadare.machines.job_ranks import Ranks, gang_times_of, throughput_of
from hadare.machines.job_truth import learned
from hadare.machines.tracker_events import Consolidate, Consolidated, Contribution, TrackerCommand
from hadare.model.jobs import JobState, LedgerEntry, ObjectRef, OpenRound, Parent, VersionManifest
from hadare.model.leases import ForkResult


@dataclass(slots=True)
class JobRound:
    """The open round of a job. What is in flight (``consolidating``, ``guard``) is begun again after a restart."""

    book: JobBook
    consolidating: bool = False
    guard: Guard | None = None
    retry_at: float = 0.0
    round_s: float = 0.0
    mode: str = ""
    trouble: str = ""
    """Why the guard of the newest version has chosen nothing: shown as long as the job runs and this goes on."""

    ranks: Ranks = field(init=False)
    late: LateFailures = field(init=False)
    pauses: Pauses = field(default_factory=Pauses)

    def __post_init__(self) -> None:
        self.ranks = Ranks(self.book)
        self.late = LateFailures(self.book)

    def open(self, opened: OpenRound, round_s: float, mode: str = "") -> list[TrackerCommand]:
        """``mode`` as in ``JobOpening``; each change of it is a line of the job's history."""
        self.round_s = round_s
        if self.book.progress.open is not None:
            return []
        running = self.book.change(state=JobState.RUNNING, reason=self.trouble, open=opened)
        chosen, _, why = mode.partition(": ")
        if not mode or chosen == self.mode:
            return running
        self.mode = chosen
        return [*running, self.book.note(f"mode.{opened.round}", round=opened.round, chosen=chosen, why=why)]

    def give_up(self, reasons: dict[str, str], default: str) -> list[TrackerCommand]:
        """Marks expected forks as missing: those whose lease ``reasons`` names, or all if there is a ``default``."""
        opened = self.book.progress.open
        if opened is None:
            return []
        given_up = ledger.give_up(opened, reasons, self.book.job_id, default)
        return [] if given_up == opened else self.book.change(open=given_up)

    def take(self, result: ForkResult) -> list[TrackerCommand]:
        """Puts a fork's result, which belongs to the open round, on record."""
        book = self.book
        assert book.progress.open is not None
        opened = ledger.record(book.progress.open, result)
        entry = ledger.find(opened, result.key.fork)
        assert entry is not None
        changes: dict[str, Any] = {"open": opened, "trials": tried(book.progress.trials, result)}
        changes |= throughput_of(book.progress, result) | gang_times_of(book.progress, entry, result)
        if "loss" in result.metrics:
            changes["loss"] = result.metrics["loss"]
        if result.failure is not None:
            own = opened.own_fault or fails_by_itself(book, result.failure)
            changes |= {"open": replace(opened, own_fault=own), **book.after_failure(result, result.failure)}
        noted = book.note_excluded_type(result)
        return [*book.note_evaluation(result), *book.change(**changes), *noted]

    def close(self, at: float, nodes: Mapping[str, NodeSeen]) -> list[TrackerCommand]:
        """Begins the consolidation once every fork has reported or was given up, and carries on with its guard."""
        opened = self.book.progress.open
        assert opened is not None
        if self.guard is not None:
            return self._guarded(opened, self.guard, at, nodes)
        if self.consolidating or at < self.retry_at or not ledger.is_final(opened):
            return []
        forks = ledger.received(opened)
        if not forks:
            reasons = sorted({f"{entry.node}: {entry.reason or 'no result'}" for entry in opened.forks})
            return self._lose(opened, "; ".join(reasons))
        self.consolidating = True
        return [self._consolidate(opened, forks)]

    def consolidated(self, event: Consolidated) -> list[TrackerCommand]:
        opened = self.book.progress.open
        self.consolidating = False
        if opened is None or opened.round != event.round:
            return []
        if event.weights is None:
            reasons = "; ".join(f"fork {fork}: {why}" for fork, why in sorted(event.rejected.items()))
            return self._lose(replace(opened, own_fault=True), f"no fork could be accepted: {reasons}")
        if len(event.candidates) > 1:
            self.guard = Guard(self.book, opened, event, event.at, self.round_s)
            return []
        return self._publish(opened, event, event.weights)

    def failed(self, at: float, reason: str) -> list[TrackerCommand]:
        """The averaging itself could not be done; it is tried again."""
        self.consolidating = False
        self.retry_at = at + self.book.settings.retry_s
        return self.book.change(reason=f"the consolidation is tried again: {reason}"[:4096])

    def drop_guard(self) -> list[TrackerCommand]:
        """The job ends in mid-guard: no candidate is needed any more."""
        guard, self.guard = self.guard, None
        return [] if guard is None else delete(guard.objects())

    def _guarded(
        self, opened: OpenRound, guard: Guard, at: float, nodes: Mapping[str, NodeSeen]
    ) -> list[TrackerCommand]:
        commands = guard.drive(at, nodes)
        choice = guard.choice()
        if choice is None:
            return commands
        self.guard = None
        self.pauses.heed(choice)
        made = guard.made
        losers = delete(ref for ref in guard.objects() if ref.name != choice.candidate.weights.name)
        return [*self._publish(opened, made, choice.candidate.weights, choice), *losers]

    def _consolidate(self, opened: OpenRound, forks: tuple[LedgerEntry, ...]) -> Consolidate:
        book, how = self.book, self.book.record.spec.consolidation
        assert book.progress.weights is not None
        return Consolidate(
            job_id=book.job_id,
            round=opened.round,
            base=book.progress.weights,
            version=book.progress.version + 1,
            forks=tuple(
                Contribution(fork=entry.fork, attempt=entry.attempt, steps=entry.steps, object=entry.object)
                for entry in forks
                if entry.object is not None
            ),
            nodes=_nodes_of(forks),
            how=how if self.pauses.due() else replace(how, guard=None),
            traceparent=book.record.traceparent,
        )

    def _publish(
        self, opened: OpenRound, event: Consolidated, weights: ObjectRef, choice: Choice | None = None
    ) -> list[TrackerCommand]:
        book, progress = self.book, self.book.progress
        self.ranks.closed(opened, lost=False)
        self.late.closed(opened, lost=False)
        entries = {entry.fork: entry for entry in opened.forks}
        kept = [entries[fork.fork] for fork in event.kept]
        manifest = self._manifest(event, entries, weights, choice)
        round_steps = sum(entry.steps for entry in kept)
        left = max(0, progress.total_steps - manifest.steps)
        metrics = {"metrics": manifest.metrics, "metrics_version": manifest.version} if manifest.metrics else {}
        before = self.trouble
        if choice is not None:
            self.trouble = f"its guard does not choose: {choice.told.reason}"[:4096] if choice.told.reason else ""
        troubled = [book.note(f"guard_failed.{manifest.version}", version=manifest.version, reason=self.trouble)]
        news = learned(progress, event.kept, entries, keeps_pace=outer_of(book.record.spec.consolidation).keeps_pace)
        bends = news.bent and not progress.bent and book.record.spec.fork_after == "auto"
        return [
            book.keep(manifest),
            *book.change(
                steps=manifest.steps,
                samples=progress.samples + sum(entry.samples for entry in kept),
                updates=progress.updates + sum(entry.updates for entry in kept),
                path=progress.path + sum(parent.weight * parent.steps for parent in manifest.parents),
                version=manifest.version,
                weights=weights,
                rounds=progress.rounds + 1,
                round_steps=round_steps,
                eta_s=ceil(left / round_steps) * self.round_s if self.round_s else None,
                failures=0,
                barren=0,
                reason=self.trouble,
                open=None,
                closed_round=opened.round,
                truth=news.truth,
                losses=news.losses,
                bent=news.bent,
                **metrics,
            ),
            book.note(f"consolidated.{manifest.version}", **self._story(opened, manifest, round_steps, event.notes)),
            *(troubled if self.trouble not in ("", before) else []),
            *([book.note("bent", round=opened.round, losses=list(progress.losses))] if bends else []),
            *delete(entry.object for entry in opened.forks),
            *book.retire_versions(),
        ]

    def _story(
        self, opened: OpenRound, manifest: VersionManifest, round_steps: int, notes: tuple[str, ...]
    ) -> dict[str, Any]:
        told = manifest.guard
        guard = {"chosen": told.chosen, "scores": told.scores, "reason": told.reason} if told else None
        counted = {parent.fork for parent in manifest.parents}
        return {
            "round": opened.round,
            "version": manifest.version,
            "steps": manifest.steps,
            "total_steps": self.book.progress.total_steps,
            "round_steps": round_steps,
            "forks": len(counted),
            "devices": sum(entry.ranks for entry in opened.forks if entry.fork in counted),
            "fork_gain": self.book.progress.truth.gain if self.book.progress.truth and manifest.parents[1:] else None,
            "loss": self.book.progress.loss,
            "missing": {str(e.fork): e.reason for e in opened.forks if e.outcome == "missing"},
            "rejected": manifest.rejected,
            **({"notes": list(notes)} if notes else {}),
            **({"guard": guard, "metrics": manifest.metrics} if guard else {}),
        }

    def _manifest(
        self, event: Consolidated, entries: dict[int, LedgerEntry], weights: ObjectRef, choice: Choice | None
    ) -> VersionManifest:
        parents = []
        for kept in sorted(event.kept, key=lambda fork: fork.fork):
            entry = entries[kept.fork]
            assert entry.object is not None
            parents.append(
                Parent(
                    round=event.round,
                    fork=entry.fork,
                    attempt=entry.attempt,
                    node=entry.node,
                    device_type=entry.device_type,
                    steps=entry.steps,
                    weight=choice.candidate.parts.get(kept.fork, 0.0) if choice else kept.weight,
                    sha256=entry.object.sha256,
                    delta_norm=kept.delta_norm,
                    transport_error=kept.transport_error,
                    agreement=kept.agreement,
                )
            )
        return VersionManifest(
            job_id=self.book.job_id,
            version=self.book.progress.version + 1,
            base_version=self.book.progress.version,
            steps=self.book.progress.steps + sum(parent.steps for parent in parents),
            weights=weights,
            parents=tuple(parents),
            rejected={str(fork): why[:4096] for fork, why in sorted(event.rejected.items())},
            metrics=choice.metrics if choice else {},
            guard=choice.told if choice else None,
        )

    def _lose(self, opened: OpenRound, why: str) -> list[TrackerCommand]:
        book, progress = self.book, self.book.progress
        self.ranks.closed(opened, lost=True)
        self.late.closed(opened, lost=True)
        # Nobody knows whether there will be another round for it: until then it waits, with the allocator's reason.
        state = JobState.WAITING if progress.state is JobState.RUNNING else progress.state
        commands = [
            *book.change(
                state=state,
                lost_rounds=progress.lost_rounds + 1,
                rounds=progress.rounds + 1,
                round_steps=0,
                failures=progress.failures + opened.own_fault,
                barren=progress.barren + 1,
                reason=f"{_brought_nothing(opened.round, progress.barren + 1)}: {why}"[:4096],
                open=None,
                closed_round=opened.round,
            ),
            book.note(f"round_lost.{opened.round}", round=opened.round, why=why[:4096]),
            *delete(entry.object for entry in opened.forks),
        ]
        if book.progress.barren % book.settings.stalled_rounds == 0:
            data = {"rounds": book.progress.barren, "why": why[:4096]}
            commands.append(book.note(f"stalled.{opened.round}", **data))
        return commands


def _brought_nothing(round_number: int, in_a_row: int) -> str:
    if in_a_row == 1:
        return f"round {round_number} brought nothing"
    return f"{in_a_row} rounds in a row brought nothing, the last one was {round_number}"


def _nodes_of(forks: tuple[LedgerEntry, ...]) -> tuple[str, ...]:
    others = {rank.node for entry in forks for rank in entry.others}
    return tuple(sorted(others.union(entry.node for entry in forks)))
