"""Gavel's published throughputs, and traces made with its generator (`traces/README.md` names the sources)."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

TYPES = ("V100", "P100", "K80")


@dataclass(frozen=True, slots=True)
class GavelJob:
    """A job of a trace. ``batch_size`` is samples per worker and step; some models have none."""

    number: int
    arrival_s: float
    model: str
    batch_size: int | None
    gang: int
    total_steps: int


@dataclass(frozen=True, slots=True)
class GavelRates:
    """Steps/s of a whole gang by type, packed on servers and spread over them. What is missing cannot run it."""

    packed: Mapping[str, float]
    spread: Mapping[str, float]


@lru_cache(maxsize=8)
def trace(name: str) -> tuple[GavelJob, ...]:
    """The jobs of ``static_480`` or ``poisson_120``, in the order of their arrival."""
    text = resources.files("hadare.tables").joinpath("traces", f"{name}.json").read_text(encoding="utf-8")
    return tuple(
        GavelJob(
            number=job["id"],
            arrival_s=float(job["arrival_time_s"]),
            model=job["model"],
            batch_size=job["batch_size"],
            gang=job["scale_factor"],
            total_steps=job["total_steps"],
        )
        for job in json.loads(text)["jobs"]
    )


def rates_of(job: GavelJob, gang: int | None = None) -> GavelRates:
    """What a gang of the job does, of its own size unless another is asked for. ``KeyError`` if it was not measured."""
    return _throughputs()[job.model, job.batch_size, gang or job.gang]


def measured_gangs(job: GavelJob) -> tuple[int, ...]:
    """The gang sizes at which the job's workload was measured."""
    return tuple(sorted(g for model, batch, g in _throughputs() if (model, batch) == (job.model, job.batch_size)))


@lru_cache(maxsize=1)
def _throughputs() -> Mapping[tuple[str, int | None, int], GavelRates]:
    text = resources.files("hadare.tables").joinpath("gavel_throughputs.csv").read_text(encoding="utf-8")
    return MappingProxyType({_key(row): _rates(row) for row in csv.DictReader(text.splitlines())})


def _key(row: Mapping[str, str]) -> tuple[str, int | None, int]:
    batch = row["batch_size_per_gpu"]
    return row["model"], int(batch) if batch else None, int(row["num_gpus"])


def _rates(row: Mapping[str, str]) -> GavelRates:
    return GavelRates(
        packed=_by_type({t: row[f"{t.lower()}_steps_s"] for t in TYPES}),
        spread=_by_type({t: row[f"{t.lower()}_unconsolidated_steps_s"] for t in TYPES}),
    )


def _by_type(cells: Mapping[str, str]) -> Mapping[str, float]:
    return MappingProxyType({t: float(value) for t, value in cells.items() if value and float(value) > 0})
