"""What finishing a job by a time is worth. Each utility is non-increasing in the completion time.

Adding one: write a class with ``name`` and ``value`` (and, if it should have its say in HadarE's order, ``urgency``),
and ``register`` an instance. Nothing else knows the names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hadare.model.errors import Rejected

F = TypeVar("F", float, NDArray[np.float64])
"""A utility is written once and serves one job (floats) or many (arrays)."""

DEFAULT = "throughput"
HOUR_S = 3600.0
LEAST_S = 1e-6
CRITICAL = 100.0
"""Worth of a job that needs all the time there is, relative to one that needs this time over its gang."""


@dataclass(frozen=True, slots=True)
class Stake(Generic[F]):
    """What a utility may look at: priority weight w, gang size W, and times in seconds.

    ``ideal_s`` (d*): the whole job on its best type without waiting; ``left_s``: what is left of it, likewise;
    ``age_s``: since arrival; ``fair_s``: the whole job with a fair share of the cluster as it is now; ``deadline_s``:
    after arrival, infinite if there is none; ``end_s``: from now until everything that is there could be done.
    """

    weight: F
    gang: F
    ideal_s: F
    age_s: F
    left_s: F
    fair_s: F
    deadline_s: F
    end_s: F


class Utility(Protocol):
    """``value(stake, finish_s)``, with ``finish_s`` from arrival to the estimated finish, later than the age."""

    @property
    def name(self) -> str: ...

    def value(self, stake: Stake[F], finish_s: F) -> F: ...


class NormalisedThroughput:
    """``w · W · d*/d``: the effective throughput relative to the ideal one (DESIGN §5, the paper's default)."""

    name = DEFAULT

    def value(self, stake: Stake[F], finish_s: F) -> F:
        return stake.weight * stake.gang * stake.ideal_s / finish_s

    def urgency(self, stake: Stake[F]) -> F:
        return stake.weight


class LeastRemainingWork:
    """``w · W · 1 h / (d − age)``: worth more the less time is left, which serves the mean completion time."""

    name = "least_remaining_work"

    def value(self, stake: Stake[F], finish_s: F) -> F:
        return stake.weight * stake.gang * HOUR_S / _remaining(stake, finish_s)

    def urgency(self, stake: Stake[F]) -> F:
        return stake.weight


class CompletionTimes:
    """``w · W · l/(d − age) · (√(E / (W·l)) + 100·(l/E)^8)``: mean completion time without a long tail.

    Least work first, but before all others who needs nearly all the time E that everything takes. The speed relative to
    the ideal one counts, so a gang that would be slow on what is free is left to wait for better.
    """

    name = "completion_times"

    def value(self, stake: Stake[F], finish_s: F) -> F:
        part = stake.left_s / _larger(stake.end_s, stake.left_s)
        short = (stake.end_s / (stake.gang * stake.left_s)) ** 0.5
        speed = stake.left_s / _remaining(stake, finish_s)
        worth: F = stake.weight * stake.gang * speed * (short + CRITICAL * part**8)
        return worth

    def urgency(self, stake: Stake[F]) -> F:
        return stake.weight


class Makespan:
    """``w · W · (l / 1 h) · l/(d − age)``, l the ideal time left: the longest first, where it is fast."""

    name = "makespan"

    def value(self, stake: Stake[F], finish_s: F) -> F:
        return stake.weight * stake.gang * stake.left_s * stake.left_s / (HOUR_S * _remaining(stake, finish_s))


class FinishTimeFairness:
    """``w · W · (1 + ρ(age)) / (1 + ρ(d) − ρ(age))`` with ``ρ(t) = t/d_fair``, Themis' ratio.

    Who has already been here longer than a fair share of the cluster would have taken counts more. It does not fall
    with age, so it starves nobody by itself.
    """

    name = "finish_time_fairness"

    def value(self, stake: Stake[F], finish_s: F) -> F:
        unfair = 1.0 + stake.age_s / stake.fair_s
        return stake.weight * stake.gang * unfair / (1.0 + _remaining(stake, finish_s) / stake.fair_s)


class SoftDeadline:
    """``w · W · u · d*/(d* + max(0, d − D))``: full worth until the deadline D, then less by the hour.

    ``u`` is 1 with all the time in the world and 2 where only the best devices can still make it.
    """

    name = "deadline"
    needs_deadline = True

    def value(self, stake: Stake[F], finish_s: F) -> F:
        late_s = _at_least(finish_s - stake.deadline_s, 0.0)
        return stake.weight * stake.gang * _urgency(stake) * stake.ideal_s / (stake.ideal_s + late_s)


class HardDeadline:
    """``w · W · u`` until the deadline, nothing after it: a job that cannot make it is placed on leftovers only."""

    name = "hard_deadline"
    needs_deadline = True

    def value(self, stake: Stake[F], finish_s: F) -> F:
        in_time = cast(F, np.asarray(finish_s <= stake.deadline_s, dtype=np.float64))
        return stake.weight * stake.gang * _urgency(stake) * in_time


def urgency_of(utility: Utility, stake: Stake[F]) -> F:
    """What a job's work left is divided by where the least comes first (``hadare``): its weight, if nothing else.

    A utility may have a method ``urgency(stake)``. Otherwise: what the best finish is worth, times the time until it,
    per device and hour; so the order is by what is gained per work done.
    """
    own = getattr(utility, "urgency", None)
    if own is not None:
        return cast(F, own(stake))
    return utility.value(stake, stake.age_s + stake.left_s) * stake.left_s / (stake.gang * HOUR_S)


def _remaining(stake: Stake[F], finish_s: F) -> F:
    return _at_least(finish_s - stake.age_s, LEAST_S)


def _at_least(value: F, least: float) -> F:
    return cast(F, np.maximum(value, least))


def _urgency(stake: Stake[F]) -> F:
    return 1.0 + stake.left_s / _larger(stake.deadline_s - stake.age_s, stake.left_s)


def _larger(one: F, other: F) -> F:
    return cast(F, np.maximum(one, other))


_REGISTRY: dict[str, Utility] = {}


def register(utility: Utility) -> None:
    """Make a utility known by its name; a later one of the same name takes its place."""
    _REGISTRY[utility.name] = utility


def utility_of(name: str) -> Utility:
    """The utility of that name. Raises ``Rejected`` (400) that lists the known ones."""
    try:
        return _REGISTRY[name]
    except KeyError:
        known = ", ".join(utility_names())
        raise Rejected(400, f"unknown utility '{name}': known are {known}") from None


def needs_deadline(name: str) -> bool:
    """Whether a job of that utility must have a deadline: what the utility's ``needs_deadline`` says, if it has one."""
    return bool(getattr(utility_of(name), "needs_deadline", False))


def utility_names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return tuple(sorted(_REGISTRY))


for _utility in (
    NormalisedThroughput(),
    LeastRemainingWork(),
    CompletionTimes(),
    Makespan(),
    FinishTimeFairness(),
    SoftDeadline(),
    HardDeadline(),
):
    register(_utility)
