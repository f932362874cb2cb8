"""Weights files and models for the tests of the training side: every test states only what matters to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from hadare.forking.consolidation import MODEL_PREFIX, Scalar
from hadare.training.averaging import Consolidation, ForkFile, Options, consolidate
from hadare.training.tensorfile import NAMES, Reader, TensorSpec, Writer, layout
from hadare.training.weights import FileMeta, meta_document, spec_hash


def a_file(
    path: Path,
    tensors: Mapping[str, Tensor],
    *,
    aliases: Mapping[str, str] | None = None,
    buffers: tuple[str, ...] = (),
    scalars: Mapping[str, Scalar] | None = None,
    base: str = "",
    scaler: float = 0.0,
) -> Path:
    """A weights file of exactly these tensors, which are named in full (``model.w``, ``optim.w.step``)."""
    specs = {name: TensorSpec(NAMES[t.dtype], tuple(t.shape)) for name, t in tensors.items()}
    meta = FileMeta(
        spec=spec_hash(specs, aliases or {}),
        aliases=dict(aliases or {}),
        buffers=buffers,
        scalars=dict(scalars or {}),
        base=base,
        scaler=scaler,
    )
    with Writer(path, specs, meta_document(meta)) as writer:
        for name in layout(specs):
            writer.append(tensors[name])
    return path


class Round:
    """Forks of one base, and what they are consolidated into. Tensors are named without ``model.``."""

    def __init__(self, folder: Path, base: Mapping[str, Tensor], *, buffers: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self._buffers = tuple(MODEL_PREFIX + name for name in buffers)
        self.base = a_file(folder / "base", _full(base), buffers=self._buffers)
        self.files: list[ForkFile] = []
        self.out = folder / "out"

    def fork(self, steps: int, tensors: Mapping[str, Tensor], *, base: str = "", scaler: float = 0.0) -> Round:
        number = len(self.files)
        path = self._folder / f"fork{number}"
        a_file(path, _full(tensors), buffers=self._buffers, base=base, scaler=scaler)
        self.files.append(ForkFile(fork=number, path=path, steps=steps))
        return self

    def consolidate(self, options: Options | None = None) -> Consolidation:
        return consolidate(self.base, self.files, self.out, options)

    def tensor(self, name: str) -> Tensor:
        """Of the version that was made."""
        return Reader(self.out).tensor(name if name.startswith("optim.") else MODEL_PREFIX + name).clone()


def _full(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name if name.startswith("optim.") else MODEL_PREFIX + name: t for name, t in tensors.items()}


class Tied(nn.Module):
    """An embedding whose weight is also the output layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, codes: Tensor) -> Tensor:
        scores: Tensor = self.head(self.embed(codes))
        return scores


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, steps: int = 3) -> None:
    """A few steps on the mean square of the model's output, so that every state of the optimiser exists."""
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
