"""``hadare bench recover``: every control service on a real server, with a few jobs."""

from __future__ import annotations

import pytest

from hadare.bench.recover import SERVICES, measure

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def test_every_control_service_is_ready_again_on_the_records_of_others() -> None:
    found = measure(jobs=20, turns=1)
    assert tuple(one.service for one in found) == SERVICES
    assert all(one.median_s > 0 for one in found)
