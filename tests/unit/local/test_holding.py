"""Who holds a cluster's directory, and who may end what is in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hadare.local import lifecycle
from hadare.local.directory import held, holder
from hadare.model.errors import Rejected


def ended_process() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process


def test_a_directory_is_held_by_one(tmp_path: Path) -> None:
    with held(tmp_path):
        assert holder(tmp_path) is not None
        with pytest.raises(Rejected, match="already running"), held(tmp_path):
            pass
    assert holder(tmp_path) is None


def test_an_up_that_came_second_does_not_end_the_cluster_of_the_first(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(Rejected, match="already running"):
        lifecycle.take_back(ended_process(), tmp_path)


def test_what_nobody_holds_is_cleared_away(tmp_path: Path) -> None:
    lifecycle.take_back(ended_process(), tmp_path)
    assert holder(tmp_path) is None


@pytest.mark.parametrize("round_s", [float("nan"), float("inf")])
def test_a_round_without_a_length_is_refused_and_nothing_is_written(tmp_path: Path, round_s: float) -> None:
    with pytest.raises(Rejected, match="no length of a round"):
        lifecycle.prepare(tmp_path, round_s=round_s)
    assert list(tmp_path.iterdir()) == []
