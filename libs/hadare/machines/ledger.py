"""The ledger of a job's open round: which forks are expected, which have reported, and what each brought.

Rules of this file: an entry leaves ``expected`` once and never changes again. A result belongs to the open round if
its round, epoch, fork, attempt, rank, node and base version are the ledger's; anything else counts nothing and says
why. So does a fork that reports more steps than its quota: it would capture the average.
"""

from __future__ import annotations

from dataclasses import replace

from hadare.model.jobs import JobProgress, LedgerEntry, OpenRound
from hadare.model.leases import Failure, ForkResult


def find(ledger: OpenRound, fork: int) -> LedgerEntry | None:
    return next((entry for entry in ledger.forks if entry.fork == fork), None)


def fault_of(progress: JobProgress, result: ForkResult) -> str:
    """Why a training result cannot count at all; empty if it belongs to the open round."""
    if progress.open is None or progress.open.round != result.key.round:
        return not_in_round(progress, result)
    return fault_in(progress.open, result)


def not_in_round(progress: JobProgress, result: ForkResult) -> str:
    if result.key.round <= progress.closed_round:
        return f"round {result.key.round} of the job is closed"
    return f"the job takes no part in round {result.key.round}"


def fault_in(ledger: OpenRound, result: ForkResult) -> str:
    """Why a result of this round is not one that the ledger expects, or did expect; empty if it is."""
    key = result.key
    if ledger.epoch != result.epoch:
        return f"epoch {result.epoch} is not the round's, which is {ledger.epoch}"
    entry = find(ledger, key.fork)
    if entry is None or entry.attempt != key.attempt or _node_of(entry, key.rank) != result.node:
        rank = f" rank {key.rank}" if key.rank else ""
        return f"no fork {key.fork} attempt {key.attempt}{rank} on {result.node} is in round {key.round}"
    if ledger.base_version != result.base_version:
        return f"trained from version {result.base_version}, the round's base is {ledger.base_version}"
    if result.steps > entry.quota:
        return f"reports {result.steps} steps, its quota was {entry.quota}"
    return ""


def is_repeat(entry: LedgerEntry, result: ForkResult) -> bool:
    """The same result again: the sender did not hear the answer."""
    if entry.outcome == "received":
        return entry.object == result.object and entry.steps == result.steps
    return entry.outcome == "missing" and (result.failure is not None or result.steps == 0)


def record(ledger: OpenRound, result: ForkResult) -> OpenRound:
    """The ledger with an expected fork's result in it. A fork without steps or weights is ``missing``."""
    brought = result.steps > 0 and result.object is not None and result.failure is None
    entry = find(ledger, result.key.fork)
    assert entry is not None
    assert entry.outcome == "expected"
    if brought:
        final = replace(
            entry,
            outcome="received",
            reason=result.reason,
            loss=result.metrics.get("loss"),
            steps=result.steps,
            samples=result.samples,
            updates=result.updates,
            object=result.object,
        )
    else:
        reason = result.failure.message if result.failure else f"no step done ({result.reason})"
        final = replace(entry, outcome="missing", reason=reason[:4096])
    return _with(ledger, final)


def note_rank(ledger: OpenRound, result: ForkResult) -> OpenRound:
    """The ledger that remembers that a rank beside the first has told of its end."""
    entry = find(ledger, result.key.fork)
    assert entry is not None
    return _with(ledger, replace(entry, reported=(*entry.reported, result.key.rank)))


def fail_rank(ledger: OpenRound, result: ForkResult, failure: Failure) -> OpenRound:
    """The ledger with the fork of a rank that failed given up, unless it is on record already."""
    entry = find(ledger, result.key.fork)
    assert entry is not None
    if entry.outcome != "expected":
        return ledger
    reason = f"rank {result.key.rank} on {result.node} ({result.device_type}): {failure.message}"
    return _with(ledger, replace(entry, outcome="missing", reason=reason[:4096]))


def give_up(ledger: OpenRound, reasons: dict[str, str], job_id: str, default: str = "") -> OpenRound:
    """Marks expected forks as missing: those whose lease is named in ``reasons``, or all if there is a ``default``."""
    for entry in ledger.forks:
        lease = f"{job_id}.{ledger.round}.{entry.fork}.{entry.attempt}"
        reason = reasons.get(lease, default)
        if entry.outcome == "expected" and reason:
            ledger = _with(ledger, replace(entry, outcome="missing", reason=reason[:4096]))
    return ledger


def is_final(ledger: OpenRound) -> bool:
    return all(entry.outcome != "expected" for entry in ledger.forks)


def received(ledger: OpenRound) -> tuple[LedgerEntry, ...]:
    """The forks that take part in the consolidation, by fork."""
    return tuple(sorted((e for e in ledger.forks if e.outcome == "received"), key=lambda entry: entry.fork))


def foreseen(progress: JobProgress) -> JobProgress:
    """The progress once the version of the open round is made, if no fork that it is made of is rejected.

    As it is, if a fork is still expected or none brought anything.
    """
    opened = progress.open
    if opened is None or not is_final(opened) or not (forks := received(opened)):
        return progress
    return replace(
        progress,
        steps=progress.steps + sum(entry.steps for entry in forks),
        version=progress.version + 1,
        rounds=progress.rounds + 1,
        failures=0,
        barren=0,
        open=None,
        closed_round=opened.round,
    )


def _node_of(entry: LedgerEntry, rank: int) -> str | None:
    if rank == 0:
        return entry.node
    return entry.others[rank - 1].node if rank <= len(entry.others) else None


def _with(ledger: OpenRound, final: LedgerEntry) -> OpenRound:
    forks = tuple(final if entry.fork == final.fork else entry for entry in ledger.forks)
    return replace(ledger, forks=forks)
