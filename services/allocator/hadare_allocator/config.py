"""What the allocator is told at its start."""

from __future__ import annotations

from dataclasses import dataclass

from hadare.runtime.service import ServiceConfig


@dataclass(frozen=True, kw_only=True)
class AllocatorConfig(ServiceConfig):
    """Times in seconds. ``grace_s`` None: a twentieth of the round, at least 2 s and at most 60 s.

    ``settle_s``: how long a round that is closed waits for versions that are still being made. ``suspect_s`` and
    ``lost_s``: silence after which a node gets no forks, and after which it counts as lost. ``boundary_s``: what a
    round's boundary takes, by which a round may be worth ending early, with a job; None: a hundredth of the round, at
    least 0.25 s. ``restart_s``: what a cold start of a fork costs; ``transfer_mb_s``: how fast weights travel between a
    node and the store (MB/s). Both weigh in where a job is placed. ``utility``: of the jobs that name none; None: the
    policy's own.
    """

    round_s: float = 360.0
    policy: str = "hadare"
    utility: str | None = None
    grace_s: float | None = None
    settle_s: float = 30.0
    suspect_s: float = 4.0
    lost_s: float = 12.0
    keep_rounds: int = 500
    boundary_s: float | None = None
    restart_s: float = 1.0
    transfer_mb_s: float = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.round_s <= 0 or self.settle_s <= 0 or (self.grace_s is not None and self.grace_s <= 0):
            raise ValueError("round_s, grace_s and settle_s must be above 0")
        if not 0 < self.suspect_s < self.lost_s:
            raise ValueError("suspect_s must be above 0 and below lost_s")

    @property
    def boundary(self) -> float:
        return self.boundary_s if self.boundary_s is not None else max(0.25, self.round_s / 100)

    @property
    def grace(self) -> float:
        return self.grace_s if self.grace_s is not None else min(60.0, max(2.0, self.round_s / 20))
