"""What the job tracker is told at its start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hadare.runtime.service import ServiceConfig


@dataclass(frozen=True, kw_only=True)
class JobTrackerConfig(ServiceConfig):
    """``work_dir`` holds weights while they are averaged; nothing in it outlives the process.

    ``keep_versions``: how many versions of a job keep their weights. ``side_lease_s``: how long an init or evaluate
    lease may take. ``averaging``: how many consolidations run at once. ``sweep_s``: how often objects that nobody needs
    are looked for. ``guard_s``: how long a guard's evaluations may take; keep it below the allocator's ``settle_s``.
    """

    work_dir: Path = Path("/tmp/hadare-tracker")  # noqa: S108 - a default for containers, where it is a private tmpfs
    keep_versions: int = 3
    side_lease_s: float = 300.0
    averaging: int = 1
    sweep_s: float = 300.0
    guard_s: float = 15.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_versions < 1 or self.averaging < 1 or min(self.side_lease_s, self.sweep_s, self.guard_s) <= 0:
            raise ValueError("keep_versions and averaging must be at least 1, side_lease_s, sweep_s, guard_s above 0")
