"""What the allocator is told at its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorConfig:
    """Times in seconds. ``grace_s`` None: a twentieth of the round, at least 2 s and at most 60 s."""

    round_s: float = 360.0
    policy: str = "hadare"
    grace_s: float | None = None
    settle_s: float = 30.0
    suspect_s: float = 4.0
    lost_s: float = 12.0

    @property
    def grace(self) -> float:
        return self.grace_s if self.grace_s is not None else min(60.0, max(2.0, self.round_s / 20))
