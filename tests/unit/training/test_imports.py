"""User code comes first, whatever was imported before it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hadare.training.imports import put_first


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = dict(sys.modules)
    yield
    sys.modules.clear()
    sys.modules.update(known)


def a_package(folder: Path, value: int) -> str:
    package = folder / "hadare_test_user_code"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "task.py").write_text(f"VALUE = {value}\n")
    return str(folder)


def test_code_that_was_sent_wins_over_what_was_imported_already(tmp_path: Path) -> None:
    sys.path.insert(0, a_package(tmp_path / "installed", 1))
    assert importlib.import_module("hadare_test_user_code.task").VALUE == 1
    put_first([a_package(tmp_path / "sent", 2)])
    assert importlib.import_module("hadare_test_user_code.task").VALUE == 2


@pytest.mark.parametrize("name", ["torch", "hadare", "json"])
def test_what_the_fork_runs_on_is_not_replaced(tmp_path: Path, name: str) -> None:
    before = importlib.import_module(name)
    (tmp_path / f"{name}.py").write_text("raise RuntimeError\n")
    put_first([str(tmp_path)])
    assert importlib.import_module(name) is before
