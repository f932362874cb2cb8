import pytest

from hadare.scheduling.spread import spread_factor


def test_a_single_device_spans_nothing() -> None:
    assert spread_factor(1, "LM") == 1.0


def test_a_language_model_loses_more_than_half_and_a_large_image_model_little() -> None:
    assert spread_factor(4, "LM") == pytest.approx(0.507)
    assert spread_factor(4, "ResNet-50") == pytest.approx(0.94)


def test_a_mean_above_one_is_no_gain() -> None:
    assert spread_factor(8, "ResNet-50") == 1.0


def test_an_unknown_model_is_taken_for_the_mean_of_all() -> None:
    assert spread_factor(2, "mine") == spread_factor(2) == pytest.approx(0.677)


def test_a_size_between_the_measured_ones_counts_as_the_smaller() -> None:
    assert spread_factor(6) == spread_factor(4)
    assert spread_factor(64) == spread_factor(8)
