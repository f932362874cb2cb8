"""Emulated devices: holds a fork to its device's nominal rate by a deadline for every step.

``Pace`` is the arithmetic, with the clock as an argument; ``Throttle`` sleeps by it.
"""

from __future__ import annotations

import time

# A fork that falls further behind than this has lost the time for good, as a slow device would have.
MAX_LAG_S = 1.0


class Pace:
    """When step n of a fork may end: ``start + n / rate``, so that a late step is caught up by the ones after it.

    Catching up is bounded: what is lost beyond ``max_lag_s`` moves all later deadlines.
    """

    def __init__(self, rate: float, *, max_lag_s: float = MAX_LAG_S) -> None:
        """``rate`` is in steps/s."""
        if rate <= 0:
            raise ValueError(f"a nominal rate must be positive, not {rate}")
        self._period = 1.0 / rate
        self._max_lag = max_lag_s
        self._start = 0.0
        self._steps = 0

    def start(self, now: float) -> None:
        """The first step begins now."""
        self._start = now
        self._steps = 0

    @property
    def next_end(self) -> float:
        """The moment at which the step after the last may end."""
        return self._start + (self._steps + 1) * self._period

    def step_done(self, now: float) -> float:
        """The computation of a step has ended; returns for how many seconds to wait."""
        due = self.next_end
        self._steps += 1
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

    def fits(self, deadline: float) -> bool:
        """Whether another step may still end by ``deadline`` (monotonic)."""
        return self._pace is None or self._pace.next_end <= deadline

    def wait(self) -> None:
        """To be called after each step."""
        if self._pace and (rest := self._pace.step_done(time.monotonic())) > 0:
            time.sleep(rest)
