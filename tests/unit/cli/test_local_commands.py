"""The commands that need no cluster: run and doctor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from builders_cli import JOB, Cli
from hadare.cli import doctor
from hadare.cli.doctor import Check
from hadare.training import local
from hadare.training.local import LocalResult
from hadare.training.trainer import NotFinite


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path)


def test_a_run_trains_the_file_and_prints_what_it_reached(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def trained(spec: Any, **options: Any) -> LocalResult:
        asked.append((spec.total_steps, options["steps"], options["seed"], options["device"]))
        return LocalResult(steps=5, metrics={"accuracy": 0.5}, seconds=1.0, loss=0.7, steps_per_s=5.0)

    monkeypatch.setattr(local, "run_local", trained)
    document = cli.json("run", cli.file(), "--steps", "5", "--set", "total_steps=9", "--seed", "3")
    assert asked == [(9, 5, 3, "cpu")]
    assert (document["steps"], document["metrics"], document["workload"]) == (5, {"accuracy": 0.5}, "pkg.mod:TinyNet")
    assert "accuracy 0.5000; loss 0.7000; 5 steps" in cli("run", cli.file()).stdout


def test_a_workload_that_is_not_there_is_the_jobs_failure(cli: Cli) -> None:
    result = cli("run", cli.file(JOB.replace("pkg.mod:TinyNet", "no.such.place:Net")))
    assert result.exit_code == 1
    assert "no.such" in result.stderr


def test_a_run_that_diverges_is_the_jobs_failure(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverged(*_: Any, **__: Any) -> LocalResult:
        raise NotFinite("the loss is nan at step 3")

    monkeypatch.setattr(local, "run_local", diverged)
    result = cli("run", cli.file())
    assert result.exit_code == 1
    assert "the loss is nan at step 3" in result.stderr


def test_what_a_jobs_own_code_raises_is_told_as_one_document(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: Any, **__: Any) -> LocalResult:
        raise TypeError("unexpected keyword 'hiden'")

    monkeypatch.setattr(local, "run_local", faulty)
    error = cli.json("run", cli.file(), code=1)["error"]
    assert error["message"].startswith("TypeError: unexpected keyword 'hiden'\nTraceback")
    assert error["message"].endswith("TypeError: unexpected keyword 'hiden'")


def test_without_torch_a_run_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hadare.training.local", None)
    result = cli("run", cli.file())
    assert result.exit_code == 7
    assert "pip install 'hadare[node-agent,workloads]'" in result.stderr


def test_a_faulty_file_is_not_run(cli: Cli) -> None:
    assert cli("run", cli.file("workload: x\n")).exit_code == 2


def a_check(*, ok: bool, required: bool) -> Any:
    return lambda: Check(name="part", ok=ok, required=required, found="this", remedy="do that")


@pytest.mark.parametrize(("ok", "required", "code"), [(True, True, 0), (False, False, 0), (False, True, 1)])
def test_the_doctor_is_content_if_all_that_is_required_is_there(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, ok: bool, required: bool, code: int
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (a_check(ok=ok, required=required),))
    document = cli.json("doctor", code=code)
    assert document["ok"] is (code == 0)
    assert document["checks"][0]["found"] == "this"


def test_the_doctor_says_what_to_do_about_what_is_missing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (a_check(ok=False, required=True),))
    assert "do that" in cli("doctor").stdout


def test_every_part_that_the_doctor_looks_for_is_found_or_not_without_an_error() -> None:
    assert [check().name for check in doctor.CHECKS] == [
        *("Python", "torch", "CUDA (NVML)", "nats-server", "Docker", "data sets", "disk space here")
    ]
