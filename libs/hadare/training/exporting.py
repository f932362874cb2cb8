"""Weights files for the world outside: a plain state dict, and how far apart two versions are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from hadare.forking.consolidation import MODEL_PREFIX
from hadare.training.tensorfile import Reader, WeightsError
from hadare.training.weights import EMA_PREFIX, FileMeta, read_meta

# Of an evaluation: 1 if the average of versions is better than the version by the task's own metric, else 0.
AVERAGE_IS_BETTER = f"{EMA_PREFIX}is_better"

Form = Literal["safetensors", "torch"]


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """``change`` is the 2-norm of new − old, ``norm`` of the old; not finite if a value is not."""

    name: str
    dtype: str
    elements: int
    norm: float
    change: float

    @property
    def relative(self) -> float:
        """``change / norm``; 0 for no change, infinite for a change from nothing."""
        if self.norm:
            return self.change / self.norm
        return math.inf if self.change else 0.0


def state_dict_of(path: Path, *, ema: bool = False) -> dict[str, Tensor]:
    """The model's tensors as ``model.load_state_dict`` takes them, tied ones under each of their names.

    ``ema``: the average of the job's versions instead. Raises ``WeightsError`` if the job keeps none.
    """
    reader = Reader(path)
    meta = read_meta(reader)
    state = {name.removeprefix(MODEL_PREFIX): _tensor(reader, meta, name) for name in _names(reader)}
    if ema:
        state.update(_averages(reader, state))
    tied = {other.removeprefix(MODEL_PREFIX): first for other, first in meta.aliases.items()}
    return {**state, **{other: state[first.removeprefix(MODEL_PREFIX)] for other, first in tied.items()}}


def keeps_average(path: Path) -> bool:
    """Whether a version carries an average of its job's versions. Raises ``WeightsError``."""
    return any(name.startswith(EMA_PREFIX) for name in Reader(path).specs)


def _averages(reader: Reader, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is averaged over the versions, in the model's own types; integers never are."""
    kept = [name for name in reader.specs if name.startswith(EMA_PREFIX)]
    if not kept:
        raise WeightsError("this job keeps no average of its versions: set consolidation.ema_half_life")
    averages = {name.removeprefix(EMA_PREFIX): reader.tensor(name) for name in kept}
    return {name: _as(value, state[name]) for name, value in averages.items()}


def _as(value: Tensor, like: Tensor) -> Tensor:
    whole = torch.view_as_complex(value) if like.dtype == torch.complex128 else value
    return whole.to(like.dtype)


def export(source: Path, target: Path, form: Form, *, ema: bool = False) -> int:
    """Writes the state dict, by itself or (``torch``) as ``torch.load(weights_only=True)`` reads it; says of how many
    tensors. Optimiser states stay behind. Raises ``WeightsError``."""
    state = state_dict_of(source, ema=ema)
    part = target.with_name(f".{target.name}.part")
    try:
        if form == "torch":
            torch.save(state, part)
        else:
            save_file({name: tensor.clone().contiguous() for name, tensor in state.items()}, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return len(state)


def diff(old: Path, new: Path) -> list[TensorDiff]:
    """How far each tensor of the model has moved, by name. Raises ``WeightsError`` if they are of different models."""
    return list(_diffs(state_dict_of(old), state_dict_of(new)))


def _diffs(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> Iterator[TensorDiff]:
    if odd := sorted(set(old) ^ set(new)):
        raise WeightsError(f"these are not versions of one model: only one of them has {odd[0]}")
    for name, before in sorted(old.items()):
        after = new[name]
        if before.shape != after.shape:
            raise WeightsError(f"these are not versions of one model: the shapes of {name} differ")
        first, second = _wide(before), _wide(after)
        yield TensorDiff(
            name=name,
            dtype=str(before.dtype).removeprefix("torch."),
            elements=before.numel(),
            norm=float(torch.linalg.vector_norm(first)),
            change=float(torch.linalg.vector_norm(second - first)),
        )


def _names(reader: Reader) -> list[str]:
    """A file of another maker has no prefix, and nothing but a model."""
    own = [name for name in reader.specs if name.startswith(MODEL_PREFIX)]
    return sorted(own or reader.specs)


def _tensor(reader: Reader, meta: FileMeta, name: str) -> Tensor:
    value = reader.tensor(name)
    return torch.view_as_complex(value) if name in meta.wide_complex else value


def _wide(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    return flat.to(torch.complex128 if flat.is_complex() else torch.float64)
