"""A run that was interrupted at a round's boundary equals one that was not: step, schedule, data, loss and weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hadare.forking.schedule import data_seed, schedule_span
from hadare.training.granted import Grant, Trained
from hadare.training.task import build_task
from hadare.training.tensorfile import Reader
from hadare.training.worker import Worker, build_worker
from hadare.training.workloads import BUILTIN

ROUNDS, QUOTA = 3, 11
DIGITS = "hadare.training.workloads.digits:Digits"
TEXT = "hadare.training.workloads.charlm:CharLM"


_HERE = "hadare.training.workloads."
# Every built-in workload, and what else there is to go on with: gradients of several steps, mixed precision, BatchNorm.
JOBS: dict[str, tuple[str, dict[str, object]]] = {
    "digits": (DIGITS, {"hidden": 8, "accumulate": 4}),
    "digits, BatchNorm": (DIGITS, {"hidden": 8, "batch_norm": True}),
    "text": (TEXT, {"hidden": 8}),
    "text, mixed precision": (TEXT, {"hidden": 8, "precision": "amp"}),
    "weather": (f"{_HERE}weather:Weather", {"hidden": 8}),
    "translation": (f"{_HERE}translation:Translation", {"width": 8, "heads": 2, "dropout": 0.2}),
    "recommendation": (f"{_HERE}recommendation:Recommendation", {"factors": 4}),
    "script": ("scripts_for_training:fits", {}),
}


def a_round(worker: Worker, number: int, folder: Path) -> Trained:
    """Loads the last version, trains a lease of round ``number`` (from 1), and saves the next."""
    worker.load(folder / f"v{number - 1}")
    done = (number - 1) * QUOTA
    span = schedule_span(steps=done, path=done, planned=[QUOTA], total_steps=ROUNDS * QUOTA)
    grant = Grant(quota=QUOTA, data_seed=data_seed(0, number, 0), schedule_from=span[0], schedule_to=span[1])
    trained = worker.train(grant)
    worker.save(folder / f"v{number}")
    return trained


def test_every_built_in_workload_is_resumed_here() -> None:
    assert {name for name, _ in JOBS.values()} >= set(BUILTIN)


@pytest.mark.parametrize("job", JOBS)
def test_a_resumed_run_ends_as_an_uninterrupted_one(job: str, tmp_path: Path) -> None:
    workload, config = JOBS[job]

    def build() -> Worker:
        return build_worker(workload, config, 4, 0)

    results = []
    for kind, starts in (("whole", [1]), ("resumed", [1, 3])):
        folder = tmp_path / kind
        folder.mkdir()
        worker = build()
        worker.save(folder / "v0")
        losses = []
        for number in range(1, ROUNDS + 1):
            if number in starts[1:]:
                torch.manual_seed(999)  # another process: nothing of the first is left
                worker = build()
            losses.append(a_round(worker, number, folder).loss)
        last = Reader(folder / f"v{ROUNDS}")
        tensors = {name: last.tensor(name).clone() for name in last.specs}
        results.append((losses, tensors, worker.evaluate()))
    (losses, tensors, metrics), (again, same, also) = results
    assert losses == again
    assert metrics == also
    assert tensors.keys() == same.keys()
    assert all(torch.equal(tensors[name], same[name]) for name in tensors)


def test_a_lost_schedule_would_be_seen(tmp_path: Path) -> None:
    ends = []
    for start in (0.0, 0.7):
        worker = build_worker("scripts_for_training:fits", {}, 4, 0)
        worker.train(Grant(quota=QUOTA, data_seed=1, schedule_from=start, schedule_to=1.0))
        worker.save(tmp_path / "v")
        ends.append((tmp_path / "v").read_bytes())
    assert ends[0] != ends[1]


def test_the_data_goes_on_at_each_round_and_never_starts_again() -> None:
    task, _ = build_task(DIGITS, {}, 4, 0)
    firsts = [next(task.batches(data_seed(0, number, 0)))[0] for number in range(1, 4)]
    assert not torch.equal(firsts[0], firsts[1])
    assert not torch.equal(firsts[1], firsts[2])
