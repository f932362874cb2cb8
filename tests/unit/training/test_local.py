from __future__ import annotations

from pathlib import Path

import pytest

from hadare.model.jobs import ConsolidationSpec, GuardSpec, JobSpec
from hadare.training.local import run_local
from hadare.training.task import WorkloadError
from hadare.training.tensorfile import Reader
from hadare.training.weights import read_meta
from hadare.training.workloads import BUILTIN

SPEC_FIELDS = {"workload": BUILTIN[0], "total_steps": 50, "batch_size": 16}
SPEC = JobSpec(**SPEC_FIELDS)  # type: ignore[arg-type]


def test_a_job_without_a_cluster_uses_up_its_budget() -> None:
    result = run_local(SPEC)
    assert (result.steps, set(result.metrics)) == (50, {"accuracy", "loss"})


def test_the_same_seed_reaches_the_same_metric() -> None:
    assert run_local(SPEC, seed=3).metrics == run_local(SPEC, seed=3).metrics


def test_another_seed_reaches_another_metric() -> None:
    assert run_local(SPEC, seed=3).metrics != run_local(SPEC, seed=4).metrics


def test_fewer_steps_can_be_asked_for() -> None:
    assert run_local(SPEC, steps=5).steps == 5


def test_a_job_that_asks_for_a_gang_has_its_batch_on_one_device_too() -> None:
    plain = {"batch_norm": False}
    big = JobSpec(**{**SPEC_FIELDS, "total_steps": 12, "batch_size": 96, "config": plain})  # type: ignore[arg-type]
    gang = JobSpec(**{**SPEC_FIELDS, "total_steps": 48, "batch_size": 24, "gang": 4, "config": plain})  # type: ignore[arg-type]
    assert run_local(gang, seed=3).steps == 48
    assert run_local(gang, seed=3).metrics["loss"] == pytest.approx(run_local(big, seed=3).metrics["loss"], rel=1e-4)


def test_the_weights_can_be_kept(tmp_path: Path) -> None:
    run_local(SPEC, out=tmp_path / "v")
    assert read_meta(Reader(tmp_path / "v")).user == {"steps": 50}


def guarded(metric: str, better: str = "lower", **changes: object) -> JobSpec:
    guard = GuardSpec(metric=metric, better=better)  # type: ignore[arg-type]
    fields = {"total_steps": 50, "config": {"lr": 0.002}, **changes}
    return JobSpec(workload=BUILTIN[0], batch_size=16, consolidation=ConsolidationSpec(guard=guard), **fields)


def test_a_guard_chooses_in_every_round_and_all_steps_are_done() -> None:
    result = run_local(guarded("loss"), round_steps=20)
    assert (result.steps, sum(result.chosen.values())) == (50, 3)


def test_an_undertrained_model_is_better_off_with_a_guard() -> None:
    """At a small learning rate longer steps are better, and the guard finds out."""
    result = run_local(guarded("loss"), round_steps=10)
    assert set(result.chosen) - {"average"}
    assert result.metrics["loss"] < run_local(JobSpec(**{**SPEC_FIELDS, "config": {"lr": 0.002}})).metrics["loss"]


def test_a_guard_by_a_metric_that_is_not_reported_fails_with_those_that_are() -> None:
    with pytest.raises(WorkloadError, match="no metric 'bleu', the workload reports: accuracy, loss"):
        run_local(guarded("bleu"))
