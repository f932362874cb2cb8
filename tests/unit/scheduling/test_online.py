"""The online scheme by hand, and faults planted in it, each of which must break the theorem."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from builders_online import broken_claims
from builders_scheduling import a_job, a_node, rates
from hadare.model.errors import Rejected
from hadare.model.jobs import Constraints
from hadare.scheduling.eligibility import Cells
from hadare.scheduling.online import Offer, Terms, offers_of, opening, respond, serve, terms_for


def one(worth: float, count: int = 1, resource: int = 0) -> list[Offer]:
    return [Offer(worth, ((resource, count),))]


FOUR = Terms(capacity=(4,), u_min=(1.0,), u_max=(8.0,), largest=(1,))
RISING = [one(2.0**i) for i in range(8)]


def test_the_price_begins_at_umin_and_reaches_umax_before_the_last_gang() -> None:
    assert [FOUR.price(0, taken) for taken in (0, 1, 2, 3)] == pytest.approx([1, 2, 4, 8])


def test_alpha_is_the_growth_of_the_dual_of_the_largest_gang() -> None:
    assert FOUR.alpha == pytest.approx(4 * (8 ** (1 / 3) - 1) / 1)
    assert Terms((100,), (1.0,), (8.0,), (1,)).alpha == pytest.approx(2.1, abs=0.05)  # near ln 8


def test_a_job_gets_its_best_offer_at_the_prices_it_finds() -> None:
    terms = Terms((4, 4), (1.0, 1.0), (8.0, 8.0), (1, 1))
    _, ledger = respond(terms, opening(terms), one(7.0, resource=0))
    answer, after = respond(terms, ledger, [Offer(5.0, ((0, 1),)), Offer(4.5, ((1, 1),))])
    assert (answer.chosen, answer.payoff) == (1, 3.5)
    assert after.taken == (1, 1)
    assert after.primal == 11.5


def test_a_job_that_does_not_pay_off_is_turned_away_and_changes_nothing() -> None:
    ledger = opening(FOUR)
    answer, after = respond(FOUR, ledger, one(1.0))
    assert (answer.chosen, answer.payoff) == (None, 0.0)
    assert after == ledger
    assert respond(FOUR, ledger, [])[0].chosen is None


def test_the_last_devices_are_kept_for_those_who_are_worth_most() -> None:
    terms = terms_for([4], RISING)
    answers, ledgers = serve(terms, RISING)
    assert answers[0].chosen == 0
    assert ledgers[-1].primal > sum(2.0**i for i in range(4))


def test_who_could_take_a_whole_resource_has_no_terms() -> None:
    with pytest.raises(Rejected, match="all devices"):
        terms_for([2], [one(1.0, count=2)])
    with pytest.raises(Rejected, match="worth"):
        terms_for([2], [one(0.0)])


@dataclass(frozen=True, slots=True)
class BlindToOccupancy(Terms):
    def price(self, resource: int, taken: int) -> float:
        return Terms.price(self, resource, 0)


@dataclass(frozen=True, slots=True)
class FallingPrices(Terms):
    def price(self, resource: int, taken: int) -> float:
        return Terms.price(self, resource, -taken)


@dataclass(frozen=True, slots=True)
class NegativePrices(Terms):
    def price(self, resource: int, taken: int) -> float:
        return -Terms.price(self, resource, taken)


@dataclass(frozen=True, slots=True)
class PlainExponent(Terms):
    """γ/c, the curve of the rounds: the last gang still finds a price below Umax."""

    def price(self, resource: int, taken: int) -> float:
        ratio = self.u_max[resource] / self.u_min[resource]
        return float(self.u_min[resource] * ratio ** (taken / self.capacity[resource]))


FAULTS = [
    (BlindToOccupancy, "capacity holds"),
    (FallingPrices, "final prices are dual feasible"),
    (FallingPrices, "capacity holds"),
    (NegativePrices, "capacity holds"),
    (NegativePrices, "final prices are dual feasible"),
]


@pytest.mark.parametrize(("fault", "claim"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_planted_fault_breaks_the_theorem(fault: type[Terms], claim: str) -> None:
    terms = terms_for([3], RISING)
    wrong = fault(terms.capacity, terms.u_min, terms.u_max, terms.largest)
    assert broken_claims(terms, RISING) == set()
    assert claim in broken_claims(wrong, RISING)


def test_without_the_room_for_a_gang_in_the_exponent_capacity_would_break() -> None:
    """Gangs of two on three devices: at one taken, γ/c asks less than Umax for the two that are not there."""
    arrivals = [one(1.0), one(100.0, count=1), *[one(150.0, count=2)] * 3]
    terms = terms_for([3], arrivals)
    plain = PlainExponent(terms.capacity, terms.u_min, terms.u_max, terms.largest)
    assert broken_claims(terms, arrivals) == set()
    assert "capacity holds" in broken_claims(plain, arrivals)


def test_a_lowest_price_that_is_too_high_breaks_the_theorem() -> None:
    terms = terms_for([4], RISING)
    high = Terms(terms.capacity, (100.0,), terms.u_max, terms.largest)
    assert "the dual begins at half the optimum" in broken_claims(high, one_by_one := RISING[:3])
    assert broken_claims(terms_for([4], one_by_one), one_by_one) == set()


TWO_NODES = Cells([a_node("n1", V100=2), a_node("n2", K80=2)])


def test_the_offers_of_a_job_are_its_gangs_and_starts() -> None:
    job = a_job(gang=2, steps_left=3600, total_steps=3600, throughput=rates(10, types={"V100": 1.0, "K80": 0.5}))
    offers = offers_of(job, TWO_NODES, 360.0, range(3), widest=2)
    lasting = sorted(
        (len({r % 3 for r, _ in offer.demand}), len({r // 3 for r, _ in offer.demand})) for offer in offers
    )
    # two V100s or a mix: one round, three starts each; two K80s also one round
    assert lasting == [(1, 1)] * 6 + [(1, 2)] * 3
    assert max(offer.utility for offer in offers) == pytest.approx(2.0)


def test_a_slow_gang_holds_its_devices_for_more_rounds_and_must_end_in_time() -> None:
    job = a_job(steps_left=7200, total_steps=7200, throughput=rates(10, types={"K80": 1.0}))
    offers = offers_of(job, TWO_NODES, 360.0, range(1, 4), widest=1)
    first = TWO_NODES.index["n2", "K80"] * 4  # resources are cell · 4 + round
    assert [offer.demand for offer in offers] == [
        ((first + 1, 1), (first + 2, 1)),
        ((first + 2, 1), (first + 3, 1)),
    ]


def test_offers_keep_to_constraints_and_to_the_widest_share_of_a_cell() -> None:
    picky = a_job(steps_left=100, constraints=Constraints(types=("K80",)))
    taken = {resource for offer in offers_of(picky, TWO_NODES, 360.0, range(1), 1) for resource, _ in offer.demand}
    assert taken == {TWO_NODES.index["n2", "K80"]}
    wide = a_job(gang=2, steps_left=100)
    assert all(len(offer.demand) == 2 for offer in offers_of(wide, TWO_NODES, 360.0, range(1), 1))
    assert offers_of(a_job(unready="paused"), TWO_NODES, 360.0, range(1), 1) == []
