"""User code as it should not be. Each task breaks in its own way as soon as it trains (or is built)."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hadare.training.task import Task


class Plain(Task[Tensor]):
    """Trains one weight, and calls ``misbehave`` in every step."""

    def build_model(self) -> nn.Module:
        return nn.Linear(2, 1)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def batches(self, data_seed: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(data_seed)
        while True:
            yield torch.randn(self.batch_size, 2, generator=generator)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        self.misbehave(model)
        loss: Tensor = model(batch).square().mean()
        return loss

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {"loss": 0.0}

    def misbehave(self, model: nn.Module) -> None:
        pass


class Raises(Plain):
    def misbehave(self, model: nn.Module) -> None:
        raise LookupError("no such column")


class Leaves(Plain):
    def misbehave(self, model: nn.Module) -> None:
        sys.exit(3)


class Vanishes(Plain):
    def misbehave(self, model: nn.Module) -> None:
        os._exit(7)


class Diverges(Plain):
    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return super().loss(model, batch) * math.nan


class SpoilsItsWeights(Plain):
    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        loss = super().loss(model, batch)
        with torch.no_grad():
            for buffer in model.parameters():
                buffer.fill_(math.inf)
        return loss


class RunsOutOfMemory(Plain):
    def misbehave(self, model: nn.Module) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


class Hangs(Plain):
    def misbehave(self, model: nn.Module) -> None:
        print("hanging")
        while True:
            time.sleep(3600)


class Chatters(Plain):
    def misbehave(self, model: nn.Module) -> None:
        for _ in range(20_000):
            print("x" * 100)


class FailsToBuild(Plain):
    def build_model(self) -> NoReturn:
        raise RuntimeError("no such layer")


class LeavesProcesses(Plain):
    """Starts a program, a daemon that leaves the session, and a forked orphan; prints their pids."""

    def build_model(self) -> nn.Module:
        program = subprocess.Popen(["sleep", "3600"])
        daemon = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        print("left", program.pid, daemon.pid, _orphan())
        return super().build_model()


class LoadsInWorkers(Plain):
    """Reads its data in two worker processes of a DataLoader; prints their pids."""

    def build_model(self) -> nn.Module:
        self._loader = iter(DataLoader(list(range(64)), batch_size=1, num_workers=2, persistent_workers=True))
        next(self._loader)
        print("left", *(worker.pid for worker in self._loader._workers))
        return super().build_model()


_RANK = """
import os, sys, time
open(os.path.join(sys.argv[1], os.environ["RANK"] + ".part"), "w").write(str(os.getpid()))
os.rename(os.path.join(sys.argv[1], os.environ["RANK"] + ".part"), os.path.join(sys.argv[1], os.environ["RANK"]))
time.sleep(3600)
"""


class RunsTorchrun(Plain):
    """Starts torchrun with two ranks, each of which torchrun puts into a session of its own; prints all pids."""

    def build_model(self) -> nn.Module:
        folder = Path(tempfile.mkdtemp())
        script = folder / "rank.py"
        script.write_text(_RANK)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        launcher = subprocess.Popen([*command, str(script), str(folder)])
        while not all((folder / rank).exists() for rank in "01"):
            time.sleep(0.05)
        print("left", launcher.pid, *((folder / rank).read_text() for rank in "01"))
        return super().build_model()


def _orphan() -> int:
    """A process that was forked twice, in a session of its own, whose parent is gone."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        grandchild = os.fork()
        if grandchild == 0:
            while True:
                time.sleep(3600)
        os.write(write, str(grandchild).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return int(os.read(read, 32))


class Writing(Plain):
    """Not hostile: it writes a file beside its model, and one that is too large."""

    def batches(self, data_seed: int) -> Iterator[Tensor]:
        (self.artifacts / "seed.txt").write_text(str(data_seed))
        (self.artifacts / "too_large").write_bytes(bytes(17 * 2**20))
        return super().batches(data_seed)

    def misbehave(self, model: nn.Module) -> None:
        del model
