"""The loop that simulations run in does what asyncio's own does, at once and always in the same order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from hadare.runtime.virtual import run_virtually


def now() -> float:
    return asyncio.get_running_loop().time()


async def story() -> list[tuple[float, str]]:
    """Sleeps, queues, time-outs, cancellations and groups, some of them at the same moment."""
    told: list[tuple[float, str]] = []
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def teller(name: str, pause_s: float, times: int) -> None:
        for turn in range(times):
            await asyncio.sleep(pause_s)
            told.append((now(), f"{name}{turn}"))
            queue.put_nowait(turn)

    async def heard() -> None:
        while True:
            told.append((now(), f"heard {await queue.get()}"))

    hearing = asyncio.ensure_future(heard())
    async with asyncio.TaskGroup() as group:
        group.create_task(teller("a", 1.0, 3))
        group.create_task(teller("b", 1.5, 2))
        group.create_task(teller("c", 0.0, 2))
    hearing.cancel()
    await asyncio.gather(hearing, return_exceptions=True)
    try:
        async with asyncio.timeout(2.5):
            await asyncio.Event().wait()
    except TimeoutError:
        told.append((now(), "in vain"))
    timer = asyncio.get_running_loop().call_later(1.0, told.append, (0.0, "never"))
    timer.cancel()
    await asyncio.sleep(2.0)
    return told


def test_a_deaf_loop_tells_the_same_story_as_one_that_listens() -> None:
    told = run_virtually(story(), deaf=True)
    assert told == run_virtually(story())
    assert (5.5, "in vain") in told
    assert ("never") not in [what for _, what in told]


def test_timers_of_one_moment_run_in_the_order_in_which_they_were_set() -> None:
    async def set_many() -> list[int]:
        ran: list[int] = []
        for number in range(50):
            asyncio.get_running_loop().call_at(1.0, ran.append, number)
        await asyncio.sleep(2.0)
        return ran

    assert run_virtually(set_many(), deaf=True) == list(range(50))


def test_a_deaf_loop_says_so_when_every_task_waits_for_ever() -> None:
    with pytest.raises(RuntimeError, match="nothing will bring about"):
        run_virtually(forever(), deaf=True)


def test_an_error_of_a_callback_reaches_the_handler_and_the_loop_goes_on() -> None:
    async def fail() -> list[str]:
        loop, seen = asyncio.get_running_loop(), list[str]()
        loop.set_exception_handler(lambda _loop, context: seen.append(repr(context["exception"])))
        loop.call_soon(int, "none")
        loop.call_later(0.5, int, "none either")
        await asyncio.sleep(1.0)
        return seen

    assert len(run_virtually(fail(), deaf=True)) == 2


def forever() -> Coroutine[Any, Any, bool]:
    async def wait() -> bool:
        return await asyncio.Event().wait()

    return wait()
