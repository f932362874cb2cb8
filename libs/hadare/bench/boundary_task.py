"""The workload of ``hadare bench round``: a perceptron of a given size on noise. Needs torch; runs on the agents."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import torch
from torch import Tensor, nn

from hadare.training.task import Task

INPUTS = 64


class Mlp(Task[Tensor]):
    """Two equal hidden layers with about ``params`` parameters in all; ``optimizer``: ``sgd`` or ``adamw``.

    ``frozen``: the layer between them, which has nearly all of the parameters, stays as it is."""

    def build_model(self) -> nn.Module:
        width = width_for(int(self.config["params"]))
        middle = nn.Linear(width, width)
        middle.requires_grad_(not self.config.get("frozen", False))
        return nn.Sequential(nn.Linear(INPUTS, width), nn.ReLU(), middle, nn.ReLU(), nn.Linear(width, 1))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if self.config["optimizer"] == "adamw":
            return torch.optim.AdamW(trained, lr=1e-4)
        return torch.optim.SGD(trained, lr=1e-3)

    def batches(self, data_seed: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(data_seed)
        while True:
            yield torch.randn(self.batch_size, INPUTS, generator=generator)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = (model(batch).squeeze(1) - batch.mean(dim=1)).square().mean()
        return loss

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        del model
        return {}


def width_for(params: int) -> int:
    """The hidden width w with w² + (INPUTS + 3)·w + 1 nearest to ``params``."""
    b = INPUTS + 3
    return max(1, round((sqrt(b * b + 4 * (params - 1)) - b) / 2))
