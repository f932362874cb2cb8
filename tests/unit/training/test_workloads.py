"""The built-in workloads on their real data: they learn, and a seed decides everything."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from hadare.model.jobs import JobSpec
from hadare.training.local import run_local
from hadare.training.task import Task, build_task
from hadare.training.workloads import BUILTIN
from hadare.training.workloads.charlm import CharLM
from hadare.training.workloads.digits import Digits
from hadare.training.workloads.weather import Weather

TASKS: list[type[Task]] = [Digits, Weather, CharLM]


@pytest.mark.parametrize("workload", BUILTIN)
def test_every_built_in_workload_can_be_built(workload: str) -> None:
    task, _ = build_task(workload, {}, 8, 0)
    with torch.no_grad():
        assert task.metric in task.evaluate(task.build_model().eval())


@pytest.mark.parametrize("kind", TASKS)
def test_a_data_seed_decides_the_batches(kind: type[Task]) -> None:
    task = kind({}, 8, 0)

    def first(seed: int) -> list[torch.Tensor]:
        return [batch[0] for batch in islice(task.batches(seed), 3)]

    assert all(torch.equal(a, b) for a, b in zip(first(1), first(1), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first(1), first(2), strict=True))


@pytest.mark.parametrize("kind", TASKS)
def test_a_batch_has_as_many_samples_as_asked(kind: type[Task]) -> None:
    inputs, targets = next(kind({}, 13, 0).batches(0))
    assert (len(inputs), len(targets)) == (13, 13)


def test_digits_are_learnt() -> None:
    spec = JobSpec(workload=BUILTIN[0], total_steps=400, batch_size=32)
    assert run_local(spec).metrics["accuracy"] > 0.93


def test_weather_is_predicted_better_than_by_persistence() -> None:
    spec = JobSpec(workload=BUILTIN[1], total_steps=600, batch_size=64)
    assert run_local(spec).metrics["mse"] < 0.14


def test_text_is_predicted_better_than_by_the_frequency_of_letters() -> None:
    spec = JobSpec(workload=BUILTIN[2], total_steps=300, batch_size=64)
    assert run_local(spec).metrics["cross_entropy"] < 2.6


def test_weather_has_no_missing_values_and_is_standardised() -> None:
    now, later = next(Weather({}, 4000, 0).batches(0))
    assert torch.isfinite(now).all()
    assert now.shape[1] == 16
    assert later.mean().abs() < 0.1
    assert later.std() == pytest.approx(1.0, abs=0.1)


def test_no_training_image_is_a_test_image() -> None:
    task = Digits({}, 8, 0)
    seen = {bytes(row.numpy().tobytes()) for row in task._train[0]}
    assert not any(row.numpy().tobytes() in seen for row in task._test[0])


def test_no_training_window_of_text_overlaps_a_test_block() -> None:
    task = CharLM({}, 8, 0)
    train, test = task._places
    block = 2048
    assert set((test // block % 16).tolist()) == {15}
    assert 15 not in set((train // block % 16).tolist()) | set(((train + 6) // block % 16).tolist())
    assert len(test) == 4096


def test_batch_normalisation_is_an_option_of_digits() -> None:
    assert any("running_var" in name for name in Digits({"batch_norm": True}, 8, 0).build_model().state_dict())
