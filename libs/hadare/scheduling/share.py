"""One job's share of a round: the forks it has been granted, what they bring together, and what one more would."""

from __future__ import annotations

from dataclasses import dataclass, field

from hadare.model.plans import JobView
from hadare.scheduling.gain import joint, training_part
from hadare.scheduling.utility import Stake, Utility

TIE = 1e-9
SURE, SURE_COLD = 1.0, 3.0
"""How much faster than needed a job must be expected to be, to count as finishing, if its rates are measured or not."""

HASTE = 0.2
"""Where rounds may end early a job is given what ends it in so much of a round: beyond, boundaries would cost more."""
RESTARTS = 20.0
"""But in no less than so many times what a restart takes: a cold device must be worth its start."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One device for one fork: its rate, the steps it can do in the round, its price per round and its payoff."""

    cell: int
    rate: float
    expected_steps: float
    price: float
    payoff: float
    filled: bool


@dataclass(slots=True)
class Share:
    """What one job has been granted so far.

    ``rates`` (steps/s, 0 where it may not run) by cell, ``bargain`` and ``asked`` by type; ``warm``: devices of each
    cell on which a process of the job waits for a fork.
    """

    job: JobView
    stake: Stake[float]
    utility: Utility
    rates: list[float]
    bargain: list[float]
    asked: list[float]
    warm: dict[int, int]
    round_s: float
    confidence: float
    may_end_early: bool = False
    grants: list[Grant] = field(default_factory=list)
    total: float = 0.0
    fastest: float = 0.0
    effective: float = 0.0
    worth: float = 0.0
    refused: bool = False
    cold_part: float = field(init=False)
    most: int = field(init=False)
    needed: float = field(init=False)
    """Steps/s with which the job surely finishes in this round, or in the part of it after which it may end."""

    def __post_init__(self) -> None:
        left = self.job.steps_left
        self.cold_part = training_part(self.job.restart_cost_s, self.round_s)
        self.most = min(self.job.max_forks or left, left)
        haste = max(HASTE, RESTARTS * self.job.restart_cost_s / self.round_s) if self.may_end_early else 1.0
        within_s = min(1.0, haste) * self.round_s
        self.needed = (SURE + (SURE_COLD - SURE) * (1.0 - self.confidence)) * left / within_s

    def may_have_more(self) -> bool:
        """Whether one more fork is allowed, and could have a step to do."""
        return len(self.grants) < self.most

    def enough(self) -> bool:
        """Whether what it has will finish the job in time, even if rates that nobody measured prove 3 × too high."""
        return self.effective >= self.needed

    def effective_rate(self, rate: float, warm: bool) -> float:
        """Steps/s over the whole round: a cold fork first pays the job's restart cost."""
        return rate if warm else rate * self.cold_part

    def with_one_more(self, rate: float, warm: bool) -> float | None:
        """Steps/s of all forks together with one more (``gain``); None if that would bring nothing."""
        if self.job.steps_left * rate < self.total + rate:
            return None
        more = rate if warm else rate * self.cold_part
        together = joint(self.job, self.total + more, max(self.fastest, more), len(self.grants) + 1, self.round_s)
        return together if together > self.effective * (1 + TIE) else None

    def gains(self, joint_rate: float) -> float:
        """What the utility grows by if the job runs at that rate."""
        left_s = self.job.steps_left / max(joint_rate, 1e-30)
        return float(self.utility.value(self.stake, self.stake.age_s + left_s)) - self.worth

    def add(self, cell: int, price: float, payoff: float, *, filled: bool) -> None:
        """One more fork, on a device of the cell."""
        warm = self.warm.get(cell, 0)
        effective = self.effective_rate(self.rates[cell], warm > 0)
        self.grants.append(Grant(cell, self.rates[cell], effective * self.round_s, price, payoff, filled))
        self.warm[cell] = max(0, warm - 1)
        self.total += effective
        self.fastest = max(self.fastest, effective)
        self.effective = joint(self.job, self.total, self.fastest, len(self.grants), self.round_s)
        self.worth += payoff + price
