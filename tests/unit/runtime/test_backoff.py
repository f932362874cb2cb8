from __future__ import annotations

import asyncio

import pytest

from hadare.model.errors import Conflict, Unavailable
from hadare.runtime.backoff import pause, retrying
from hadare.runtime.virtual import run_virtually


class Flaky:
    """Fails so many times, then answers."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.failures = failures
        self.error = error or Unavailable("not yet")
        self.calls: list[float] = []

    async def __call__(self) -> str:
        self.calls.append(asyncio.get_running_loop().time())
        if len(self.calls) <= self.failures:
            raise self.error
        return "done"


def test_it_tries_until_it_succeeds() -> None:
    flaky = Flaky(3)
    assert run_virtually(retrying(flaky, what="t", patience_s=30)) == "done"
    assert len(flaky.calls) == 4


def test_it_gives_up_with_the_last_error_within_its_patience() -> None:
    flaky = Flaky(10_000)
    with pytest.raises(Unavailable, match="not yet"):
        run_virtually(retrying(flaky, what="t", patience_s=30))
    assert 20 < flaky.calls[-1] <= 30


def test_it_waits_longer_each_time_up_to_the_cap() -> None:
    flaky = Flaky(12)
    run_virtually(retrying(flaky, what="t", patience_s=300, first_s=0.1, cap_s=2.0))
    waits = [later - earlier for earlier, later in zip(flaky.calls, flaky.calls[1:], strict=False)]
    assert 0.05 <= waits[0] <= 0.1
    assert all(1.0 <= wait <= 2.0 for wait in waits[6:])


def test_other_errors_are_not_retried() -> None:
    flaky = Flaky(1, Conflict("theirs"))
    with pytest.raises(Conflict):
        run_virtually(retrying(flaky, what="t", patience_s=30))
    assert len(flaky.calls) == 1


def test_the_errors_to_retry_can_be_chosen() -> None:
    assert run_virtually(retrying(Flaky(1, Conflict("theirs")), what="t", patience_s=30, on=(Conflict,))) == "done"


def test_without_patience_it_tries_once() -> None:
    flaky = Flaky(1)
    with pytest.raises(Unavailable):
        run_virtually(retrying(flaky, what="t", patience_s=0))
    assert len(flaky.calls) == 1


def test_pauses_are_spread_so_that_many_do_not_return_at_once() -> None:
    assert len({pause(3) for _ in range(20)}) > 10
    assert all(0.4 <= pause(3) <= 0.8 for _ in range(100))
