"""A grant that the ranks of a gang use up together: the same updates, the same end, and what each of them measures."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hadare.forking.schedule import data_seed
from hadare.model.errors import HadareError
from hadare.training.batches import fingerprint
from hadare.training.gang import Gang
from hadare.training.gang_exchange import GradientSum
from hadare.training.gang_meter import Meter
from hadare.training.gang_parts import Part, cuts, pieces
from hadare.training.granted import (
    Grant,
    NotFinite,
    OnStanding,
    Revoked,
    Standing,
    Trained,
    endless,
    place_in_schedule,
)
from hadare.training.protocol import EndReason
from hadare.training.task import Task
from hadare.training.throttle import Throttle

# The loss and two votes to end.
_NUMBERS = 3


class GangMismatch(HadareError):
    """The ranks do not train the same thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One update, of ``steps`` batches, at ``position`` of the job's schedule; ``parts`` of them are this rank's."""

    position: float
    steps: int
    parts: tuple[Part, ...]


class Stream:
    """The batches of a gang: the same on every rank, though the ranks draw different random numbers beside them."""

    def __init__(self, task: Task[Any], seed: int) -> None:
        self._batches = endless(task.batches, seed)
        torch.manual_seed(seed)
        self._state = torch.get_rng_state()
        self._ahead = [self._draw()]  # reading the data set, which the first batch may do, is not training
        self.fingerprint = fingerprint(self._ahead[0])

    def take(self, count: int) -> list[Any]:
        """The next batches."""
        self._ahead.extend(self._draw() for _ in range(count - len(self._ahead)))
        taken, self._ahead = self._ahead[:count], self._ahead[count:]
        return taken

    def _draw(self) -> Any:
        own = torch.get_rng_state()
        torch.set_rng_state(self._state)
        try:
            return next(self._batches)
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(own)


def rank_seed(grant_seed: int, rank: int) -> int:
    """Of what a rank draws by itself (dropout): another one on every rank, and none of a pass over the data."""
    return data_seed(grant_seed, rank, 1)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What is summed beside the gradients. ``waited_s``: how long each rank's last exchange took."""

    loss: float
    clock: float
    revoked: float
    waited_s: Sequence[float]

    def row(self) -> list[float]:
        return [self.loss, self.clock, self.revoked, *self.waited_s]

    @classmethod
    def of(cls, row: Sequence[float]) -> _Numbers:
        return cls(row[0], row[1], row[2], row[3:])


