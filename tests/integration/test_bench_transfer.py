"""``hadare bench transfer`` on a file so small that its figures mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hadare.bench.transfer import measure

pytestmark = pytest.mark.integration


def test_both_clients_are_timed_on_one_server(tmp_path: Path) -> None:
    found = measure(tmp_path, 2.0, 1)
    assert min(found.put_mb_s, found.get_mb_s, found.stock_put_mb_s, found.stock_get_mb_s, found.copy_mb_s) > 0
    assert found.put_ratio == found.put_mb_s / found.stock_put_mb_s
    assert (tmp_path / "copy").stat().st_size == 2_000_000
