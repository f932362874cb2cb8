"""A task's training loop: its model on one device, for as many steps as it is granted. No messages.

A cluster's forks (``forkchild``) and a run without a cluster (``local``) both go through it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hadare.training.batchnorm import reestimate
from hadare.training.devices import mixed_precision
from hadare.training.gang import Gang
from hadare.training.gang_exchange import average_buffers
from hadare.training.gang_parts import Part
from hadare.training.gang_training import Lockstep, Stream, rank_seed
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

    def train_in_gang(self, grant: Grant, gang: Gang, revoked: Revoked = never, report: OnStanding = silent) -> Trained:
        """As ``train``, as one rank of a gang; every rank has loaded the same weights.

        Raises ``NotFinite`` if the loss is not a number on this rank, ``GangMismatch`` if the ranks do not train the
        same, ``Indivisible`` if a batch cannot be split.
        """
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        stream = Stream(self.task, grant.data_seed)
        torch.manual_seed(rank_seed(grant.data_seed, gang.rank))
        lockstep = Lockstep(grant, gang, self.task, self.model, revoked, report)
        updates = 0
        with self._scaled_alike(gang):
            for turn in lockstep.turns(self.options.accumulate, stream):
                self.set_position(turn.position)
                lockstep.exchange(self._part_of_gradient(stream.take(turn.steps), turn.parts))
                updates += self.update()
        average_buffers(gang, self.model)
        return lockstep.trained(updates)

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
        if count := self.options.batch_norm_batches:
            # The same batches in every fork: they go on from one model.
            reestimate(self.model, self._forward, islice(endless(self.task.batches, self.task.seed), count))

    def save(self, path: Path, meta: FileMeta | None = None, extra: Mapping[str, Tensor] | None = None) -> int:
        """Writes the model and optimiser as they are, and ``extra`` tensors; says how many bytes."""
        scale = float(self.scaler.get_scale()) if self.scaler.is_enabled() else 0.0
        return save_state(path, self.model, self.optimizer, replace(meta or FileMeta(), scaler=scale), extra)

    def set_position(self, position: float) -> None:
        """Sets the learning rates for ``position`` of the job's budget."""
        factor = self.task.learning_rate_factor(position)
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor

    def gradient(self, batch: Any, divisor: float) -> Tensor:
        """Adds one batch's gradient, divided; returns its loss, still on the device."""
        batch = self.task.to_device(batch, self.device)
        with self._autocast():
            loss = self.task.loss(self.model, batch)
        self.scaler.scale(loss / divisor if divisor != 1 else loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self) -> bool:
        """One optimiser update from the gradients gathered; false if mixed precision skipped it for an overflow."""
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return self.scaler.get_scale() >= before

    def _part_of_gradient(self, batches: Sequence[Any], parts: Iterable[Part]) -> Tensor:
        """Adds what these parts of the batches contribute to the gradient of all; returns what they do to the loss."""
        task, loss = self.task, torch.zeros((), device=self.device)
        whole = sum(task.weight(batch) for batch in batches)
        for part in parts:
            batch = batches[part.batch]
            samples = task.samples(batch)  # the last batch of a pass may be shorter
            first, last = (round(end * samples / task.batch_size) for end in (part.first, part.last))
            piece = batch if (first, last) == (0, samples) else task.split(batch, first, last)
            if first < last and (weight := task.weight(piece)) > 0:
                loss += self.gradient(piece, whole / weight) * (weight / whole)
        return loss

    @contextlib.contextmanager
    def _scaled_alike(self, gang: Gang) -> Iterator[None]:
        """In mixed precision all ranks scale their losses alike if one of them has to, so that all skip as one."""
        own = self.scaler
        if self._mixed is not None and gang.world > 1:
            scale = torch.tensor([own.get_scale() if own.is_enabled() else 0.0], device=gang.device)
            if (common := max(float(row) for row in gang.gather(scale))) > 0:
                self.scaler = torch.amp.GradScaler(self.device.type, init_scale=common)
                self.scaler.scale(torch.zeros((), device=self.device))  # it makes its state in its first use
        try:
            yield
        finally:
            if own.is_enabled():
                own.load_state_dict(self.scaler.state_dict())
            self.scaler = own

    def _forward(self, batch: Any) -> Tensor:
        with self._autocast():
            return self.task.loss(self.model, self.task.to_device(batch, self.device))

    def _rescale(self, factor: float) -> None:
        """Makes a gradient of fewer batches than planned their mean."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._mixed is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self._mixed[0])
