from math import exp, log
from typing import Any

import pytest

from hadare.model.jobs import JobSpec, Measured
from hadare.scheduling.devices import pmi
from hadare.scheduling.throughput import cold_rate, confidence, estimate, observe, workload_key


def a_spec(**changes: Any) -> JobSpec:
    return JobSpec(**{"workload": "w.m:C", "total_steps": 1000, "batch_size": 16, **changes})


def measured(steps_per_s: float, count: int = 4, surprises: int = 0) -> Measured:
    return Measured(steps_per_s=steps_per_s, count=count, surprises=surprises)


def test_the_cold_formula_is_the_documented_one() -> None:
    spec = a_spec(config={"gflop_per_sample": 24.6})
    assert cold_rate(spec, "V100") == pytest.approx(7.0 * (15.7 * 900) ** 0.5 / (16 * 24.6) ** 0.75)


def test_the_cold_formula_is_near_the_published_rate_of_resnet_50() -> None:
    # Gavel publishes 9.5 steps/s for ResNet-50 at batch 16 on a V100
    spec = a_spec(config={"gflop_per_sample": 24.6})
    assert 9.5 / 1.5 < cold_rate(spec, "V100") < 9.5 * 1.5


@pytest.mark.parametrize("nonsense", [0, -1, "many", float("nan"), None])
def test_a_complexity_that_is_not_a_positive_number_counts_as_unknown(nonsense: object) -> None:
    assert cold_rate(a_spec(config={"gflop_per_sample": nonsense}), "T4") == cold_rate(a_spec(), "T4")


def test_the_first_observation_replaces_the_prior() -> None:
    assert observe(None, 12.5) == Measured(steps_per_s=12.5, count=1)


def test_later_observations_are_averaged_in_log_space_with_gain_one_over_n() -> None:
    second = observe(Measured(steps_per_s=10.0, count=1), 12.0)
    assert second.count == 2
    assert second.steps_per_s == pytest.approx(exp((log(10) + log(12)) / 2))


def test_the_gain_never_falls_below_a_fifth() -> None:
    assert observe(measured(10.0, count=1000), 12.0).steps_per_s == pytest.approx(10 * 1.2**0.2)


def test_one_surprise_is_held_back() -> None:
    assert observe(measured(10.0), 30.0) == measured(10.0, surprises=1)


def test_two_surprises_in_a_row_start_anew_at_the_new_rate() -> None:
    assert observe(observe(measured(10.0), 30.0), 31.0) == Measured(steps_per_s=31.0, count=1)


def test_a_normal_observation_forgets_a_surprise() -> None:
    assert observe(observe(measured(10.0), 30.0), 10.5).surprises == 0


@pytest.mark.parametrize("nothing", [0.0, -1.0, float("nan"), float("inf")])
def test_an_observation_that_measured_nothing_changes_nothing(nothing: float) -> None:
    assert observe(measured(10.0), nothing) == measured(10.0)
    assert observe(None, nothing).count == 0


def test_without_measurements_the_estimate_is_the_formula_with_no_confidence() -> None:
    found = estimate(a_spec(), {}, ["V100", "T4"])
    assert found["T4"].steps_per_s == cold_rate(a_spec(), "T4")
    assert found["T4"].confidence == 0.0


def test_a_measured_type_scales_the_unmeasured_ones_by_their_index() -> None:
    found = estimate(a_spec(), {"V100": measured(100.0)}, ["V100", "T4"])
    assert found["V100"].steps_per_s == 100.0
    assert found["T4"].steps_per_s == pytest.approx(100.0 * pmi("T4") / pmi("V100"))
    assert 0 < found["T4"].confidence < found["V100"].confidence


def test_several_measured_types_weigh_by_their_observations() -> None:
    mostly_v100 = estimate(a_spec(), {"V100": measured(100.0, 99), "K80": measured(100.0, 1)}, ["T4"])
    mostly_k80 = estimate(a_spec(), {"V100": measured(100.0, 1), "K80": measured(100.0, 99)}, ["T4"])
    assert mostly_v100["T4"].steps_per_s < mostly_k80["T4"].steps_per_s


def test_another_jobs_measurement_serves_until_the_job_has_its_own() -> None:
    shared = {"V100": measured(50.0), "T4": measured(20.0)}
    found = estimate(a_spec(), {"V100": measured(60.0)}, ["V100", "T4"], shared)
    assert (found["V100"].steps_per_s, found["T4"].steps_per_s) == (60.0, 20.0)


def test_a_measurement_of_nothing_does_not_hide_another_jobs() -> None:
    found = estimate(a_spec(), {"T4": Measured(steps_per_s=0.0, count=0)}, ["T4"], {"T4": measured(20.0)})
    assert found["T4"].steps_per_s == 20.0


def test_confidence_grows_with_observations_and_falls_with_a_surprise() -> None:
    assert confidence(measured(1, 1)) < confidence(measured(1, 9)) < 1
    assert confidence(measured(1, 9, surprises=1)) < confidence(measured(1, 9))


def test_jobs_of_one_key_have_workload_batch_size_and_configuration_in_common() -> None:
    key = workload_key(a_spec(config={"a": 1, "b": 2}))
    assert key == workload_key(a_spec(config={"b": 2, "a": 1}, seed=7, total_steps=9))
    assert key != workload_key(a_spec(config={"a": 1, "b": 2}, batch_size=32))
    assert key != workload_key(a_spec(config={"a": 1}))
