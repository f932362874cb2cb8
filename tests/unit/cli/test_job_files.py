"""Job files: what is read, and where each fault is said to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hadare.cli.job_files import JobFile, read_job_file
from hadare.model.errors import Rejected


def a_file(folder: Path, text: str, *settings: str) -> JobFile:
    path = folder / "job.yaml"
    path.write_text(text)
    return read_job_file(path, settings)


def refused(folder: Path, text: str, *settings: str) -> Rejected:
    with pytest.raises(Rejected) as refusal:
        a_file(folder, text, *settings)
    assert refusal.value.code == 400
    return refusal.value


def test_a_file_is_read_with_the_line_of_every_value(tmp_path: Path) -> None:
    job = a_file(tmp_path, "workload: a:B\nconfig:\n  lr: 1\n  sizes:\n    - 1\n    - 2\n")
    assert job.spec == {"workload": "a:B", "config": {"lr": 1, "sizes": [1, 2]}}
    assert job.lines["config.lr"] == 3
    assert job.lines["config.sizes[1]"] == 6


@pytest.mark.parametrize(("text", "value"), [("1e-3", 0.001), ("-2E+4", -20000.0), (".5e1", 5.0), ("1.5e-3", 0.0015)])
def test_a_number_in_scientific_notation_is_a_number(tmp_path: Path, text: str, value: float) -> None:
    assert a_file(tmp_path, f"config: {{lr: {text}}}").spec["config"]["lr"] == value


@pytest.mark.parametrize("text", ["e5", "1e", "5e5e5", "'1e-3'"])
def test_what_only_looks_like_a_number_stays_text(tmp_path: Path, text: str) -> None:
    assert isinstance(a_file(tmp_path, f"config: {{x: {text}}}").spec["config"]["x"], str)


def test_a_key_that_stands_twice_is_a_fault_with_its_line(tmp_path: Path) -> None:
    refusal = refused(tmp_path, "seed: 1\nworkload: a:B\nseed: 2\n")
    assert "'seed' stands here twice" in refusal.message
    assert refusal.details["faults"][0]["line"] in (1, 3)


def test_broken_yaml_is_a_fault_with_its_line(tmp_path: Path) -> None:
    refusal = refused(tmp_path, "workload: a:B\nconfig: [1, 2\nseed: 1\n")
    assert "not valid YAML" in refusal.message
    assert refusal.details["faults"][0]["line"] == 3


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just text", "3"])
def test_what_is_not_a_map_is_refused(tmp_path: Path, text: str) -> None:
    assert "a job file is a map" in refused(tmp_path, text).message


def test_python_objects_are_never_made(tmp_path: Path) -> None:
    refused(tmp_path, "config: !!python/object/apply:os.getcwd []\n")


def test_a_file_that_grows_by_aliases_is_refused(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert "too many aliases" in refused(tmp_path, "\n".join(levels)).message


def test_a_file_that_holds_itself_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "config: &a\n  inner: *a\n")


def test_a_setting_is_put_over_the_file_and_makes_the_maps_it_needs(tmp_path: Path) -> None:
    job = a_file(tmp_path, "seed: 1\n", "seed=2", "constraints.types=[V100, T4]", "name=mine")
    assert job.spec == {"seed": 2, "constraints": {"types": ["V100", "T4"]}, "name": "mine"}


@pytest.mark.parametrize("setting", ["seed", "=1", "a..b=1", "seed.x=1", "config.x=[1"])
def test_a_setting_that_is_wrong_is_named(tmp_path: Path, setting: str) -> None:
    assert f"--set {setting}" in refused(tmp_path, "seed: 1\n", setting).message


def test_a_fault_from_the_gateway_gets_the_line_of_its_path(tmp_path: Path) -> None:
    job = a_file(tmp_path, "workload: a:B\nseed: x\n")
    faults: dict[str, Any] = {"faults": [{"path": "spec.seed", "message": "wrong"}]}
    assert job.located(Rejected(400, "no", faults)).details["faults"] == [
        {"path": "seed", "message": "wrong", "line": 2}
    ]


def test_a_fault_of_a_setting_has_no_line_in_the_file(tmp_path: Path) -> None:
    job = a_file(tmp_path, "workload: a:B\ntotal_steps: 1\nbatch_size: 1\nseed: 1\n", "seed=x")
    with pytest.raises(Rejected) as refusal:
        job.checked()
    assert "line" not in refusal.value.details["faults"][0]
