"""Emulated devices: holds a fork to its device's nominal rate by a deadline for every step.

``Pace`` is the arithmetic, with the clock as an argument; ``Throttle`` sleeps by it.
"""

from __future__ import annotations

import time

# A fork that falls further behind than this has lost the time for good, as a slow device would have.
MAX_LAG_S = 1.0


class Pace:
    """When step n of a fork may end: ``start + n / rate``, so that a late step is caught up by the ones after it.

    Catching up is bounded: what is lost beyond ``max_lag_s`` moves all later deadlines. A rank of a gang does parts of
    steps, and does not catch up the time in which it waits for others (``pause``).
    """

    def __init__(self, rate: float, *, max_lag_s: float = MAX_LAG_S) -> None:
        """``rate`` is in steps/s."""
        if rate <= 0:
            raise ValueError(f"a nominal rate must be positive, not {rate}")
        self._period = 1.0 / rate
        self._max_lag = max_lag_s
        self._start = 0.0
        self._steps = 0.0

    def start(self, now: float) -> None:
        """The first step begins now."""
        self._start = now
        self._steps = 0.0

    def next_end(self, steps: float = 1.0) -> float:
        """The moment at which the step after the last may end, or so many of them."""
        return self._start + (self._steps + steps) * self._period

    def pause(self, seconds: float) -> None:
        """Time that is not the device's own."""
        self._start += seconds

    def step_done(self, now: float, steps: float = 1.0) -> float:
        """The computation of a step (or so many) has ended; returns for how many seconds to wait."""
        due = self.next_end(steps)
        self._steps += steps
        lag = now - due
        if lag > self._max_lag:
            self._start += lag - self._max_lag
        return max(0.0, -lag)


class Throttle:
    """Waits after each step as ``Pace`` says; without a rate it does nothing."""

    def __init__(self, rate: float | None) -> None:
        self._pace = Pace(rate) if rate else None

    def start(self) -> None:
        if self._pace:
            self._pace.start(time.monotonic())

    def fits(self, deadline: float, steps: float = 1.0) -> bool:
        """Whether another step (or so many) may still end by ``deadline`` (monotonic)."""
        return self._pace is None or self._pace.next_end(steps) <= deadline

    def wait(self, steps: float = 1.0) -> None:
        """To be called after each step (or so many)."""
        if self._pace and (rest := self._pace.step_done(time.monotonic(), steps)) > 0:
            time.sleep(rest)

    def pause(self, seconds: float) -> None:
        """So much time has gone by in waiting for others."""
        if self._pace:
            self._pace.pause(seconds)
