"""An asyncio event loop in virtual time: it never waits, it moves its clock to the next timer instead.

Services, time-outs and sleeps run unchanged in it, so a whole cluster lives through hours in milliseconds, and always
in the same order. What it cannot speed up is real input: a thread or a socket that takes real time; a loop that is
``deaf`` to it (``hadare.runtime.deaf``) does not even ask.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from hadare.runtime.deaf import DeafLoop

T = TypeVar("T")

_PATIENCE_S = 10.0


class _SkippingSelector(selectors.DefaultSelector):
    """Reports what is ready at once; where asyncio would wait for a timer, it skips the time instead."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # no timer is set: only a thread can still bring news
            ready = super().select(_PATIENCE_S)
            if not ready:
                raise RuntimeError("every task waits for something that nothing will bring about")
            return ready
        ready = super().select(0)
        if not ready and timeout > 0:
            self.skipped_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """``loop.time()`` starts at 0 and jumps from timer to timer."""

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.skipped_s


def run_virtually(main: Coroutine[Any, Any, T], *, deaf: bool = False) -> T:
    """``asyncio.run`` in virtual time. Raises ``RuntimeError`` if every task waits for ever.

    ``deaf``: there is no thread and no socket that could bring news; then it takes half of the time or less.
    """
    with asyncio.Runner(loop_factory=DeafLoop if deaf else VirtualTimeLoop) as runner:
        return runner.run(main)
