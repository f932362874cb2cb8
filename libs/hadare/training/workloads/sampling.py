"""Index batches: endless passes over a data set, each in a new order, all decided by one seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
import torch
from torch import Tensor

Settings = TypeVar("Settings", bound=msgspec.Struct)


def shuffled(count: int, batch_size: int, data_seed: int) -> Iterator[Tensor]:
    """Batches of ``batch_size`` indices below ``count``; what is left of a pass begins the next batch."""
    generator = torch.Generator().manual_seed(data_seed)
    pool = torch.randperm(count, generator=generator)
    while True:
        while len(pool) < batch_size:
            pool = torch.cat([pool, torch.randperm(count, generator=generator)])
        yield pool[:batch_size]
        pool = pool[batch_size:]


def settings(config: dict[str, Any], kind: type[Settings]) -> Settings:
    """A task's config as its typed settings. An unknown or ill-typed key raises an error that names it."""
    return msgspec.convert(config, kind)
