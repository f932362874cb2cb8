"""Retries: bounded in time, jittered, and never silent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from hadare.model.errors import Unavailable

T = TypeVar("T")

log = structlog.get_logger("hadare.backoff")


def pause(attempt: int, *, first_s: float = 0.1, cap_s: float = 3.0) -> float:
    """Seconds to wait before attempt ``attempt + 1``: doubles up to the cap, less up to half of it at random."""
    step = min(cap_s, first_s * 2.0 ** min(attempt, 30))
    return step * random.uniform(0.5, 1.0)


async def retrying(
    operation: Callable[[], Awaitable[T]],
    *,
    what: str,
    patience_s: float,
    on: tuple[type[Exception], ...] = (Unavailable,),
    first_s: float = 0.1,
    cap_s: float = 3.0,
) -> T:
    """Calls ``operation`` until it succeeds; after ``patience_s`` its last error is raised.

    ``what`` names it in the log. Errors of other types than ``on`` are raised at once.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    attempt = 0
    while True:
        try:
            return await operation()
        except on as error:
            wait_s = pause(attempt, first_s=first_s, cap_s=cap_s)
            if loop.time() + wait_s >= deadline:
                raise
            attempt += 1
            log.warning("retrying", what=what, attempt=attempt, wait_s=round(wait_s, 3), error=str(error))
            await asyncio.sleep(wait_s)
