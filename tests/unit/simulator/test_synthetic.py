"""Traces made to order."""

from __future__ import annotations

from statistics import fmean

import pytest

from hadare.model.errors import Rejected
from hadare.simulator.synthetic import CLASSES, Synthetic, of_size, parse_synthetic


def test_the_same_seed_makes_the_same_trace_and_another_one_another() -> None:
    assert Synthetic(jobs=50, seed=1).rows() == Synthetic(jobs=50, seed=1).rows()
    assert Synthetic(jobs=50, seed=1).rows() != Synthetic(jobs=50, seed=2).rows()


def test_static_jobs_all_arrive_at_once() -> None:
    assert {row.arrival_s for row in Synthetic(jobs=20).rows()} == {0.0}


def test_poisson_arrivals_have_the_interval_that_was_asked_for() -> None:
    arrivals = [row.arrival_s for row in Synthetic(jobs=2000, interval_s=600).rows()]
    assert arrivals[-1] / len(arrivals) == pytest.approx(600, rel=0.1)


def test_all_five_models_come_and_sizes_stay_within_their_class() -> None:
    rows = Synthetic(jobs=400).rows()
    assert {row.model for row in rows} == {"ResNet-18", "CycleGAN", "LM", "Transformer", "ResNet-50"}
    assert max(row.gpu_hours for row in rows) <= 100
    assert fmean(row.gpu_hours for row in rows if row.model == "ResNet-18") == pytest.approx(0.525, abs=0.1)


def test_gangs_are_no_larger_than_asked() -> None:
    assert max(row.gang for row in Synthetic(jobs=200, most_gang=4).rows()) == 4


def test_the_shares_of_the_classes_are_a_whole() -> None:
    assert sum(size.share for size in CLASSES) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("hours", "model"), [(0.1, "ResNet-18"), (1.0, "ResNet-18"), (1.1, "CycleGAN"), (500, "ResNet-50")]
)
def test_a_size_belongs_to_the_smallest_class_that_holds_it(hours: float, model: str) -> None:
    assert of_size(hours)[0] == model


def test_options_of_a_synthetic_trace() -> None:
    assert parse_synthetic("synthetic:jobs=7,interval=60,gang=2", 3) == Synthetic(7, 60.0, 3, 2)
    assert parse_synthetic("trace.csv", 0) is None


@pytest.mark.parametrize("text", ["synthetic:job=7", "synthetic:jobs=x", "synthetic:jobs=0"])
def test_wrong_options_are_refused(text: str) -> None:
    with pytest.raises(Rejected):
        parse_synthetic(text, 0)
