"""What a round tells of forking for its job: the noise between its forks, what they were worth, and the loss curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from hadare.forking import gain as forking
from hadare.forking.bend import LONGEST, is_bent
from hadare.machines.tracker_events import ForkKept
from hadare.model.jobs import ForkTruth, JobProgress, LedgerEntry


@dataclass(frozen=True, slots=True)
class Learned:
    """What changes of a job's progress."""

    truth: ForkTruth | None
    losses: tuple[float, ...]
    bent: bool


def learned(
    progress: JobProgress, kept: Sequence[ForkKept], entries: Mapping[int, LedgerEntry], *, keeps_pace: bool
) -> Learned:
    """``entries`` of the round's ledger, by fork; ``kept`` are the forks that went into the version.

    ``keeps_pace``: how its outer step is (``forking.outer``).
    """
    done = [entries[fork.fork] for fork in kept]
    loss = _mean_loss(done)
    losses = progress.losses if progress.bent or loss is None else (*progress.losses, loss)[-LONGEST:]
    bent = progress.bent or is_bent(losses)
    return Learned(_truth(progress.truth, kept, done, keeps_pace), () if bent else losses, bent)


def _truth(
    known: ForkTruth | None, kept: Sequence[ForkKept], done: Sequence[LedgerEntry], keeps_pace: bool
) -> ForkTruth | None:
    """A round of a single fork shows nothing, but what is known gets old."""
    steps = [entry.steps for entry in done]
    pairs = zip(kept, steps, strict=True)
    seen = forking.noise_of([forking.Change(n, fork.delta_norm, fork.agreement) for fork, n in pairs])
    if seen is None:
        return known and replace(known, alone=known.alone + 1)
    rounds = known.rounds if known else 0
    noise = forking.smoothed(known.noise_steps if known else None, rounds, seen)
    return ForkTruth(
        rounds=rounds + 1,
        noise_steps=noise,
        gain=forking.gain(steps, noise, keeps_pace=keeps_pace),
        fastest_steps=max(steps),
        agreement=fmean(fork.agreement for fork in kept),
    )


def _mean_loss(done: Sequence[LedgerEntry]) -> float | None:
    """Weighted by steps; ``None`` if a fork has reported none."""
    told = [(entry.steps, entry.loss) for entry in done if entry.loss is not None]
    total = sum(steps for steps, _ in told)
    return sum(steps * loss for steps, loss in told) / total if told and len(told) == len(done) and total else None