class Lockstep:
    """Counts the updates of one grant on one rank; every rank comes to the same count."""

    def __init__(
        self, grant: Grant, gang: Gang, task: Task[Any], model: nn.Module, revoked: Revoked, report: OnStanding
    ) -> None:
        self._grant = grant
        self._gang = gang
        self._size = task.batch_size
        self._model = model
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._revoked = revoked
        self._report = report
        self._throttle = Throttle(grant.rate)
        self._least = 2 if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()) else 1
        parameters = [p for p in model.parameters() if p.requires_grad]
        self._sum = GradientSum(gang, parameters, _NUMBERS + gang.world)
        self._meter = Meter(gang.world)
        self._revoked_at = math.inf
        self._per_update = 0
        self._turn = Turn(position=0.0, steps=0, parts=())
        self._begun = self._ended = self._reported = 0.0
        self._loss, self._losses, self._since_report = math.nan, 0.0, 0
        self._done = 0
        self._reason: EndReason | None = None

    def turns(self, accumulate: int, stream: Stream) -> Iterator[Turn]:
        """Yields once for each update, until the ranks have agreed to end. ``exchange`` is to be called in each.

        Raises ``GangMismatch`` if the ranks have different models, data or quotas.
        """
        whole, rest = divmod(sum(self._gang.part.shares), self._size)
        if rest or not whole:
            shares = self._gang.part.shares
            raise GangMismatch(f"a gang's shares {shares} do not add up to whole batches of {self._size} samples")
        self._per_update = accumulate * whole
        self._gang.limit(self._grant.deadline)
        self._throttle.start()
        self._agree(stream.fingerprint)
        self._throttle.start()
        self._begun = self._ended = self._reported = time.monotonic()
        while self._reason is None:
            self._turn = self._next()
            self._meter.begin(time.monotonic())
            yield self._turn
            self._ended = time.monotonic()
            self._meter.end(self._ended)
            self._report_if_due()

    def exchange(self, loss: Tensor) -> None:
        """Sums the gradients of all ranks. ``loss`` is this rank's part of the batch's.

        Raises ``NotFinite`` if the loss is not a number here, which ends the gang.
        """
        own, rank = float(loss), self._gang.rank  # waits for the device
        if not math.isfinite(own):
            raise NotFinite(f"the loss is {own} after {self._done} steps")
        steps = sum(part.last - part.first for part in self._turn.parts) / self._size
        self._throttle.wait(steps)
        waited_s = [self._meter.waited_s if each == rank else 0.0 for each in range(self._gang.world)]
        numbers = _Numbers(own, *self._votes(), waited_s)
        before = time.monotonic()
        summed = _Numbers.of(self._sum(numbers.row()))
        took = time.monotonic() - before
        self._throttle.pause(took)
        self._meter.exchanged(steps, took, summed.waited_s)
        self._count(summed)

    def trained(self, updates: int) -> Trained:
        """What came of it, once ``turns`` has ended on every rank."""
        assert self._reason is not None
        self._read_loss()
        last = [waited * 1e-9 for (waited,) in self._gang.numbers(int(self._meter.waited_s * 1e9))]
        self._meter.settle(last)
        return Trained(
            steps=self._done,
            samples=self._done * self._size,
            updates=updates,
            seconds=self._ended - self._begun,
            steps_per_s=self._meter.steps_per_s(),
            loss=self._loss,
            reason=self._reason,
            update_s=self._meter.update_s(),
            exchange_s=self._meter.exchange_s(),
        )

    def _next(self) -> Turn:
        steps = min(self._per_update, self._grant.quota - self._done)
        ends = (0, *cuts(self._gang.part.shares, steps * self._size, self._size, self._least))
        rank = self._gang.rank
        parts = tuple(pieces(ends[rank], ends[rank + 1], self._size))
        return Turn(position=place_in_schedule(self._grant, self._done, self._begun), steps=steps, parts=parts)

    def _votes(self) -> tuple[float, float]:
        """Whether this rank would do no update after this one: because of the clock, because it is revoked."""
        if (limit := self._revoked()) is not None:
            self._revoked_at = min(self._revoked_at, limit)
        now = time.monotonic()
        samples = self._per_update * self._size * self._gang.part.shares[self._gang.rank] / sum(self._gang.part.shares)
        late, stopped = (
            now >= limit or not self._throttle.fits(limit, samples / self._size)
            for limit in (self._grant.deadline, self._revoked_at)
        )
        return float(late), float(stopped)

    def _count(self, summed: _Numbers) -> None:
        self._done += self._turn.steps
        self._losses += summed.loss
        self._since_report += 1
        self._end(summed.clock, summed.revoked)

    def _end(self, clock: float, revoked: float) -> None:
        if self._done >= self._grant.quota:
            self._reason = "quota"
        elif clock:
            self._reason = "clock"
        elif revoked:
            self._reason = "revoked"

    def _agree(self, data: int) -> None:
        """All ranks are about to do the same, and whether one of them has no time to begin."""
        clock, revoked = self._votes()
        own = (_signature(self._model), data, self._grant.quota, self._per_update)
        rows = self._gang.numbers(*own, int(clock), int(revoked))
        for place, what in enumerate(("model", "first batch", "quota", "batch size")):
            odd = [rank for rank, row in enumerate(rows) if row[place] != rows[0][place]]
            if odd:
                hint = "; Task.batches must depend on its seed alone" if what == "first batch" else ""
                raise GangMismatch(f"rank {odd[0]} of the gang has another {what} than rank 0{hint}")
        self._end(max(row[4] for row in rows), max(row[5] for row in rows))

    def _report_if_due(self) -> None:
        if self._ended - self._reported >= self._grant.report_interval_s:
            self._reported = self._ended
            self._read_loss()
            self._report(Standing(steps=self._done, loss=self._loss, steps_per_s=self._meter.steps_per_s()))

    def _read_loss(self) -> None:
        if self._since_report:
            self._loss, self._losses, self._since_report = self._losses / self._since_report, 0.0, 0


def _signature(model: nn.Module) -> int:
    """Tells apart models whose gradients cannot be added."""
    shapes = [(name, tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in model.named_parameters()]
    return zlib.crc32(repr(shapes).encode())
