"""Image classification: hand-written digits, 1,797 images of 8×8, as scikit-learn ships them."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional

from hadare.training.task import Task, package_file
from hadare.training.workloads.sampling import settings, shuffled

Images = tuple[Tensor, Tensor]


class DigitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hidden`` units in each of ``layers`` layers, with batch normalisation if asked; SGD with momentum."""

    hidden: Annotated[int, Meta(ge=1, le=16384)] = 64
    layers: Annotated[int, Meta(ge=1, le=64)] = 1
    lr: Annotated[float, Meta(gt=0)] = 0.1
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    batch_norm: bool = True


class Digits(Task[Images]):
    """A multi-layer perceptron on the digits; ``accuracy`` on every fourth image, which training never sees."""

    metric: ClassVar[str] = "accuracy"
    better: ClassVar[Literal["higher", "lower"]] = "higher"

    def __init__(self, config: Mapping[str, Any], batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.settings = settings(self.config, DigitsConfig)

    def build_model(self) -> nn.Module:
        s = self.settings
        sizes = [64, *[s.hidden] * s.layers]
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(sizes):
            layers.append(nn.Linear(fan_in, fan_out))
            layers.extend([nn.BatchNorm1d(fan_out)] if s.batch_norm else [])
            layers.append(nn.ReLU())
        return nn.Sequential(*layers, nn.Linear(sizes[-1], 10))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        s = self.settings
        return torch.optim.SGD(model.parameters(), lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay)

    def batches(self, data_seed: int) -> Iterator[Images]:
        images, labels = self._train
        for index in shuffled(len(images), self.batch_size, data_seed):
            yield images[index], labels[index]

    def loss(self, model: nn.Module, batch: Images) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        images, labels = (t.to(device) for t in self._test)
        scores = model(images)
        right = (scores.argmax(dim=1) == labels).double().mean()
        return {"accuracy": float(right), "loss": float(functional.cross_entropy(scores, labels))}

    @cached_property
    def _data(self) -> Images:
        with gzip.open(package_file("sklearn", "datasets/data/digits.csv.gz"), "rt") as rows:
            table = np.loadtxt(rows, delimiter=",", dtype=np.float32)
        return torch.from_numpy(table[:, :-1] / 16.0), torch.from_numpy(table[:, -1]).long()

    @cached_property
    def _train(self) -> Images:
        images, labels = self._data
        keep = torch.arange(len(images)) % 4 != 0
        return images[keep], labels[keep]

    @cached_property
    def _test(self) -> Images:
        images, labels = self._data
        return images[::4], labels[::4]
