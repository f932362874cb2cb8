"""A grant being used: how many steps it allows, when it ends, how fast it goes, where the job stands meanwhile.

Every loop goes through it, a task's (``trainer``) as well as a script's (``scripts``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from hadare.forking.schedule import data_seed
from hadare.model.errors import HadareError
from hadare.training.devices import Stopwatch
from hadare.training.protocol import EndReason
from hadare.training.throttle import Throttle

WARM_UP_STEPS = 5

Batch = TypeVar("Batch")


class NotFinite(HadareError):
    """The loss became NaN or infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a fork may do: ``quota`` steps at most, until ``deadline`` (monotonic; none if infinite).

    ``schedule_from/to`` are where the job stands in its schedule at the first and the last step. ``rate`` holds an
    emulated device to its steps/s.
    """

    quota: int
    data_seed: int
    deadline: float = math.inf
    schedule_from: float = 0.0
    schedule_to: float = 0.0
    rate: float | None = None
    report_interval_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a running fork is doing. ``loss`` is the mean since the last report, NaN without one."""

    steps: int
    loss: float
    steps_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What was done. ``updates`` are optimiser updates; ``seconds`` from the first step to the last.

    ``update_s`` and ``exchange_s``: of a gang, as in ``ForkResult``; its ``steps_per_s`` are the rank's own.
    """

    steps: int
    samples: int
    updates: int
    seconds: float
    steps_per_s: float
    loss: float
    reason: EndReason
    update_s: float = 0.0
    exchange_s: float = 0.0


Revoked = Callable[[], float | None]
OnStanding = Callable[[Standing], None]


def never() -> float | None:
    """Nobody revokes this grant."""
    return None


def silent(_: Standing) -> None:
    """Nobody asks."""


class Granted:
    """Counts the steps of one grant. ``revoked`` names once until when (monotonic) the fork may go on."""

    def __init__(
        self, grant: Grant, device: torch.device, revoked: Revoked = never, report: OnStanding = silent
    ) -> None:
        self._grant = grant
        self._device = device
        self._revoked = revoked
        self._report = report
        self._throttle = Throttle(grant.rate)
        self._losses = torch.zeros((), device=device)
        self._since_report = 0
        self._loss = math.nan
        self._revoked_at = math.inf
        self._begun = self._reported = 0.0
        self._watch: Stopwatch | None = None
        self.done = 0
        self.reason: EndReason | None = None

    def steps(self) -> Iterator[float]:
        """Yields the position in the job's schedule, once for each step; the step is over when the next is asked for.

        Raises ``NotFinite`` if the loss that was noted is not a number (looked at once in a report interval).
        """
        self._throttle.start()
        self._begun = self._reported = time.monotonic()
        self._watch = Stopwatch(self._device, WARM_UP_STEPS)
        while (reason := self._end()) is None:
            yield place_in_schedule(self._grant, self.done, self._begun)
            self.done += 1
            self._throttle.wait()
            self._watch.step()
            self._report_if_due(self._watch)
        self.reason = reason

    def note(self, loss: Tensor) -> None:
        """The step's loss, still on its device."""
        self._losses += loss
        self._since_report += 1

    def trained(self, *, batch_size: int, updates: int) -> Trained:
        """What came of it, once ``steps`` has ended."""
        assert self._watch is not None
        assert self.reason is not None
        self._read_loss()
        speed = self._watch.steps_per_s()  # waits for the device, so it comes before the clock is read
        return Trained(
            steps=self.done,
            samples=self.done * batch_size,
            updates=updates,
            seconds=time.monotonic() - self._begun,
            steps_per_s=speed,
            loss=self._loss,
            reason=self.reason,
        )

    def _report_if_due(self, watch: Stopwatch) -> None:
        now = time.monotonic()
        if now - self._reported >= self._grant.report_interval_s:
            self._reported = now
            self._read_loss()
            self._report(Standing(steps=self.done, loss=self._loss, steps_per_s=watch.steps_per_s()))

    def _end(self) -> EndReason | None:
        if self.done >= self._grant.quota:
            return "quota"
        if (limit := self._revoked()) is not None:
            self._revoked_at = min(self._revoked_at, limit)
        now = time.monotonic()
        if now >= self._grant.deadline or not self._throttle.fits(self._grant.deadline):
            return "clock"
        return "revoked" if now >= self._revoked_at or not self._throttle.fits(self._revoked_at) else None

    def _read_loss(self) -> None:
        if self._since_report == 0:
            return
        self._loss = float(self._losses) / self._since_report
        if not math.isfinite(self._loss):
            raise NotFinite(f"the loss is {self._loss} after {self.done} steps")
        self._losses.zero_()
        self._since_report = 0


def place_in_schedule(grant: Grant, done: int, begun: float) -> float:
    """Between ``schedule_from`` and ``schedule_to`` by the quota or the clock, whichever will end the fork.

    ``begun`` (monotonic): when the first of the ``done`` steps began.
    """
    if grant.schedule_from == grant.schedule_to:
        return grant.schedule_from
    used = done / max(1, grant.quota)
    if math.isfinite(grant.deadline):
        used = max(used, (time.monotonic() - begun) / max(1e-9, grant.deadline - begun))
    return grant.schedule_from + min(1.0, used) * (grant.schedule_to - grant.schedule_from)


def endless(batches: Callable[[int], Iterable[Batch]], seed: int) -> Iterator[Batch]:
    """Batches for ever; each pass of what is finite has its own order. Raises ``ValueError`` if a pass is empty."""
    for number in range(2**53):
        empty = True
        for batch in batches(seed if number == 0 else data_seed(seed, number, 0)):
            empty = False
            yield batch
        if empty:
            raise ValueError("batches are empty: a pass over them has none")
