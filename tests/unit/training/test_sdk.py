from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import scripts_for_training as scripts
from hadare.model.jobs import JobSpec
from hadare.training.granted import Grant, Standing
from hadare.training.local import run_local
from hadare.training.scripts import ScriptWorker
from hadare.training.sdk import Run, Script, ScriptFault
from hadare.training.worker import build_worker


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    scripts.CALLS.clear()


def a_worker(script: Script = scripts.fits, **config: Any) -> ScriptWorker:
    return ScriptWorker(script, config, 4, 0)


def a_grant(quota: int = 5, **more: Any) -> Grant:
    return Grant(quota=quota, data_seed=more.pop("data_seed", 3), **more)


def tensors_of(worker: ScriptWorker) -> list[float]:
    return [v for t in worker.model.state_dict().values() for v in t.flatten().tolist()]


def test_a_job_names_a_script_as_it_names_a_task() -> None:
    assert isinstance(build_worker("scripts_for_training:fits", {}, 4, 0), ScriptWorker)


def test_a_script_does_the_steps_of_its_lease() -> None:
    done = a_worker().train(a_grant(quota=7))
    assert (done.steps, done.samples, done.updates, done.reason) == (7, 28, 7, "quota")
    assert math.isfinite(done.loss)


def test_a_script_learns_without_a_cluster() -> None:
    spec = JobSpec(workload="scripts_for_training:fits", total_steps=600, batch_size=16)
    assert run_local(spec).metrics["mse"] < 0.5


def test_a_script_is_called_once_for_each_lease() -> None:
    worker = a_worker()
    worker.train(a_grant())
    worker.train(a_grant(data_seed=4))
    assert len(scripts.CALLS) == 2


def test_the_next_lease_goes_on_where_the_last_ended() -> None:
    worker, once = a_worker(), a_worker()
    worker.train(a_grant())
    before = tensors_of(worker)
    worker.train(a_grant(quota=1, data_seed=4))
    once.train(a_grant(quota=1, data_seed=4))
    distance = max(abs(a - b) for a, b in zip(before, tensors_of(worker), strict=True))
    assert 0 < distance < 0.02
    assert tensors_of(worker) != tensors_of(once)


def test_a_lease_without_a_step_does_not_run_what_follows_the_loop() -> None:
    done = a_worker().train(a_grant(deadline=0.0))
    assert (done.steps, done.reason) == (0, "clock")


def test_the_initial_model_comes_from_the_jobs_seed(tmp_path: Path) -> None:
    first, second, other = a_worker(), a_worker(), ScriptWorker(scripts.fits, {}, 4, 1)
    for name, worker in {"first": first, "second": second, "other": other}.items():
        worker.save(tmp_path / name)
    files = [(tmp_path / name).read_bytes() for name in ("first", "second", "other")]
    assert files[0] == files[1] != files[2]


def test_a_version_is_evaluated_as_it_was_saved(tmp_path: Path) -> None:
    worker, other = a_worker(), a_worker()
    worker.train(a_grant(quota=50))
    worker.save(tmp_path / "v")
    other.load(tmp_path / "v")
    assert other.evaluate() == worker.evaluate()
    assert other.evaluate() != a_worker().evaluate()


def test_evaluating_the_base_first_does_not_change_the_training(tmp_path: Path) -> None:
    start, plain, looked = a_worker(), a_worker(), a_worker()
    start.train(a_grant(quota=20))
    start.save(tmp_path / "v")
    for worker in (plain, looked):
        worker.load(tmp_path / "v")
    looked.evaluate()
    for worker in (plain, looked):
        worker.train(a_grant(data_seed=9))
    assert tensors_of(plain) == tensors_of(looked)


def test_the_schedule_follows_the_lease() -> None:
    worker = a_worker()
    worker.train(a_grant(quota=4, schedule_from=0.2, schedule_to=0.6))
    assert worker._held is not None
    assert worker._held.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 0.75)


def test_a_script_without_metrics_has_none() -> None:
    assert a_worker(scripts.loads).evaluate() == {}


def test_a_loader_that_shuffles_has_an_order_that_the_data_seed_decides() -> None:
    orders = []
    for seed in (1, 1, 2):
        scripts.CALLS.clear()
        a_worker(scripts.loads).train(a_grant(quota=4, data_seed=seed))
        orders.append(tuple(scripts.CALLS))
    assert orders[0] == orders[1] != orders[2]


def test_every_pass_over_a_loader_has_its_own_order() -> None:
    a_worker(scripts.loads).train(a_grant(quota=6))
    passes = {tuple(scripts.CALLS[a : a + 2]) for a in (0, 2, 4)}
    assert len(passes) == 3


def test_reports_tell_the_steps_and_a_loss() -> None:
    standings: list[Standing] = []
    a_worker().train(a_grant(quota=3, report_interval_s=0.0), report=standings.append)
    assert [s.steps for s in standings] == [1, 2, 3]
    assert all(math.isfinite(s.loss) for s in standings)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (scripts.gives_up, "left its loop after 0 steps"),
        (scripts.forgets_to_begin, "before begin"),
        (scripts.forgets_to_step, "never called steps"),
        (lambda run: None, "never called begin"),
    ],
)
def test_a_script_that_breaks_the_agreement_is_told_how(script: Script, why: str) -> None:
    with pytest.raises(ScriptFault, match=why):
        a_worker(script).train(a_grant())


def test_a_script_sees_the_jobs_own_settings() -> None:
    seen: list[Run] = []
    with pytest.raises(ScriptFault):
        a_worker(seen.append, hidden=3).train(a_grant(schedule_from=0.25, schedule_to=0.5))
    assert (seen[0].config, seen[0].batch_size, seen[0].device) == ({"hidden": 3}, 4, torch.device("cpu"))
    assert (seen[0].data_seed, seen[0].position) == (3, 0.25)
