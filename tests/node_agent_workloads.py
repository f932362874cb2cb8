"""Workloads for the tests of the node agent, importable by its forks; some of them misbehave."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from hadare.training.task import Task


class Tiny(Task[Tensor]):
    """Learns the mean of noise."""

    def build_model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def batches(self, data_seed: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(data_seed)
        while True:
            yield torch.randn(self.batch_size, 4, generator=generator)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        result: Tensor = model(batch).square().mean()
        return result

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        weight = next(model.parameters())
        return {"size": float(weight.detach().square().sum())}


class Littering(Tiny):
    """Starts a process in a session of its own, as a badly behaved data loader might."""

    def build_model(self) -> nn.Module:
        sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
        subprocess.Popen(sleeper, start_new_session=True)
        return super().build_model()


class Sleeping(Tiny):
    """Hangs in its first step."""

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        time.sleep(600)
        return super().loss(model, batch)


class Raising(Tiny):
    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        raise RuntimeError("no such luck")
