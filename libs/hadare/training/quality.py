"""What forking is worth to a job: its forks run in turn, in virtual time, and are consolidated as a cluster would.

``python -m hadare.training.quality`` compares forks with one worker at equal total steps on the built-in workloads.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hadare.forking.consolidation import path_steps
from hadare.forking.schedule import data_seed, schedule_span
from hadare.model.jobs import JobSpec
from hadare.training.averaging import ForkFile, consolidate
from hadare.training.local import run_local
from hadare.training.task import load_task_class
from hadare.training.trainer import Grant, Trainer
from hadare.training.weights import load_state, save_state
from hadare.training.workloads import BUILTIN

# Relative speeds of the five emulated nodes of the demo.
SPEEDS = (10.0, 7.35, 4.54, 2.89, 0.83)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """A job whose budget was used up by forks. ``agreements`` are those of the last round."""

    steps: int
    rounds: int
    metrics: dict[str, float]
    agreements: tuple[float, ...]
    rejected: int


def quotas(speeds: Sequence[float], fastest_steps: int, left: int) -> list[int]:
    """Steps of each fork in one round: ``fastest_steps`` for the fastest, fewer when only ``left`` are needed."""
    planned = [int(fastest_steps * speed / max(speeds)) for speed in speeds]
    if sum(planned) <= left:
        return planned
    shares = [left * steps // sum(planned) for steps in planned]
    shares[planned.index(max(planned))] += left - sum(shares)
    return shares


def run_forked(
    spec: JobSpec, folder: Path, *, seed: int = 0, speeds: Sequence[float] = SPEEDS, fastest_steps: int = 600
) -> Forked:
    """Trains ``spec`` by one fork for each speed, in rounds in which the fastest does ``fastest_steps``."""
    trainer = Trainer(spec.workload, spec.config, spec.batch_size, seed)
    base, spare = folder / "base", folder / "next"
    save_state(base, trainer.model, trainer.optimizer)
    steps, path, rounds, rejected = 0, 0.0, 0, 0
    agreements: tuple[float, ...] = ()
    while steps < spec.total_steps:
        planned = quotas(speeds, fastest_steps, spec.total_steps - steps)
        span = schedule_span(steps=steps, path=path, planned=planned, total_steps=spec.total_steps)
        files = []
        for fork, quota in enumerate(planned):
            load_state(base, trainer.model, trainer.optimizer)
            order = data_seed(seed, rounds, fork)
            trainer.train(Grant(quota=quota, data_seed=order, schedule_from=span[0], schedule_to=span[1]))
            files.append(ForkFile(fork=fork, path=folder / f"fork{fork}", steps=quota))
            save_state(files[-1].path, trainer.model, trainer.optimizer)
        made = consolidate(base, files, spare)
        spare.replace(base)
        steps, path, rounds = steps + sum(planned), path + path_steps(planned), rounds + 1
        rejected += len([why for why in made.rejected.values() if why != "no steps"])
        agreements = tuple(round(a.agreement, 3) for a in made.accepted)
    load_state(base, trainer.model, trainer.optimizer)
    return Forked(steps=steps, rounds=rounds, metrics=trainer.evaluate(), agreements=agreements, rejected=rejected)


def compare(spec: JobSpec, seeds: Sequence[int], fastest_steps: int) -> Mapping[str, tuple[float, ...]]:
    """The job's metric for each seed: of one worker, and of forks at the same total steps."""
    name = load_task_class(spec.workload).metric
    alone = tuple(run_local(spec, seed=seed).metrics[name] for seed in seeds)
    with tempfile.TemporaryDirectory() as folder:
        forked = tuple(
            run_forked(spec, Path(folder), seed=seed, fastest_steps=fastest_steps).metrics[name] for seed in seeds
        )
    return {"one worker": alone, "forks": forked}


def main() -> None:
    """Prints one line a workload and budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[3000, 6000])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fastest-steps", type=int, default=600)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for workload in BUILTIN:
        batch = 32 if workload.endswith("Digits") else 64
        for steps in arguments.steps:
            spec = JobSpec(workload=workload, total_steps=steps, batch_size=batch)
            found = compare(spec, range(arguments.seeds), arguments.fastest_steps)
            cells = [f"{k} {statistics.mean(v):.4f} ± {statistics.pstdev(v):.4f}" for k, v in found.items()]
            print(f"{workload.rpartition(':')[2]:8} {steps:6} steps  " + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
