"""``hadare bench start``: real processes, once each."""

from __future__ import annotations

import pytest

from hadare.bench.start import PARTS, measure
from hadare.model.errors import Broken

pytestmark = pytest.mark.integration


def test_a_fork_from_the_server_starts_sooner_than_a_fresh_interpreter() -> None:
    found = measure(turns=1)
    assert tuple(found.parts_ms) == PARTS
    assert sum(found.parts_ms.values()) == pytest.approx(found.cold_ms)
    assert found.server_ms < found.cold_ms


def test_a_workload_that_does_not_start_says_why() -> None:
    with pytest.raises(Broken, match="no_such_module"):
        measure("no_such_module:Task", turns=1)
