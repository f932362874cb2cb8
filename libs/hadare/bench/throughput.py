"""How good the first guess of a throughput is: the formula against published rates, one model left out at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median

from scipy.stats import spearmanr

from hadare.scheduling.devices import pmi
from hadare.scheduling.throughput import COLD_EXPONENT

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
