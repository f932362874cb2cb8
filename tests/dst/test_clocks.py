"""A wall clock that jumps by an hour, forth and back, changes nothing: no lease, no round, no reign is timed by it."""

from __future__ import annotations

import time
from random import Random

import pytest

from builders_dst import RealServices
from hadare.dst.scenario import draw
from hadare.dst.world import Verdict, simulate
from hadare.runtime import election

HOUR_S = 3600.0
pytestmark = pytest.mark.timeout(120)


def run(seed: int) -> Verdict:
    return simulate(draw(seed), RealServices())


def jump(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the wall clock jumps at every look at it."""
    jumps, real = Random("jumps"), time.time
    monkeypatch.setattr(time, "time", lambda: real() + jumps.choice((-HOUR_S, 0.0, HOUR_S)))
    monkeypatch.setattr(time, "time_ns", lambda: int(time.time() * 1e9))


@pytest.mark.parametrize("seed", [3, 7])
def test_with_a_jumping_wall_clock_a_seed_plays_out_event_by_event_as_without(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = run(seed)
    assert calm.violations == ()
    jump(monkeypatch)
    assert run(seed).digest == calm.digest


def test_an_election_by_the_wall_clock_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = run(7)
    jump(monkeypatch)
    monkeypatch.setattr(election, "_now", lambda: time.time())
    assert run(7).digest != calm.digest
