"""The built-in workloads on their real data: they learn, and a seed decides everything."""

from __future__ import annotations

import lzma
import pickle
from itertools import islice
from pathlib import Path

import pytest
import torch

from hadare.model.jobs import JobSpec
from hadare.training.local import run_local
from hadare.training.task import Task, WorkloadError, build_task
from hadare.training.workloads import BUILTIN
from hadare.training.workloads.charlm import CharLM
from hadare.training.workloads.digits import Digits
from hadare.training.workloads.recommendation import Recommendation, _read
from hadare.training.workloads.translation import Translation, read_catalogues
from hadare.training.workloads.weather import Weather

TASKS: list[type[Task]] = [Digits, Weather, CharLM, Translation, Recommendation]


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
    batch = next(kind({}, 13, 0).batches(0))
    assert {len(part) for part in batch} == {13}


def test_digits_are_learnt() -> None:
    spec = JobSpec(workload=BUILTIN[0], total_steps=400, batch_size=32)
    assert run_local(spec).metrics["accuracy"] > 0.93


def test_weather_is_predicted_better_than_by_persistence() -> None:
    spec = JobSpec(workload=BUILTIN[1], total_steps=600, batch_size=64)
    assert run_local(spec).metrics["mse"] < 0.14


def test_text_is_predicted_better_than_by_the_frequency_of_letters() -> None:
    spec = JobSpec(workload=BUILTIN[2], total_steps=300, batch_size=64)
    assert run_local(spec).metrics["cross_entropy"] < 2.6


def test_translations_are_learnt() -> None:
    spec = JobSpec(workload=BUILTIN[3], total_steps=150, batch_size=16, config={"languages": ["de", "nl"]})
    metrics = run_local(spec).metrics
    assert metrics["cross_entropy"] < 2.9
    assert metrics["accuracy"] > 0.2


def test_ratings_are_guessed_better_than_by_the_mean_of_the_film() -> None:
    spec = JobSpec(workload=BUILTIN[4], total_steps=1000, batch_size=64)
    assert run_local(spec).metrics["mse"] < 0.87


def test_no_held_out_message_is_trained_on_in_another_language() -> None:
    task = Translation({"languages": ["de", "nl"]}, 8, 0)
    train, test, _ = task._corpus
    english = [{tuple(row[1:].tolist()) for row in part.source} for part in (train, test)]
    assert english[1]
    assert not english[0] & english[1]


def test_a_message_of_a_catalogue_has_no_context_and_no_plural() -> None:
    messages = read_catalogues("de")
    assert messages["Yes"] == "Ja"
    assert len(messages) > 700
    assert not any(mark in text for pair in messages.items() for text in pair for mark in ("\x00", "\x04"))


def test_the_scores_of_a_character_do_not_depend_on_later_ones() -> None:
    task = Translation({}, 2, 0)
    model = task.build_model().eval()
    batch = next(task.batches(0))
    changed = batch.target.clone()
    changed[:, 5:] = 3
    with torch.no_grad():
        first, second = model(batch.source, batch.target), model(batch.source, changed)
    assert torch.allclose(first[:, :5], second[:, :5], atol=1e-6)
    assert not torch.allclose(first[:, 5:], second[:, 5:], atol=1e-3)


def test_a_language_that_nobody_translated_is_missing_data() -> None:
    with pytest.raises(WorkloadError, match=r"hadare\[workloads\]") as raised:
        Translation({"languages": ["xx"]}, 8, 0).build_model()
    assert (raised.value.failure.kind, raised.value.failure.node_specific) == ("missing_data", True)


def test_a_table_that_is_not_the_trusted_one_is_never_unpickled(tmp_path: Path) -> None:
    other = tmp_path / "movielens.pkl.compress"
    other.write_bytes(lzma.compress(pickle.dumps({"userId": [1]})))
    with pytest.raises(WorkloadError, match="is not the one"):
        _read(other)


def test_ratings_without_their_package_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(WorkloadError, match=r"pip install 'hadare\[workloads-large\]'"):
        Recommendation({}, 8, 0).build_model()


def test_no_rating_is_both_trained_on_and_held_out() -> None:
    train, test = Recommendation({}, 8, 0)._split
    assert (len(train.rating), len(test.rating)) == (90003, 10001)


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
