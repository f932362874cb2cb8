import pytest
import yaml

from builders_local import a_calibration
from hadare.local.calibrate import digest
from hadare.local.targets import JOBS, as_plain, demo_file, job_file, load_targets


@pytest.mark.parametrize("name", JOBS)
def test_the_targets_were_measured_for_the_job_files_as_they_are(name: str) -> None:
    calibration = load_targets()[name]
    assert calibration.spec == digest(job_file(name)), "run: python -m hadare.local.calibrate"
    assert calibration.steps == job_file(name)["total_steps"]
    assert len(calibration.values) >= 5


@pytest.mark.parametrize("name", JOBS)
def test_the_numbers_for_readers_agree_with_the_measured_values(name: str) -> None:
    written = yaml.safe_load(demo_file("targets.yaml").read_text())["jobs"][name]
    assert written == as_plain(load_targets()[name])


def test_a_target_is_two_deviations_on_the_worse_side_of_the_mean() -> None:
    assert a_calibration().target == pytest.approx(0.94)
    assert a_calibration(better="lower").target == pytest.approx(0.98)


def test_a_target_is_reached_at_its_value_and_on_its_better_side() -> None:
    higher, lower = a_calibration(), a_calibration(better="lower")
    assert higher.reached_by(0.95)
    assert not higher.reached_by(0.93)
    assert lower.reached_by(0.97)
    assert not lower.reached_by(0.99)
    assert not higher.reached_by(None)


def test_the_digest_of_a_job_file_ignores_its_layout_and_sees_its_values() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
