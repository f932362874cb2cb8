"""An asyncio event loop in virtual time that hears nothing: no socket, no thread, only its own tasks and timers.

It does what asyncio's own loop does with ready calls and timers, without what that needs to poll a system for news:
callbacks are most of a simulation's work, and their cost in asyncio is mostly the loop's own. Timers of the same moment
run in the order in which they were set (asyncio leaves that open), so that a run replays exactly.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVarTuple, Unpack

Args = TypeVarTuple("Args")


class _Call(asyncio.TimerHandle):
    """A callback, ready or set for a moment: what of asyncio's own is needed without its debugging, and no more."""

    __slots__ = ()

    def __init__(self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self._context = context
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._when = when

    def __repr__(self) -> str:
        return f"<call of {self._callback!r} at {self._when:.6f} s>"

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = _nothing
        self._args = ()


class DeafLoop(asyncio.BaseEventLoop):
    """``time()`` starts at 0, stands still while anything is ready, and jumps to the next timer when nothing is."""

    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._at = 0.0
        self._calls: deque[_Call] = deque()
        self._timers: list[tuple[float, int, _Call]] = []
        self._order = count()

    def time(self) -> float:
        return self._at

    def call_soon(
        self, callback: Callable[[Unpack[Args]], object], *args: *Args, context: Context | None = None
    ) -> _Call:
        call = _Call(self._at, callback, args, context if context is not None else copy_context())
        self._calls.append(call)
        return call

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> _Call:
        return self.call_at(self._at + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> _Call:
        call = _Call(when, callback, args, context if context is not None else copy_context())
        if when <= self._at:
            self._calls.append(call)
        else:
            heappush(self._timers, (when, next(self._order), call))
        return call

    def _run_once(self) -> None:
        """All that is ready now; then, unless the loop is to stop, on to the next timer, and so on."""
        calls = self._calls
        while True:
            if not calls:
                self._skip()
            for _ in range(len(calls)):
                call = calls.popleft()
                if call._cancelled:
                    continue
                try:
                    call._context.run(call._callback, *call._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as asyncio does: the handler judges it
                    self.call_exception_handler(
                        {"message": f"Exception in callback {call!r}", "exception": error, "handle": call}
                    )
            if self._stopping:
                return

    def _skip(self) -> None:
        """To the next timer, with all others of the same moment. Raises ``RuntimeError`` if none is set."""
        timers = self._timers
        while timers and not self._calls:
            when, _, call = heappop(timers)
            if call._cancelled:
                continue
            self._at = when
            self._calls.append(call)
            while timers and timers[0][0] == when:
                self._calls.append(heappop(timers)[2])
        if not self._calls:
            raise RuntimeError("every task waits for something that nothing will bring about")

    def _write_to_self(self) -> None:
        """Wakes nothing: it never sleeps."""

    def _process_events(self, event_list: object) -> None:
        """There are none."""


def _nothing() -> None:
    """What a cancelled call would do."""
