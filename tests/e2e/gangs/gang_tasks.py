"""Tasks for the tests of gangs, importable by forks. ``WHO`` in the environment is the rank; some ranks misbehave."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from hadare.training.task import Task

Rows = tuple[Tensor, Tensor]


def is_rank(number: int) -> bool:
    return os.environ.get("WHO") == str(number)


class Plain(Task[Rows]):
    """A small classifier of noise. Config: ``norm`` (batch normalisation), ``dropout``, ``width``."""

    def build_model(self) -> nn.Module:
        width = self.config.get("width", 16)
        middle: nn.Module = nn.BatchNorm1d(width) if self.config.get("norm") else nn.Identity()
        dropout = nn.Dropout(self.config.get("dropout", 0.0))
        return nn.Sequential(nn.Linear(8, width), middle, nn.Tanh(), dropout, nn.Linear(width, 4))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def batches(self, data_seed: int) -> Iterator[Rows]:
        generator = torch.Generator().manual_seed(data_seed)
        while True:
            rows = torch.randn(self.batch_size, 8, generator=generator)
            yield rows, (rows[:, :4] + rows[:, 4:]).argmax(dim=1)

    def loss(self, model: nn.Module, batch: Rows) -> Tensor:
        rows, classes = batch
        return functional.cross_entropy(model(rows), classes)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {"size": float(sum(p.detach().square().sum() for p in model.parameters()))}


class Adam(Plain):
    """As plain, by AdamW."""

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01)


class Diverging(Plain):
    """The loss of rank 2 is not a number in its third update."""

    seen = 0

    def loss(self, model: nn.Module, batch: Rows) -> Tensor:
        self.seen += is_rank(2)
        return super().loss(model, batch) * (float("nan") if self.seen == 3 else 1.0)


class Raising(Plain):
    """Rank 3 raises."""

    def loss(self, model: nn.Module, batch: Rows) -> Tensor:
        if is_rank(3):
            raise RuntimeError("no such luck")
        return super().loss(model, batch)


class Hanging(Plain):
    """Rank 1 hangs in its first step, as one thread of several."""

    def loss(self, model: nn.Module, batch: Rows) -> Tensor:
        if is_rank(1):
            threading.Event().wait()
        return super().loss(model, batch)


class Freezing(Plain):
    """The whole process of rank 1 stops in its first step."""

    def loss(self, model: nn.Module, batch: Rows) -> Tensor:
        if is_rank(1):
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().loss(model, batch)


class Forking(Plain):
    """Rank 1 forks a process that outlives it, as loaders of data may."""

    forked = False

    def loss(self, model: nn.Module, batch: Rows) -> Tensor:
        if is_rank(1) and not self.forked:
            self.forked = True
            if os.fork() == 0:
                signal.pause()
        return super().loss(model, batch)


class Diverse(Plain):
    """Every rank reads other data."""

    def batches(self, data_seed: int) -> Iterator[Rows]:
        return super().batches(data_seed + int(os.environ.get("WHO", "0")))
