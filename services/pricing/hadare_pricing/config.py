"""What pricing is told at its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PricingConfig:
    """``horizon_rounds``: T of the price bounds; None: the time that all jobs would take one after another."""

    horizon_rounds: int | None = None
