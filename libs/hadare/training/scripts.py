"""Runs a script (``sdk``) as a fork's worker: one call of it for each lease, between a load and a save of its state."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hadare.training.granted import Grant, OnStanding, Revoked, Trained, never, silent
from hadare.training.sdk import Begun, NothingToDo, Run, Script, ScriptFault, Use
from hadare.training.weights import FileMeta, save_state


class ScriptWorker:
    """A script and the model that its last call left behind."""

    def __init__(
        self, script: Script, config: Mapping[str, Any], batch_size: int, seed: int, device: str = "cpu"
    ) -> None:
        self._script = script
        self._config = config
        self._batch_size = batch_size
        self._seed = seed
        self._base: Path | None = None
        self._held: Begun | None = None
        self.device = torch.device(device)

    @property
    def model(self) -> nn.Module:
        """As the script built it, or as the last lease left it."""
        return self._begun().model

    def load(self, path: Path) -> None:
        """The next call of the script begins from this version."""
        self._base, self._held = path, None

    def save(self, path: Path, meta: FileMeta | None = None, extra: Mapping[str, Tensor] | None = None) -> int:
        """Writes the model and optimiser as they are, and ``extra`` tensors; says how many bytes."""
        begun = self._begun()
        return save_state(path, begun.model, begun.optimizer, meta, extra)

    def train(self, grant: Grant, revoked: Revoked = never, report: OnStanding = silent) -> Trained:
        """One call of the script. Raises ``ScriptFault`` if it leaves its loop before its lease ends."""
        # A version that was loaded is read again: two models at once may be more than the device holds.
        before, self._held = (self._held if self._base is None else None), None
        run = self._run(Use(grant=grant, base=self._base, revoked=revoked, report=report), before)
        self._base = None
        granted = run.granted
        if granted is None:
            raise ScriptFault("the script never called steps()")
        if granted.reason is None:
            raise ScriptFault(f"the script left its loop after {granted.done} steps, before its lease ended")
        updates = run.begun.updates if run.begun else 0
        return granted.trained(batch_size=self._batch_size, updates=updates)

    def evaluate(self) -> dict[str, float]:
        """What the script's ``evaluate`` says; nothing if it has none. Leaves no trace in torch's generator."""
        begun = self._begun()
        if begun.evaluate is None:
            return {}
        was_training = begun.model.training
        begun.model.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            metrics = begun.evaluate()
        begun.model.train(was_training)
        return {str(name): float(value) for name, value in metrics.items()}

    def _begun(self) -> Begun:
        if self._held is None:
            self._run(Use(base=self._base), None)
        assert self._held is not None
        return self._held

    def _run(self, use: Use, before: Begun | None) -> Run:
        torch.manual_seed(self._seed)
        run = _Continued(before, self._config, self._batch_size, self._seed, self.device, use)
        with contextlib.suppress(NothingToDo):
            self._script(run)
        if run.begun is None:
            raise ScriptFault("the script never called begin()")
        self._held = run.begun
        return run


class _Continued(Run):
    """A run that takes its state from the call before, where no file has been loaded in between."""

    def __init__(self, before: Begun | None, *job: Any) -> None:
        super().__init__(*job)
        self._before = before

    def begin(self, model: nn.Module, optimizer: torch.optim.Optimizer, **more: Any) -> None:
        super().begin(model, optimizer, **more)
        if self._before is not None:
            model.load_state_dict(self._before.model.state_dict())
            groups = optimizer.state_dict()["param_groups"]
            state = copy.deepcopy(self._before.optimizer.state_dict()["state"])
            optimizer.load_state_dict({"state": state, "param_groups": groups})
            self._before = None
