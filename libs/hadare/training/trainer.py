"""The one training loop: a task's model on one device, for as many steps as it is granted. No files, no messages.

A cluster's forks (``forkchild``) and a run without a cluster (``local``) both go through it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hadare.forking.schedule import data_seed
from hadare.model.errors import HadareError
from hadare.training.devices import Stopwatch, mixed_precision
from hadare.training.protocol import EndReason
from hadare.training.task import build_task
from hadare.training.throttle import Throttle

WARM_UP_STEPS = 5



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
    """How a running fork is doing. ``loss`` is the mean since the last report."""

    steps: int
    loss: float
    steps_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What was done. ``updates`` are optimiser updates; ``seconds`` from the first step to the last."""

    steps: int
    samples: int
    updates: int
    seconds: float
    steps_per_s: float
    loss: float
    reason: EndReason


def _never() -> float | None:
    return None


def _silent(_: Standing) -> None:
    pass


class Trainer:
    """A task's model and optimiser on a device, warm from one grant to the next."""

    def __init__(
        self, workload: str, config: Mapping[str, Any], batch_size: int, seed: int, device: str = "cpu"
    ) -> None:
        """Builds the model from ``seed``. Raises ``WorkloadError`` if workload or data are not here."""
        self.device = torch.device(device)
        self.task, self.options = build_task(workload, config, batch_size, seed)
        torch.manual_seed(seed)
        self.model = self.task.build_model().to(self.device)
        self.optimizer = self.task.build_optimizer(self.model)
        self._rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._mixed: tuple[torch.dtype, bool] | None = None
        if self.options.precision == "amp":
            self._mixed = mixed_precision(self.device)
        scaled = self._mixed is not None and self._mixed[1]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=scaled)

    def train(
        self,
        grant: Grant,
        revoked: Callable[[], float | None] = _never,
        report: Callable[[Standing], None] = _silent,
    ) -> Trained:
        """Steps until the quota, the deadline, or the moment that ``revoked`` has named once (asked between steps).

        Raises ``NotFinite`` if the loss is not a number.
        """
        loop = _Loop(self, grant, report)
        return loop.run(revoked)

    def evaluate(self) -> dict[str, float]:
        """The task's metrics of the model as it is; leaves no trace in the model or torch's generator."""
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            metrics = self.task.evaluate(self.model)
        self.model.train(was_training)
        return {str(name): float(value) for name, value in metrics.items()}

    def set_position(self, position: float) -> None:
        """Sets the learning rates for ``position`` of the job's budget."""
        factor = self.task.learning_rate_factor(position)
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor

    def gradient(self, batch: Any, divisor: int) -> Tensor:
        """Adds one batch's gradient; returns its loss, still on the device."""
        batch = self.task.to_device(batch, self.device)
        with self._autocast():
            loss = self.task.loss(self.model, batch)
        self.scaler.scale(loss / divisor if divisor > 1 else loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self) -> bool:
        """One optimiser update from the gradients gathered; false if mixed precision skipped it for an overflow."""
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return self.scaler.get_scale() >= before

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._mixed is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self._mixed[0])


class _Loop:
    """One grant being used."""

    def __init__(self, trainer: Trainer, grant: Grant, report: Callable[[Standing], None]) -> None:
        self._trainer = trainer
        self._grant = grant
        self._report = report
        self._batches: Iterator[Any] = _endless(trainer, grant.data_seed)
        self._steps = 0
        self._updates = 0
        self._losses = torch.zeros((), device=trainer.device)
        self._since_report = 0
        self._loss = math.nan
        self._revoked_at = math.inf
        self._begun = self._reported = 0.0

    def run(self, revoked: Callable[[], float | None]) -> Trained:
        trainer, grant = self._trainer, self._grant
        torch.manual_seed(grant.data_seed)
        trainer.model.train()
        trainer.optimizer.zero_grad(set_to_none=True)
        # Reading the data set, which the first batch may do, is not training.
        self._batches = chain([next(self._batches)], self._batches)
        throttle = Throttle(grant.rate)
        throttle.start()
        self._begun = self._reported = time.monotonic()
        watch = Stopwatch(trainer.device, WARM_UP_STEPS)
        while (reason := self._end(throttle, revoked)) is None:
            self._step()
            throttle.wait()
            watch.step()
            self._report_if_due(watch)
        self._flush()
        self._read_loss()
        speed = watch.steps_per_s()  # waits for the device, so it comes before the clock is read
        return Trained(
            steps=self._steps,
            samples=self._steps * trainer.task.batch_size,
            updates=self._updates,
            seconds=time.monotonic() - self._begun,
            steps_per_s=speed,
            loss=self._loss,
            reason=reason,
        )

    def _report_if_due(self, watch: Stopwatch) -> None:
        now = time.monotonic()
        if now - self._reported >= self._grant.report_interval_s:
            self._reported = now
            self._read_loss()
            self._report(Standing(steps=self._steps, loss=self._loss, steps_per_s=watch.steps_per_s()))

    def _end(self, throttle: Throttle, revoked: Callable[[], float | None]) -> EndReason | None:
        if self._steps >= self._grant.quota:
            return "quota"
        if (limit := revoked()) is not None:
            self._revoked_at = min(self._revoked_at, limit)
        now = time.monotonic()
        if now >= self._grant.deadline or not throttle.fits(self._grant.deadline):
            return "clock"
        return "revoked" if now >= self._revoked_at or not throttle.fits(self._revoked_at) else None

    def _step(self) -> None:
        trainer, accumulate = self._trainer, self._trainer.options.accumulate
        if self._steps % accumulate == 0:
            trainer.set_position(self._position())
        self._losses += trainer.gradient(next(self._batches), accumulate)
        self._steps += 1
        self._since_report += 1
        if self._steps % accumulate == 0:
            self._updates += trainer.update()

    def _position(self) -> float:
        """Between ``schedule_from`` and ``schedule_to`` by the quota or the clock, whichever will end the fork."""
        grant = self._grant
        if grant.schedule_from == grant.schedule_to:
            return grant.schedule_from
        used = self._steps / max(1, grant.quota)
        if math.isfinite(grant.deadline):
            used = max(used, (time.monotonic() - self._begun) / max(1e-9, grant.deadline - self._begun))
        return grant.schedule_from + min(1.0, used) * (grant.schedule_to - grant.schedule_from)

    def _flush(self) -> None:
        """An update of what was gathered when the grant ended between two updates."""
        if self._steps % self._trainer.options.accumulate:
            self._updates += self._trainer.update()

    def _read_loss(self) -> None:
        if self._since_report == 0:
            return
        self._loss = float(self._losses) / self._since_report
        if not math.isfinite(self._loss):
            raise NotFinite(f"the loss is {self._loss} after {self._steps} steps")
        self._losses.zero_()
        self._since_report = 0


def _endless(trainer: Trainer, seed: int) -> Iterator[Any]:
    """Batches for ever; each pass of a finite iterator has its own order."""
    for number in range(2**53):
        empty = True
        for batch in trainer.task.batches(seed if number == 0 else data_seed(seed, number, 0)):
            empty = False
            yield batch
        if empty:
            raise ValueError("the task's batches() is empty")
