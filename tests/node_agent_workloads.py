"""Workloads for the tests of the node agent, importable by its forks; some of them misbehave."""

from __future__ import annotations

import ctypes
import math
import os
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


class Leaving(Tiny):
    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        sys.exit(3)


class Vanishing(Tiny):
    """Ends its process without a word while it is made."""

    def build_model(self) -> nn.Module:
        os._exit(0)


class Unspeakable(Tiny):
    """Raises what cannot be told."""

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        class Mute(Exception):
            def __str__(self) -> str:
                raise KeyError("no text")

        raise Mute


class Chattering(Tiny):
    """Prints without an end, as long as it trains."""

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        for _ in range(1000):
            print("x" * 200)
        return super().loss(model, batch)


class Multiplying(Tiny):
    """A fork bomb that goes off slowly and ends by itself: each of its processes has left the session."""

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        for _ in range(60):
            subprocess.Popen(["sleep", "60"], start_new_session=True)
        time.sleep(60)
        return super().loss(model, batch)


class Swelling(Tiny):
    """Takes 50 MiB more in each step, up to 1 GiB."""

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        self.hoard: list[Tensor] = [*getattr(self, "hoard", []), torch.ones(50 * 2**18)][:20]
        return super().loss(model, batch)


class Clinging(Tiny):
    """Hangs in a call into C that does not let go of the interpreter's lock: no signal handler of Python would run."""

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        ctypes.PyDLL(None).sleep(600)
        return super().loss(model, batch)


class Spoiling(Tiny):
    """Hands back weights that are not numbers."""

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        result = super().loss(model, batch)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(math.nan)
        return result
