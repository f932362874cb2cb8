"""What the gateway is told at its start."""

from __future__ import annotations

from dataclasses import dataclass

from hadare.runtime.service import ServiceConfig


@dataclass(frozen=True, kw_only=True)
class GatewayConfig(ServiceConfig):
    """``sweep_s``: how often it looks for what a crashed gateway has left unfinished.

    ``keep_code_s``: how long code and weights that users have sent stay while no job names them.
    """

    sweep_s: float = 30.0
    keep_code_s: float = 3600.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sweep_s <= 0 or self.keep_code_s <= 0:
            raise ValueError("sweep_s and keep_code_s must be above 0")
