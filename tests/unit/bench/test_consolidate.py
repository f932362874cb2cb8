from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from hadare.bench.consolidate import measure
from hadare.cli.main import hadare


def test_everything_is_measured_and_memory_does_not_follow_the_model(tmp_path: Path) -> None:
    found = measure(tmp_path, 5_000_000, forks=3, turns=1)
    assert (found.params, found.forks) == (5_000_000, 3)
    assert min(found.average_s, found.checked_s, found.read_only_s, found.memcpy_gb_s) > 0
    assert found.anonymous_mb < 60


def test_the_command_prints_the_agreed_keys(tmp_path: Path) -> None:
    arguments = ["bench", "consolidate", "--params", "1000", "--turns", "1", "--folder", str(tmp_path), "--json"]
    done = CliRunner().invoke(hadare, arguments)
    assert set(json.loads(done.stdout)) == {
        *("params", "forks", "average_s", "checked_s", "read_only_s", "memcpy_gb_s", "anonymous_mb")
    }
    assert list(tmp_path.iterdir()) == []
