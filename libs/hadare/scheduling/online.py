"""The online primal-dual scheme: each job is answered when it arrives, and what was promised is kept.

A resource is the devices of a cell (node, type) in one round; an offer is one way to serve a job: its utility, and what
it takes of which resources for how long. Prices are those of the paper with the exponent that makes the proof hold for
gangs: ``k(γ) = Umin · R^(γ/(c − w̄))``, R = Umax/Umin, w̄ < c the most that one job takes of the resource. A job gets the
offer of the best payoff at the prices that it finds, if that is positive. Then, with
``α' = max(1, max c·(R^(w̄/(c−w̄)) − 1)/w̄)``:

* at each step the dual grows by at most α' times what the primal grows by;
* the final prices are dual feasible, for prices never fall;
* the dual begins at ``Σ c·Umin``, at most half of the optimum;
* capacity holds though nothing checks it: whoever would exceed it finds a price above Umax;

so the utility reached is at least ``OPT/(2α')``. Nothing of this is claimed for re-planning every round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil

from hadare.model.errors import Rejected
from hadare.model.plans import JobView
from hadare.scheduling.eligibility import Cells, cell_rates, job_table
from hadare.scheduling.utility import utility_of

Demand = tuple[tuple[int, int], ...]
"""Devices by resource, as (resource, count)."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to serve a job: what that is worth, and what it takes."""

    utility: float
    demand: Demand


@dataclass(frozen=True, slots=True)
class Terms:
    """The constants, fixed before the first arrival. All are by resource; ``largest`` is w̄."""

    capacity: tuple[int, ...]
    u_min: tuple[float, ...]
    u_max: tuple[float, ...]
    largest: tuple[int, ...]

    def price(self, resource: int, taken: int) -> float:
        """k(γ): price of a device of the resource when ``taken`` are gone."""
        ratio = self.u_max[resource] / self.u_min[resource]
        return float(self.u_min[resource] * ratio ** (taken / (self.capacity[resource] - self.largest[resource])))

    @property
    def alpha(self) -> float:
        """α': how much faster than the primal the dual may grow."""
        return max(1.0, *map(self._growth, range(len(self.capacity))))

    def _growth(self, resource: int) -> float:
        capacity, largest = self.capacity[resource], self.largest[resource]
        if not largest:
            return 1.0
        ratio = self.u_max[resource] / self.u_min[resource]
        return float(capacity * (ratio ** (largest / (capacity - largest)) - 1) / largest)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is taken of every resource, the utility promised so far (primal) and the value of the dual."""

    taken: tuple[int, ...]
    primal: float
    dual: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The position of the offer that the job gets, if any; its payoff, which is the job's dual variable, at least 0."""

    chosen: int | None
    payoff: float


def terms_for(capacity: Sequence[int], jobs: Sequence[Sequence[Offer]]) -> Terms:
    """Constants for jobs whose offers are like these (a sample of what will come, worth at most and at least as much).

    Umax of a resource: the most utility per device of it. Umin: the least utility of an offer over the larger of its
    devices and twice all there are. Raises ``Rejected`` (400) if one job can take a whole resource.
    """
    offers = [offer for offers in jobs for offer in offers]
    largest, highest = [0] * len(capacity), [0.0] * len(capacity)
    total = sum(capacity)
    floor = min((o.utility / max(2 * total, sum(n for _, n in o.demand)) for o in offers), default=1.0)
    for offer in offers:
        if offer.utility <= 0:
            raise Rejected(400, "an offer must be worth something")
        for resource, count in offer.demand:
            largest[resource] = max(largest[resource], count)
            highest[resource] = max(highest[resource], offer.utility / count)
    whole = [r for r, (most, c) in enumerate(zip(largest, capacity, strict=True)) if most >= c]
    if whole:
        raise Rejected(400, f"a job may not take all devices of a resource: {whole}")
    lowest = (floor,) * len(largest)
    return Terms(tuple(capacity), lowest, tuple(max(high, floor) for high in highest), tuple(largest))


def opening(terms: Terms) -> Ledger:
    """Before the first arrival: nothing is taken, and the dual is the value of all devices at their lowest price."""
    prices = (terms.price(resource, 0) for resource in range(len(terms.capacity)))
    dual = sum(c * price for c, price in zip(terms.capacity, prices, strict=True))
    return Ledger((0,) * len(terms.capacity), 0.0, dual)


def respond(terms: Terms, ledger: Ledger, offers: Sequence[Offer]) -> tuple[Answer, Ledger]:
    """Answer one job: its best offer at the prices of this moment, if it pays off. Ties go to the first offer."""
    payoffs = [offer.utility - _cost(terms, ledger, offer.demand) for offer in offers]
    best = max(range(len(offers)), key=lambda i: (payoffs[i], -i), default=None)
    if best is None or payoffs[best] <= 0:
        return Answer(None, 0.0), ledger
    taken, dual = list(ledger.taken), ledger.dual + payoffs[best]
    for resource, count in offers[best].demand:
        before = terms.price(resource, taken[resource])
        taken[resource] += count
        dual += terms.capacity[resource] * (terms.price(resource, taken[resource]) - before)
    return Answer(best, payoffs[best]), Ledger(tuple(taken), ledger.primal + offers[best].utility, dual)


def serve(terms: Terms, arrivals: Sequence[Sequence[Offer]]) -> tuple[list[Answer], list[Ledger]]:
    """Answer every job in the order of arrival; the ledgers are those before the first and after each."""
    answers: list[Answer] = []
    ledgers = [opening(terms)]
    for offers in arrivals:
        answer, ledger = respond(terms, ledgers[-1], offers)
        answers.append(answer)
        ledgers.append(ledger)
    return answers, ledgers


def offers_of(job: JobView, cells: Cells, round_s: float, rounds: range, widest: int) -> list[Offer]:
    """Every schedule of a job within ``rounds``: a gang of W devices, kept from its start until the job ends.

    Gangs may mix types and span nodes, with at most ``widest`` devices of a cell; rates are balanced. Resource
    ``cell · rounds.stop + round``. ``arrival_s`` counts from the beginning of round 0. The number of gangs grows with
    the cells to the power of W: this is for measuring on small clusters.
    """
    table = job_table([job], cells.types, now_s=job.arrival_s)
    rates = cell_rates(cells, table)[0].tolist() if table.jobs else []
    utility, offers = utility_of(job.utility), []
    for gang in _gangs(
        job.gang, [min(widest, int(c)) if x > 0 else 0 for c, x in zip(cells.capacity, rates, strict=False)]
    ):
        rate = sum(count * rates[cell] for cell, count in gang)
        rate *= max(job.spread_factor, 1e-6) if len({cells.keys[cell][0] for cell, _ in gang}) > 1 else 1.0
        length = max(1, ceil(job.steps_left / (rate * round_s)))
        for start in rounds[: max(0, len(rounds) - length + 1)]:
            finish_s = start * round_s + job.steps_left / rate - job.arrival_s
            demand = [(cell * rounds.stop + start + held, count) for cell, count in gang for held in range(length)]
            offers.append(Offer(float(utility.value(table.stake_of(0), finish_s)), tuple(demand)))
    return offers


def _gangs(size: int, most: Sequence[int]) -> Iterator[Demand]:
    for counts in product(*(range(min(size, limit) + 1) for limit in most)):
        if sum(counts) == size:
            yield tuple((cell, count) for cell, count in enumerate(counts) if count)


def _cost(terms: Terms, ledger: Ledger, demand: Demand) -> float:
    return sum(count * terms.price(resource, ledger.taken[resource]) for resource, count in demand)
