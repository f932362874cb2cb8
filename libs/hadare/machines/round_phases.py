"""The phases of a round, and the times that bound them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    IDLE = "idle"
    PRICING = "pricing"
    PLACING = "placing"
    STORING = "storing"
    OPENING = "opening"
    RUNNING = "running"
    CLOSING = "closing"
    SETTLING = "settling"


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """Times in seconds. ``grace_s``: how long after a lease's end its result may come in.

    ``settle_s``: how long a closed round waits for versions that are still being made, before it goes on without
    those jobs. ``keep_rounds``: how many plans are kept for users to look at.
    """

    epoch: int
    round_s: float = 360.0
    policy: str = "hadare"
    grace_s: float = 10.0
    settle_s: float = 30.0
    retry_s: float = 1.0
    keep_rounds: int = 500
