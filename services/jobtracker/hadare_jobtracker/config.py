"""What the job tracker is told at its start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTrackerConfig:
    """``work_dir`` holds weights while they are averaged; nothing in it outlives a consolidation.

    ``keep_versions``: how many versions of a job keep their weights. ``side_lease_s``: how long an init or evaluate
    lease may take. ``averaging``: how many consolidations run at once.
    """

    work_dir: Path = Path("/tmp/hadare-tracker")  # noqa: S108 - a default for containers, where it is a private tmpfs
    keep_versions: int = 3
    side_lease_s: float = 300.0
    averaging: int = 1
