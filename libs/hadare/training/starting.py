"""Version 0 from weights that exist already: a version of another job, or a plain state dict as safetensors.

The optimiser begins anew. The tensors must be exactly the model's: names, shapes and types.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from hadare.model.leases import Failure
from hadare.training.task import WorkloadError
from hadare.training.tensorfile import Reader, WeightsError
from hadare.training.weights import load_state, read_meta


class BadStart(WorkloadError, WeightsError):
    """The weights are not this model's: the job's own fault, wherever it is tried."""


def start_model(path: Path, model: nn.Module) -> None:
    """Puts the file's weights into the model. Raises ``BadStart`` saying what does not fit."""
    try:
        _start_model(path, model)
    except WeightsError as error:
        # The file is named by its hash here, which tells its sender nothing.
        message = f"start_from: {str(error).replace(path.name, 'the file')}"
        raise BadStart(Failure(kind="exception", message=message[:4096])) from error


@torch.no_grad()
def _start_model(path: Path, model: nn.Module) -> None:
    reader = Reader(path)
    if read_meta(reader).spec:
        load_state(path, model, None)
        return
    targets = {
        name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)
    }
    odd = sorted(set(targets) ^ set(reader.specs))
    if odd:
        missing = "the file lacks" if odd[0] in targets else "the model lacks"
        raise WeightsError(f"these are not the model's weights: {missing} {odd[0]} ({len(odd)} names differ)")
    for name, target in targets.items():
        value = reader.tensor(name)
        if value.shape != target.shape or value.dtype != target.dtype:
            has = f"{value.dtype} {tuple(value.shape)}"
            raise WeightsError(f"{name} is {has} in the file, {target.dtype} {tuple(target.shape)} in the model")
        target.copy_(value)
