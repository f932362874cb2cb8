"""The one entry to user code: whatever a job's ``workload`` names, a ``Task`` class or a script's function."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hadare.training.granted import Grant, NotFinite, OnStanding, Revoked, Trained, never, silent
from hadare.training.scripts import ScriptWorker
from hadare.training.task import Task, load_workload
from hadare.training.trainer import Trainer
from hadare.training.weights import FileMeta


class Worker(Protocol):
    """A model that can be trained, evaluated, loaded and saved: one in each fork, warm from one lease to the next."""

    @property
    def device(self) -> torch.device: ...

    @property
    def model(self) -> nn.Module: ...

    def load(self, path: Path) -> None: ...

    def save(self, path: Path, meta: FileMeta | None = None, extra: Mapping[str, Tensor] | None = None) -> int: ...

    def train(self, grant: Grant, revoked: Revoked = never, report: OnStanding = silent) -> Trained: ...

    def evaluate(self) -> dict[str, float]: ...


def build_worker(workload: str, config: Mapping[str, Any], batch_size: int, seed: int, device: str = "cpu") -> Worker:
    """Raises ``WorkloadError`` if workload or data are not here."""
    found = load_workload(workload)
    if isinstance(found, type) and issubclass(found, Task):
        return Trainer(workload, config, batch_size, seed, device)
    return ScriptWorker(found, config, batch_size, seed, device)


def check_finite(model: nn.Module) -> None:
    """Raises ``NotFinite`` naming the tensor that is not."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NotFinite(f"{name} holds values that are not finite")
