"""``python -m hadare.local.calibrate``: measures anew what one worker reaches on the demonstration's jobs.

Each job is trained alone, by the loop of ``hadare run``, once for each seed. Takes about a minute a job.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from hadare.local.targets import DEVIATIONS, JOBS, Calibration, as_plain, job_file
from hadare.model.jobs import JobSpec
from hadare.training.local import run_local
from hadare.training.task import load_task_class
from hadare.wire.codec import convert

_HEADER = f"""\
# What one worker reaches at the end of each job of the demonstration, by seed, and the targets that follow:
# mean of the seeds, less (for losses: plus) {DEVIATIONS:g} of their standard deviations.
# Written by `python -m hadare.local.calibrate`: run it again after changing a job file. A demonstration job counts
# as reached if its forks, with the job file's own seed, end at the target or on the better side of it.
"""


def digest(plain: Mapping[str, Any]) -> str:
    """Names the content of a job file, whatever its layout."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def measure(name: str, seeds: Sequence[int]) -> Calibration:
    """Trains one job once for each seed, in this process."""
    plain = job_file(name)
    spec = convert(plain, JobSpec)
    task = load_task_class(spec.workload)
    values = {}
    for seed in seeds:
        result = run_local(spec, seed=seed)
        values[seed] = round(result.metrics[task.metric], 6)
        print(f"{name} seed {seed}: {task.metric} {values[seed]:.4f} in {result.seconds:.1f} s", file=sys.stderr)
    return Calibration(
        metric=task.metric, better=task.better, steps=spec.total_steps, values=values, spec=digest(plain)
    )


def write(path: Path, calibrations: Mapping[str, Calibration]) -> None:
    """The file that ``targets.load_targets`` reads."""
    jobs = {name: as_plain(calibration) for name, calibration in calibrations.items()}
    path.write_text(_HEADER + yaml.safe_dump({"jobs": jobs}, sort_keys=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "demo" / "targets.yaml")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    write(arguments.out, {name: measure(name, range(arguments.seeds)) for name in JOBS})


if __name__ == "__main__":
    main()
