from __future__ import annotations

from pathlib import Path

from hadare.model.jobs import JobSpec
from hadare.training.local import run_local
from hadare.training.tensorfile import Reader
from hadare.training.weights import read_meta
from hadare.training.workloads import BUILTIN

SPEC = JobSpec(workload=BUILTIN[0], total_steps=50, batch_size=16)


def test_a_job_without_a_cluster_uses_up_its_budget() -> None:
    result = run_local(SPEC)
    assert (result.steps, set(result.metrics)) == (50, {"accuracy", "loss"})


def test_the_same_seed_reaches_the_same_metric() -> None:
    assert run_local(SPEC, seed=3).metrics == run_local(SPEC, seed=3).metrics


def test_another_seed_reaches_another_metric() -> None:
    assert run_local(SPEC, seed=3).metrics != run_local(SPEC, seed=4).metrics


def test_fewer_steps_can_be_asked_for() -> None:
    assert run_local(SPEC, steps=5).steps == 5


def test_the_weights_can_be_kept(tmp_path: Path) -> None:
    run_local(SPEC, out=tmp_path / "v")
    assert read_meta(Reader(tmp_path / "v")).user == {"steps": 50}
