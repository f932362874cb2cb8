"""Cancellations that a library drops on the way: a task of ours ends all the same."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from hadare.runtime.nats_link import heeded


async def swallows() -> str:
    """As nats-py flushes."""
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "flushed"
    return "slept"


async def swallows_and_fails() -> str:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        raise ConnectionError("the bus is away") from None
    return "slept"


async def answered_in_the_same_moment() -> str:
    """What ``wait_for`` of Python 3.11 makes of a reply and a cancellation in one turn of the loop."""
    reply = asyncio.get_running_loop().create_future()
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(lambda: (reply.set_result("reply"), task.cancel()))
    return await asyncio.wait_for(reply, 60)


@pytest.mark.parametrize("work", [swallows, swallows_and_fails, answered_in_the_same_moment])
async def test_a_loop_that_is_cancelled_ends_though_the_library_drops_it(work: Callable[[], Awaitable[str]]) -> None:
    turns = 0

    async def loop() -> None:
        nonlocal turns
        while turns < 3:
            turns += 1
            try:
                await heeded(work())
            except ConnectionError:
                continue

    task = asyncio.create_task(loop())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert turns == 1


async def test_a_time_limit_stays_a_time_limit() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await heeded(swallows())


async def test_what_is_done_while_a_task_is_being_cancelled_is_done() -> None:
    said: list[str] = []

    async def say(text: str) -> str:
        await asyncio.sleep(0)
        said.append(text)
        return text

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await heeded(say("farewell"))
            await heeded(say("and thanks"))

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert said == ["farewell", "and thanks"]


async def test_without_a_cancellation_the_answer_is_the_answer() -> None:
    async def answer() -> str:
        return "yes"

    assert await heeded(answer()) == "yes"
