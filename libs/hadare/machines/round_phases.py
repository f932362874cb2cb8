"""The phases of a round, and the times that bound them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from hadare.machines.cluster import Costs


class Phase(StrEnum):
    IDLE = "idle"
    PLANNING = "planning"
    STORING = "storing"
    OPENING = "opening"
    RUNNING = "running"
    CLOSING = "closing"
    SETTLING = "settling"


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """Times in seconds. ``grace_s``: how long after a lease's end its result may come in.

    ``utility``: of the jobs that name none; None: the policy's own.

    ``settle_s``: how long a closed round waits for versions that are still being made, before it goes on without
    those jobs. ``tidy_s``: how often past rounds are closed again in which a job is still open. ``keep_rounds``: how
    many plans are kept for users to look at. ``boundary_s``: what a round's boundary takes, by which a round may be
    worth ending early (``round_length``); None: every round has its full length. ``costs``: of moving and forking.
    ``exact``: rates are what they are said to be and forks start at once, as in a simulation.
    """

    epoch: int
    round_s: float = 360.0
    policy: str = "hadare"
    utility: str | None = None
    grace_s: float = 10.0
    settle_s: float = 30.0
    retry_s: float = 1.0
    tidy_s: float = 5.0
    keep_rounds: int = 500
    boundary_s: float | None = None
    costs: Costs = field(default_factory=Costs)
    exact: bool = False


class Pace:
    """How soon the next round may begin: at once after one that brought something, else later each time.

    Nothing is gained by haste where every fork fails at once, and a cluster must not spin.
    """

    def __init__(self, settings: RoundSettings) -> None:
        self._settings = settings
        self._barren = 0
        self._fruitful = False

    def version_made(self) -> None:
        """Some job has a new version."""
        self._fruitful = True

    def round_ended(self) -> float:
        """Seconds to wait: none, or from ``retry_s`` up to the length of a round."""
        self._barren = 0 if self._fruitful else self._barren + 1
        self._fruitful = False
        if not self._barren:
            return 0.0
        return min(self._settings.round_s, self._settings.retry_s * 2.0 ** min(self._barren - 1, 10))
