"""The loop hook: what a script that keeps its own training loop is given. See docs/tutorials/port-a-script.md.

A script is a function of one argument, named ``pkg.module:function`` as a job's workload. It is called from the top for
each lease, so that nothing but the model and the optimiser carries over: the next lease may be on another node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hadare.model.errors import HadareError
from hadare.training.artifacts import artifacts
from hadare.training.granted import Grant, Granted, OnStanding, Revoked, endless, never, silent
from hadare.training.task import move
from hadare.training.weights import load_state

__all__ = ["Run", "Script", "ScriptFault"]

Batch = TypeVar("Batch")


class ScriptFault(HadareError):
    """The script does not use its ``Run`` as agreed."""


class NothingToDo(BaseException):
    """Leaves a script that has no step to do; not an ``Exception``, so that scripts do not catch it by accident."""


@dataclass(kw_only=True)
class Begun:
    """What the script handed over."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    evaluate: Callable[[], Mapping[str, float]] | None
    schedule: Callable[[float], float] | None
    rates: list[float]
    updates: int = 0


@dataclass(frozen=True, kw_only=True)
class Use:
    """What one call of a script is for: ``grant`` is ``None`` if it only has to build and load."""

    grant: Grant | None = None
    base: Path | None = None
    revoked: Revoked = never
    report: OnStanding = silent


class Run:
    """One call of a script. Use it in this order: ``begin``, then ``steps``, in them ``report``.

    ``config``, ``batch_size`` and ``seed`` are the job's; ``device`` is where to compute.
    """

    def __init__(
        self, config: Mapping[str, Any], batch_size: int, seed: int, device: torch.device, use: Use | None = None
    ) -> None:
        self.config = dict(config)
        self.batch_size = batch_size
        self.seed = seed
        self.device = device
        self._use = use or Use()
        self.begun: Begun | None = None
        self.granted: Granted | None = None
        self.position = self._use.grant.schedule_from if self._use.grant else 0.0
        """Where the job stands in its budget, from 0 to 1. Brought up to date before each step."""

    @property
    def data_seed(self) -> int:
        """Decides the order of this lease's data; no two leases of a job have the same."""
        return self._use.grant.data_seed if self._use.grant else 0

    @property
    def artifacts(self) -> Path:
        """A folder for files to keep beside the model: pictures, vocabularies, … At most 256, 16 MiB together."""
        return artifacts()

    @property
    def step(self) -> int:
        """Steps done in this lease."""
        return self.granted.done if self.granted else 0

    def begin(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        evaluate: Callable[[], Mapping[str, float]] | None = None,
        schedule: Callable[[float], float] | None = None,
    ) -> None:
        """Moves the model to ``device`` and puts the job's weights and optimiser state into the two.

        ``evaluate`` returns the metrics of the model as it is then; it is called with the model in evaluation mode and
        gradients off. ``schedule`` gives the factor of the learning rates at a position (0…1) of the job's budget; do
        not step a scheduler of your own. Raises ``WeightsError`` if the job's version is not one of this model.
        """
        if self.begun is not None:
            raise ScriptFault("begin() was called twice")
        model.to(self.device)
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        if self._use.base is not None:
            load_state(self._use.base, model, optimizer)
        self.begun = Begun(model=model, optimizer=optimizer, evaluate=evaluate, schedule=schedule, rates=rates)
        optimizer.register_step_post_hook(self._count_update)

    def steps(self, batches: Iterable[Batch] | Callable[[int], Iterable[Batch]]) -> Iterator[Batch]:
        """The batches that this lease allows, one a step, on ``device``. Go through all of them.

        ``batches`` is something to iterate, such as a ``DataLoader`` that shuffles (torch's generator is seeded for
        it), or a function that takes ``data_seed`` and returns one. What ends is begun again in a new order. Never
        the same order each time: forks that see the same data gain nothing from each other.
        """
        if self.begun is None:
            raise ScriptFault("steps() was called before begin()")
        if self.granted is not None:
            raise ScriptFault("steps() was called twice")
        grant = self._use.grant
        if grant is None:
            raise NothingToDo
        torch.manual_seed(grant.data_seed)
        self.begun.model.train()
        self.granted = Granted(grant, self.device, self._use.revoked, self._use.report)
        return self._steps(self.begun, self.granted, endless(_maker(batches), grant.data_seed))

    def report(self, loss: Tensor | float) -> None:
        """The loss of this step; users see its mean. Does not wait for the device."""
        if self.granted is None:
            raise ScriptFault("report() was called outside steps()")
        self.granted.note(loss.detach() if isinstance(loss, Tensor) else torch.tensor(loss, device=self.device))

    def _steps(self, begun: Begun, granted: Granted, stream: Iterator[Batch]) -> Iterator[Batch]:
        # Reading the data set, which the first batch may do, is not training.
        stream = chain([next(stream)], stream)
        for position in granted.steps():
            self.position = position
            if begun.schedule is not None:
                factor = begun.schedule(position)
                for group, rate in zip(begun.optimizer.param_groups, begun.rates, strict=True):
                    group["lr"] = rate * factor
            yield move(next(stream), self.device)
        if granted.done == 0:
            raise NothingToDo

    def _count_update(self, *_: Any) -> None:
        assert self.begun is not None
        self.begun.updates += 1


Script = Callable[[Run], None]


def _maker(batches: Iterable[Batch] | Callable[[int], Iterable[Batch]]) -> Callable[[int], Iterable[Batch]]:
    if isinstance(batches, Iterable):
        return lambda _seed: batches
    return batches
