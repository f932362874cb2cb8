"""The first guess against what Gavel published (75 cells: six models, three types, several batch sizes)."""

import csv
from importlib import resources

import pytest

from hadare.bench.throughput import Cell, cells_of, leave_one_out, measure
from hadare.model.jobs import JobSpec
from hadare.scheduling.throughput import COLD_CONSTANT, cold_rate, observe


def published() -> list[Cell]:
    table = resources.files("hadare.tables").joinpath("traces", "throughput_gavel.csv")
    return cells_of(list(csv.DictReader(table.read_text(encoding="utf-8").splitlines())))


def test_a_model_that_was_left_out_is_guessed_within_a_quarter_in_the_median() -> None:
    found = leave_one_out(published())
    assert found.cells == 75
    assert found.median_error <= 0.25
    assert found.spearman >= 0.92


def test_the_constant_in_use_is_the_fitted_one() -> None:
    assert pytest.approx(leave_one_out(published()).constant, rel=0.01) == COLD_CONSTANT


def test_a_formula_that_knows_nothing_of_the_model_is_far_worse() -> None:
    blind = [Cell(model=c.model, batch_size=1, device_type="V100", steps_per_s=c.steps_per_s) for c in published()]
    assert leave_one_out(blind).median_error > 0.35


@pytest.mark.parametrize("noise", [(1.09, 0.93), (0.92, 0.95), (1.08, 1.05)])
def test_after_two_rounds_of_measurement_every_estimate_is_within_a_tenth(noise: tuple[float, float]) -> None:
    for cell in published():
        known = observe(observe(None, cell.steps_per_s * noise[0]), cell.steps_per_s * noise[1])
        assert abs(known.steps_per_s / cell.steps_per_s - 1) <= 0.1


def test_the_guess_in_use_is_the_one_that_is_measured_here() -> None:
    spec = JobSpec(workload="w.m:C", total_steps=1, batch_size=128, config={"gflop_per_sample": 24.6})
    cell = next(c for c in published() if (c.model, c.batch_size, c.device_type) == ("ResNet-50", 128, "P100"))
    assert abs(cold_rate(spec, "P100") / cell.steps_per_s - 1) < 0.5


def test_estimates_are_within_a_tenth_after_two_rounds_and_better_with_each() -> None:
    found = measure(noise=0.05)
    assert (found.guess.median_error <= 0.25, found.guess.spearman >= 0.92) == (True, True)
    assert found.rounds[1].p90_error <= 0.1
    assert found.rounds[0].median_error < found.guess.median_error


def test_noise_is_what_is_left_after_the_first_round() -> None:
    assert [r.median_error for r in measure(noise=0.0).rounds] == [0.0, 0.0, 0.0]
    assert measure(noise=0.3).rounds[0].median_error > measure(noise=0.1).rounds[0].median_error
