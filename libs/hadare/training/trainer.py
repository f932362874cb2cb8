"""A task's training loop: its model on one device, for as many steps as it is granted. No messages.

A cluster's forks (``forkchild``) and a run without a cluster (``local``) both go through it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hadare.training.devices import mixed_precision
from hadare.training.granted import (
    Grant,
    Granted,
    NotFinite,
    OnStanding,
    Revoked,
    Standing,
    Trained,
    endless,
    never,
    silent,
)
from hadare.training.task import build_task
from hadare.training.tensorfile import Written
from hadare.training.weights import FileMeta, load_state, save_state

__all__ = ["Grant", "NotFinite", "Standing", "Trained", "Trainer"]


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

    def train(self, grant: Grant, revoked: Revoked = never, report: OnStanding = silent) -> Trained:
        """Steps until the quota, the deadline, or the moment that ``revoked`` has named once (asked between steps).

        Raises ``NotFinite`` if the loss is not a number.
        """
        torch.manual_seed(grant.data_seed)
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        batches = endless(self.task.batches, grant.data_seed)
        # Reading the data set, which the first batch may do, is not training.
        batches = chain([next(batches)], batches)
        granted, accumulate, updates = Granted(grant, self.device, revoked, report), self.options.accumulate, 0
        for position in granted.steps():
            if granted.done % accumulate == 0:
                self.set_position(position)
            granted.note(self.gradient(next(batches), accumulate))
            if (granted.done + 1) % accumulate == 0:
                updates += self.update()
        if rest := granted.done % accumulate:  # the grant ended between two updates
            self._rescale(accumulate / rest)
            updates += self.update()
        return granted.trained(batch_size=self.task.batch_size, updates=updates)

    def evaluate(self) -> dict[str, float]:
        """The task's metrics of the model as it is; leaves no trace in the model or torch's generator."""
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            metrics = self.task.evaluate(self.model)
        self.model.train(was_training)
        return {str(name): float(value) for name, value in metrics.items()}

    def load(self, path: Path) -> None:
        """Puts a version into the model and optimiser. Raises ``WeightsError`` if it is not one of this model."""
        meta = load_state(path, self.model, self.optimizer)
        if self.scaler.is_enabled() and meta.scaler > 0:
            self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": meta.scaler, "_growth_tracker": 0})

    def save(self, path: Path, meta: FileMeta | None = None) -> Written:
        """Writes the model and optimiser as they are."""
        scale = float(self.scaler.get_scale()) if self.scaler.is_enabled() else 0.0
        return save_state(path, self.model, self.optimizer, replace(meta or FileMeta(), scaler=scale))

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

    def _rescale(self, factor: float) -> None:
        """Makes a gradient of fewer batches than planned their mean."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._mixed is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self._mixed[0])
