"""What is known of the models of the traces: work a sample, size, and how long a process takes to be ready.

Sizes and GFLOP are computed from the published architectures; restart times follow those that Sia (SOSP'23) and Gavel
(OSDI'20) report for checkpoint and restore. They matter only where costs are switched on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """``gflop_per_sample``: forward and backward. ``megabytes``: of the weights. ``restart_s``: see the module."""

    gflop_per_sample: float
    megabytes: int
    restart_s: float


MODELS: dict[str, ModelFacts] = {
    "ResNet-18": ModelFacts(3.3, 45, 30.0),
    "ResNet-50": ModelFacts(24.6, 102, 60.0),
    "Transformer": ModelFacts(9.0, 216, 30.0),
    "LM": ModelFacts(1.5, 57, 30.0),
    "Recommendation": ModelFacts(0.048, 97, 30.0),
    "CycleGAN": ModelFacts(1500.0, 113, 60.0),
}

UNKNOWN = ModelFacts(1.0, 100, 30.0)


def model_of(name: str) -> ModelFacts:
    """The facts of a model; plain middle values if it is unknown."""
    return MODELS.get(name, UNKNOWN)
