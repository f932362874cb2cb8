"""The theorem of the online scheme, on small instances with every kind of arrivals."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from builders_online import broken_claims, instances
from builders_scheduling import a_job, a_node, rates
from hadare.model.plans import JobView
from hadare.scheduling.eligibility import Cells
from hadare.scheduling.online import Offer, offers_of, terms_for

SOME = settings(max_examples=80, deadline=None)


@SOME
@given(instances())
def test_all_claims_hold_in_any_order_of_arrival(instance: tuple[list[int], list[list[Offer]]]) -> None:
    capacity, arrivals = instance
    assert broken_claims(terms_for(capacity, arrivals), arrivals) == set()


@settings(max_examples=15, deadline=None)
@given(instances())
def test_all_claims_hold_in_every_order_of_the_same_jobs(instance: tuple[list[int], list[list[Offer]]]) -> None:
    capacity, arrivals = instance
    terms = terms_for(capacity, arrivals)
    assert not any(broken_claims(terms, order) for order in permutations(arrivals[:4]))


@SOME
@given(
    st.integers(2, 6),
    st.integers(1, 2),
    st.floats(1.05, 10.0),
    st.booleans(),
)
def test_all_claims_hold_against_an_adversary_who_offers_a_little_more_each_time(
    capacity: int, gang: int, factor: float, down: bool
) -> None:
    """First the cluster is filled with what is worth least; then comes what is worth more, up to the top."""
    gang = min(gang, capacity - 1)
    worths = [factor**i for i in range(12)]
    arrivals = [[Offer(worth, ((0, gang),))] for worth in (reversed(worths) if down else worths)]
    assert broken_claims(terms_for([capacity], arrivals), arrivals) == set()


@st.composite
def small_jobs(draw: st.DrawFn) -> JobView:
    return a_job(
        f"j{draw(st.integers(0, 99))}",
        arrival_s=360.0 * draw(st.integers(0, 2)),
        steps_left=draw(st.integers(100, 8000)),
        total_steps=8000,
        gang=draw(st.integers(1, 2)),
        priority=draw(st.sampled_from([1.0, 1.0, 5.0])),
        throughput=rates(draw(st.sampled_from([5.0, 10.0]))),
        spread_factor=draw(st.sampled_from([1.0, 0.7])),
    )


@settings(max_examples=25, deadline=None)
@given(st.lists(small_jobs(), min_size=1, max_size=5))
def test_all_claims_hold_for_jobs_on_a_cluster(jobs: list[JobView]) -> None:
    """Two nodes of two types over three rounds; jobs come in the order of their arrival, with all their schedules."""
    cells = Cells([a_node("n1", V100=2), a_node("n2", K80=3)])
    horizon = 3
    arrivals = [
        offers_of(job, cells, 360.0, range(int(job.arrival_s / 360), horizon), widest=1)
        for job in sorted(jobs, key=lambda job: job.arrival_s)
    ]
    arrivals = [offers for offers in arrivals if offers]
    capacity = [int(c) for c in cells.capacity for _ in range(horizon)]
    if arrivals:
        assert broken_claims(terms_for(capacity, arrivals), arrivals) == set()
