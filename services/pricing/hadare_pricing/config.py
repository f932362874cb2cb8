"""What pricing is told at its start."""

from __future__ import annotations

from dataclasses import dataclass

from hadare.runtime.service import ServiceConfig


@dataclass(frozen=True, kw_only=True)
class PricingConfig(ServiceConfig):
    """``horizon_rounds``: T of the price bounds; None: the time that all jobs would take one after another."""

    horizon_rounds: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.horizon_rounds is not None and self.horizon_rounds < 1:
            raise ValueError("horizon_rounds must be at least 1")
