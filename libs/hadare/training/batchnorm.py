"""Statistics of BatchNorm layers, measured anew for the weights of a version.

A version's running statistics are the forks' averaged, as good as never wrong (docs/explanation/consolidation.md); what
they miss is how far the forks' means are apart. A few batches through the averaged weights make up for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Batch = TypeVar("Batch")


@torch.no_grad()
def reestimate(model: nn.Module, forward: Callable[[Batch], object], batches: Iterable[Batch]) -> int:
    """Replaces the running statistics of every BatchNorm layer by their mean over ``batches``; says of how many layers.

    Counters, momenta, the model's mode and torch's generator are afterwards as they were.
    """
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if not layers:
        return 0
    before = [(layer.momentum, _count(layer)) for layer in layers]
    was_training = model.training
    with torch.random.fork_rng(devices=[]):
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # each batch counts the same
        model.train()
        for batch in batches:
            forward(batch)
    model.train(was_training)
    for layer, (momentum, count) in zip(layers, before, strict=True):
        layer.momentum = momentum
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.fill_(count)
    return len(layers)


def _count(layer: _BatchNorm) -> int:
    return 0 if layer.num_batches_tracked is None else int(layer.num_batches_tracked)
