from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hadare.bench import gangs
from hadare.training.protocol import Done


class Recorded:
    """Stands in for processes: every update takes 125 ms, 20 ms of them in the exchange."""

    def __init__(self) -> None:
        self.work: Any = None

    async def train(self, work: Any) -> list[Done]:
        self.work = work
        return [Done(update_s=0.125, exchange_s=0.02)] * len(work.shares)


async def a_speed(shares: tuple[int, ...]) -> tuple[gangs.Speed, Any]:
    gang = Recorded()
    speed = await gangs._speed(gang, "x", shares, 0.1, 40, Path("base"), Path())  # type: ignore[arg-type]
    return speed, gang.work


async def test_a_gang_is_as_fast_as_its_devices_if_its_updates_take_as_long_as_they_do_together() -> None:
    speed, work = await a_speed((40, 24, 16, 12, 4))
    assert speed.devices_samples_per_s == pytest.approx(gangs.BATCH / 0.1)
    assert sum(work.rates) * gangs.BATCH == pytest.approx(speed.devices_samples_per_s)
    assert speed.reached == pytest.approx(0.8)
    assert (speed.update_ms, speed.exchange_ms) == pytest.approx((125.0, 20.0))


async def test_each_device_takes_as_long_for_its_share_as_the_others_for_theirs() -> None:
    _, work = await a_speed((40, 24, 16, 12, 4))
    times = [share / gangs.BATCH / rate for share, rate in zip(work.shares, work.rates, strict=True)]
    assert times == pytest.approx([0.1] * 5)


async def test_an_update_of_a_batch_a_rank_is_of_five_times_as_many_steps() -> None:
    speed, work = await a_speed((200, 120, 80, 60, 20))
    assert work.quota == 200
    assert speed.reached == pytest.approx(4.0)
