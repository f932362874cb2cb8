"""How good the first guess of a throughput is: the formula against published rates, one model left out at a time."""

from __future__ import annotations

import csv
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from math import exp, log
from statistics import median

from scipy.stats import spearmanr

from hadare.model.jobs import Measured
from hadare.scheduling.devices import pmi
from hadare.scheduling.throughput import COLD_EXPONENT, observe

_DRAWS = 20

GFLOP_PER_SAMPLE: Mapping[str, float] = {
    "ResNet-18": 3.3,
    "ResNet-50": 24.6,
    "Transformer": 9.0,
    "LM": 1.5,
    "Recommendation": 0.048,
    "CycleGAN": 1500.0,
}
"""Training GFLOP (forward and backward) of one sample, from public model sizes, fixed before anything was compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A published rate: one device of a type, steps/s."""

    model: str
    batch_size: int
    device_type: str
    steps_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessQuality:
    """Relative errors ``|guess/rate − 1|`` and the rank correlation over all cells; ``constant``: fitted on all."""

    cells: int
    median_error: float
    p90_error: float
    spearman: float
    constant: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateQuality:
    """The first guess, and the relative errors after each of the first rounds, in which a rate is measured with
    ``noise`` (relative standard deviation of a round's measurement)."""

    guess: GuessQuality
    noise: float
    rounds: tuple[RoundError, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundError:
    round: int
    median_error: float
    p90_error: float


def measure(noise: float, rounds: int = 3, seed: int = 0) -> EstimateQuality:
    """On Gavel's published table, which is shipped."""
    table = resources.files("hadare.tables").joinpath("traces", "throughput_gavel.csv")
    cells = cells_of(list(csv.DictReader(table.read_text(encoding="utf-8").splitlines())))
    errors = _learnt(cells, noise, rounds, random.Random(seed))
    found = tuple(
        RoundError(round=number, median_error=median(seen), p90_error=sorted(seen)[int(0.9 * len(seen))])
        for number, seen in enumerate(errors, start=1)
    )
    return EstimateQuality(guess=leave_one_out(cells), noise=noise, rounds=found)


def _learnt(cells: Sequence[Cell], noise: float, rounds: int, draw: random.Random) -> list[list[float]]:
    """For each round the errors of what is known after it, over all cells and a few draws of the noise."""
    errors: list[list[float]] = [[] for _ in range(rounds)]
    for cell in cells:
        for _ in range(_DRAWS):
            known: Measured | None = None
            for seen in errors:
                known = observe(known, cell.steps_per_s * max(0.01, draw.gauss(1.0, noise)))
                seen.append(abs(known.steps_per_s / cell.steps_per_s - 1))
    return errors


def cells_of(rows: Sequence[Mapping[str, str]]) -> list[Cell]:
    """The one-GPU rows of Gavel's table whose model has a known complexity."""
    return [
        Cell(
            model=row["model"],
            batch_size=int(row["batch_size_per_gpu"] or 1),
            device_type=name,
            steps_per_s=float(row[f"{name.lower()}_steps_s"]),
        )
        for row in rows
        if row["model"] in GFLOP_PER_SAMPLE and row["num_gpus"] == "1"
        for name in ("V100", "P100", "K80")
        if row[f"{name.lower()}_steps_s"]
    ]


def leave_one_out(cells: Sequence[Cell]) -> GuessQuality:
    """Each model's cells guessed with a constant that was fitted to the others."""
    guesses = []
    for cell in cells:
        others = [other for other in cells if other.model != cell.model]
        guesses.append(_constant(others) * _form(cell))
    errors = sorted(abs(guess / cell.steps_per_s - 1) for guess, cell in zip(guesses, cells, strict=True))
    rank = spearmanr(guesses, [cell.steps_per_s for cell in cells]).statistic
    return GuessQuality(
        cells=len(cells),
        median_error=median(errors),
        p90_error=errors[int(0.9 * len(errors))],
        spearman=float(rank),
        constant=_constant(cells),
    )


def _form(cell: Cell) -> float:
    """The closed form without its constant."""
    return float(pmi(cell.device_type) / (cell.batch_size * GFLOP_PER_SAMPLE[cell.model]) ** COLD_EXPONENT)


def _constant(cells: Sequence[Cell]) -> float:
    """The median over the cells: a few that no formula can know (host-bound models) do not move it."""
    return exp(median(log(cell.steps_per_s / _form(cell)) for cell in cells))
