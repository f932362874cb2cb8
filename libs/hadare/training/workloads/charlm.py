"""Language modelling: a neural n-gram model of characters on the help topics that Python itself ships.

The text differs a little between minor versions of Python: compare numbers within one version only.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional

from hadare.training.task import Task, missing_data
from hadare.training.workloads.sampling import settings, shuffled

Windows = tuple[Tensor, Tensor]

_RAREST = 20
_BLOCK = 2048
_TEST_SAMPLES = 4096


class CharLMConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``context`` characters, each embedded in ``embedding`` numbers, through ``hidden`` units; AdamW."""

    context: Annotated[int, Meta(ge=1, le=512)] = 6
    embedding: Annotated[int, Meta(ge=1, le=1024)] = 16
    hidden: Annotated[int, Meta(ge=1, le=16384)] = 96
    lr: Annotated[float, Meta(gt=0)] = 1.4e-2
    weight_decay: Annotated[float, Meta(ge=0)] = 1e-2


class NGram(nn.Module):
    """Embeds the characters before one and predicts it."""

    def __init__(self, vocabulary: int, s: CharLMConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, s.embedding)
        self.mix = nn.Linear(s.context * s.embedding, s.hidden)
        self.head = nn.Linear(s.hidden, vocabulary)

    def forward(self, before: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.relu(self.mix(self.embed(before).flatten(1))))
        return scores


class CharLM(Task[Windows]):
    """Predicts the next character; ``cross_entropy`` (nats a character) and ``perplexity`` on held-out blocks."""

    metric: ClassVar[str] = "cross_entropy"
    better: ClassVar[Literal["higher", "lower"]] = "lower"

    def __init__(self, config: Mapping[str, Any], batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.settings = settings(self.config, CharLMConfig)

    def build_model(self) -> nn.Module:
        return NGram(self._text[1], self.settings)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.settings.lr, weight_decay=self.settings.weight_decay)

    def batches(self, data_seed: int) -> Iterator[Windows]:
        places = self._places[0]
        for index in shuffled(len(places), self.batch_size, data_seed):
            yield self._windows(places[index])

    def loss(self, model: nn.Module, batch: Windows) -> Tensor:
        before, following = batch
        return functional.cross_entropy(model(before), following)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        before, following = (t.to(device) for t in self._windows(self._places[1]))
        nats = float(functional.cross_entropy(model(before), following))
        return {"cross_entropy": nats, "perplexity": math.exp(min(nats, 700.0))}

    def _windows(self, places: Tensor) -> Windows:
        offsets = torch.arange(self.settings.context)
        codes = self._text[0]
        return codes[places[:, None] + offsets], codes[places + self.settings.context]

    @cached_property
    def _text(self) -> tuple[Tensor, int]:
        """The text as codes, and how many codes there are; rare characters share code 0."""
        try:
            topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
        except ImportError as error:
            raise missing_data(f"pydoc_data.topics is not part of this Python: {error}") from error
        text = "\n".join(topics[name] for name in sorted(topics))
        counts: dict[str, int] = {}
        for character in text:
            counts[character] = counts.get(character, 0) + 1
        common = sorted(c for c, n in counts.items() if n >= _RAREST)
        codes = {c: i + 1 for i, c in enumerate(common)}
        return torch.tensor([codes.get(c, 0) for c in text]), len(common) + 1

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """Where windows begin: those of training, and those of the test, which lie in every sixteenth block."""
        starts = torch.arange(len(self._text[0]) - self.settings.context)
        first, last = starts // _BLOCK, (starts + self.settings.context) // _BLOCK
        held_out = (first % 16 == 15) & (first == last)
        apart = (first % 16 != 15) & (last % 16 != 15)
        test = starts[held_out]
        return starts[apart], test[:: max(1, len(test) // _TEST_SAMPLES)][:_TEST_SAMPLES]
