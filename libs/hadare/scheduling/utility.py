"""What finishing a job by a time is worth. Each utility is non-increasing in the completion time.

Adding one: write a class with ``name`` and ``value``, and ``register`` an instance. Nothing else knows the names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hadare.model.errors import Rejected

F = TypeVar("F", float, NDArray[np.float64])
"""A utility is written once and serves one job (floats) or many (arrays)."""

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Stake(Generic[F]):
    """What a utility may look at: priority weight w, gang size W, ideal time d* and age, both in seconds.

    ``ideal_s`` is the time that the whole job takes on its best type without waiting.
    """

    weight: F
    gang: F
    ideal_s: F
    age_s: F


class Utility(Protocol):
    """``value(stake, finish_s)``, with ``finish_s`` from arrival to the estimated finish, later than the age."""

    @property
    def name(self) -> str: ...

    def value(self, stake: Stake[F], finish_s: F) -> F: ...


class NormalisedThroughput:
    """``w · W · d*/d``: the effective throughput relative to the ideal one (DESIGN §5, the paper's default)."""

    name = "throughput"

    def value(self, stake: Stake[F], finish_s: F) -> F:
        return stake.weight * stake.gang * stake.ideal_s / finish_s


class LeastRemainingWork:
    """``w · W · 1 h / (d − age)``: worth more the less time is left, which serves the mean completion time."""

    name = "least_remaining_work"

    def value(self, stake: Stake[F], finish_s: F) -> F:
        return stake.weight * stake.gang * HOUR_S / (finish_s - stake.age_s)


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


def utility_names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return tuple(sorted(_REGISTRY))


register(NormalisedThroughput())
register(LeastRemainingWork())
