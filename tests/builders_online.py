"""The claims about the online scheme, checked one by one against an optimum found by trying everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

from hypothesis import strategies as st

from hadare.scheduling.online import Offer, Terms, serve

Arrivals = Sequence[Sequence[Offer]]
CLOSE = 1e-9


def optimum(capacity: Sequence[int], arrivals: Arrivals) -> float:
    """The most utility that any choice of offers reaches within the capacity, all arrivals known."""

    @cache
    def best(job: int, free: tuple[int, ...]) -> float:
        if job == len(arrivals):
            return 0.0
        values = [best(job + 1, free)]
        for offer in arrivals[job]:
            left = list(free)
            for resource, count in offer.demand:
                left[resource] -= count
            if min(left) >= 0:
                values.append(offer.utility + best(job + 1, tuple(left)))
        return max(values)

    return best(0, tuple(capacity))


def broken_claims(terms: Terms, arrivals: Arrivals) -> set[str]:
    """Names of the claims of the theorem that a run breaks; none if the scheme is right."""
    answers, ledgers = serve(terms, arrivals)
    best, last = optimum(terms.capacity, arrivals), ledgers[-1]
    prices = [terms.price(resource, taken) for resource, taken in enumerate(last.taken)]
    slack = 1 + CLOSE
    claims: dict[str, Callable[[], bool]] = {
        "the dual grows at most α' as fast": lambda: all(
            after.dual - before.dual <= terms.alpha * (after.primal - before.primal) * slack + CLOSE * best
            for before, after in pairwise(ledgers)
        ),
        "final prices are dual feasible": lambda: all(
            (answer.payoff + sum(count * prices[resource] for resource, count in offer.demand)) * slack >= offer.utility
            for answer, offers in zip(answers, arrivals, strict=True)
            for offer in offers
        ),
        "the dual begins at half the optimum": lambda: ledgers[0].dual <= best / 2 * slack,
        "capacity holds": lambda: all(
            t <= c for ledger in ledgers for t, c in zip(ledger.taken, terms.capacity, strict=True)
        ),
        "the dual is what its variables say": lambda: (
            abs(
                last.dual
                - sum(a.payoff for a in answers)
                - sum(c * price for c, price in zip(terms.capacity, prices, strict=True))
            )
            <= CLOSE * max(1.0, last.dual)
        ),
        "utility is at least OPT/(2α')": lambda: last.primal * 2 * terms.alpha * slack >= best,
        "the dual bounds the optimum": lambda: last.dual * slack >= best,
    }
    return {name for name, holds in claims.items() if not holds()}


@st.composite
def instances(draw: st.DrawFn) -> tuple[list[int], list[list[Offer]]]:
    """A few resources, jobs of every worth, and demands below the capacity."""
    capacity = draw(st.lists(st.integers(2, 5), min_size=1, max_size=3))
    return capacity, draw(st.lists(st.lists(offers(capacity), min_size=1, max_size=3), min_size=1, max_size=7))


@st.composite
def offers(draw: st.DrawFn, capacity: Sequence[int]) -> Offer:
    resources = draw(st.lists(st.integers(0, len(capacity) - 1), min_size=1, max_size=2, unique=True))
    demand = tuple((r, draw(st.integers(1, min(3, capacity[r] - 1)))) for r in sorted(resources))
    return Offer(draw(st.floats(0.01, 100)), demand)
