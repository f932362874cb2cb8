"""A guard without a cluster: one worker trains in rounds, and after each the best way to make a version is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hadare.forking.outer import AVERAGE, choose
from hadare.forking.schedule import data_seed
from hadare.model.jobs import GuardSpec
from hadare.model.leases import Failure
from hadare.training.averaging import Consolidation, ForkFile, consolidate_candidates
from hadare.training.granted import Grant, OnStanding, Standing, Trained, silent
from hadare.training.task import WorkloadError
from hadare.training.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedRun:
    """What was trained, and how often which candidate was kept."""

    trained: Trained
    chosen: dict[str, int] = field(default_factory=dict)


def best_candidate(found: Mapping[str, tuple[Path, Consolidation]], worker: Worker, guard: GuardSpec) -> str:
    """The name of the candidate to keep. Raises ``WorkloadError`` if the task does not report the guard's metric."""
    scores = {}
    for name, (path, _) in found.items():
        worker.load(path)
        metrics = worker.evaluate()
        if guard.metric not in metrics:
            known = ", ".join(sorted(metrics)) or "none"
            message = f"consolidation.guard: there is no metric {guard.metric!r}, the workload reports: {known}"
            raise WorkloadError(Failure(kind="exception", message=message))
        scores[name] = metrics[guard.metric]
    return choose(scores, guard)


def train_guarded(
    worker: Worker, guard: GuardSpec, *, steps: int, round_steps: int, seed: int, report: OnStanding = silent
) -> GuardedRun:
    """Trains ``steps`` in rounds of ``round_steps``. With one worker the average is what it has trained itself."""
    chosen: Counter[str] = Counter()
    done: list[Trained] = []
    with TemporaryDirectory(prefix="hadare-") as scratch:
        folder = Path(scratch)
        base, fork = folder / "base", folder / "fork"
        worker.save(base)
        for number, at in enumerate(range(0, steps, round_steps)):
            quota = min(round_steps, steps - at)
            grant = Grant(
                quota=quota,
                data_seed=data_seed(seed, number, 0),
                schedule_from=at / steps,
                schedule_to=(at + quota) / steps,
            )
            done.append(worker.train(grant, report=_from(at, report)))
            worker.save(fork)
            found = consolidate_candidates(base, [ForkFile(fork=0, path=fork, steps=quota)], folder)
            name = best_candidate(found, worker, guard)
            chosen[name] += 1
            found.get(name, found[AVERAGE])[0].replace(base)
            worker.load(base)
    return GuardedRun(trained=_together(done), chosen=dict(sorted(chosen.items())))


def _from(at: int, report: OnStanding) -> OnStanding:
    return lambda standing: report(
        Standing(steps=at + standing.steps, loss=standing.loss, steps_per_s=standing.steps_per_s)
    )


def _together(rounds: list[Trained]) -> Trained:
    return replace(
        rounds[-1],
        steps=sum(one.steps for one in rounds),
        samples=sum(one.samples for one in rounds),
        updates=sum(one.updates for one in rounds),
        seconds=sum(one.seconds for one in rounds),
    )
