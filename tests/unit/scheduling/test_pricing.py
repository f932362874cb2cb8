import pytest

from builders_scheduling import FIVE_UNEQUAL, a_job, a_node, flat_book, rates
from hadare.model.devices import NodeState
from hadare.model.plans import PriceBook, PriceCurve
from hadare.scheduling.eligibility import Cells
from hadare.scheduling.pricing import Curves, Occupancy, price_book


def curve_of(book: PriceBook, device_type: str) -> PriceCurve:
    return next(curve for curve in book.curves if curve.type == device_type)


def test_every_cell_of_a_ready_node_has_a_curve() -> None:
    nodes = [a_node("n1", V100=2, T4=1), a_node("n2", V100=1, state=NodeState.DRAINING)]
    book = price_book(7, nodes, [a_job()], 360)
    assert book.round == 7
    assert [(c.node, c.type, c.capacity) for c in book.curves] == [("n1", "T4", 1), ("n1", "V100", 2)]


def test_an_empty_cluster_has_an_empty_book() -> None:
    assert price_book(1, [], [a_job()], 360).curves == ()


def test_without_jobs_every_price_rests_low_and_flat() -> None:
    book = price_book(1, FIVE_UNEQUAL, [], 360)
    assert len({(c.u_min, c.u_max) for c in book.curves}) == 1
    assert book.curves[0].price(0) == book.curves[0].price(1)


@pytest.mark.parametrize("idle", [a_job(unready="paused"), a_job(steps_left=0)])
def test_a_job_that_cannot_be_placed_moves_no_price(idle: object) -> None:
    assert price_book(1, FIVE_UNEQUAL, [idle], 360) == price_book(1, FIVE_UNEQUAL, [], 360)  # type: ignore[list-item]


def test_umax_is_the_most_utility_per_device_round_of_the_type() -> None:
    # 7,200 steps at 10 steps/s: 720 s, two rounds of one V100, utility 1 when it starts at once
    book = price_book(1, FIVE_UNEQUAL, [a_job(steps_left=7200, total_steps=7200)], 360)
    assert curve_of(book, "V100").u_max == pytest.approx(1 / 2)
    assert curve_of(book, "P100").u_max == pytest.approx(0.7 / (2 / 0.7))


def test_a_job_that_needs_less_than_a_round_still_takes_one() -> None:
    book = price_book(1, FIVE_UNEQUAL, [a_job(steps_left=36, total_steps=36)], 360)
    assert curve_of(book, "V100").u_max == pytest.approx(1.0)


def test_umin_follows_the_formula_on_the_dearest_type() -> None:
    # T = 100 rounds; on the T400 the job takes 25 rounds, so d^max is the horizon: U = 720/36000
    book = price_book(1, FIVE_UNEQUAL, [a_job(steps_left=7200, total_steps=7200)], 360, horizon=100)
    assert curve_of(book, "V100").u_min == pytest.approx(0.5 * (720 / 36000) / (2 * 100 * 5))


def test_prices_tell_the_types_apart_when_everything_is_empty() -> None:
    book = price_book(1, FIVE_UNEQUAL, [a_job()], 360)
    reserve = [curve_of(book, t).price(0) for t in ("V100", "P100", "T4", "K80", "T400")]
    assert reserve == sorted(reserve, reverse=True)
    assert len(set(reserve)) == 5


def test_a_type_that_no_job_can_use_rests() -> None:
    book = price_book(1, FIVE_UNEQUAL, [a_job(throughput=rates(types={"V100": 1.0}))], 360)
    assert curve_of(book, "T4").u_min == curve_of(book, "T4").u_max


def test_a_dearer_job_raises_the_price_of_scarcity() -> None:
    nodes = [a_node("n1", V100=4)]
    calm = price_book(1, nodes, [a_job("a")], 360)
    hot = price_book(1, nodes, [a_job("a"), a_job("b", priority=50)], 360)
    assert hot.curves[0].price(3) > calm.curves[0].price(3)


def test_taking_a_device_pays_the_marginal_price_and_raises_the_next() -> None:
    nodes = [a_node("n1", V100=4)]
    book = price_book(1, nodes, [a_job()], 360)
    cells = Cells(nodes)
    occupancy = Occupancy(cells, Curves(cells, book))
    paid = [occupancy.take(0) for _ in range(4)]
    assert paid == pytest.approx([book.curves[0].price(taken) for taken in range(4)])
    assert paid == sorted(paid)


def test_a_cell_without_a_free_device_cannot_be_taken() -> None:
    cells = Cells([a_node("n1", V100=1)])
    occupancy = Occupancy(cells, Curves(cells, PriceBook(round=0)))
    occupancy.take(0)
    with pytest.raises(ValueError, match="no free device"):
        occupancy.take(0)


def test_a_node_that_joined_after_the_quote_costs_what_its_type_costs() -> None:
    old, new = a_node("n1", V100=1), a_node("n2", V100=1)
    cells = Cells([old, new])
    prices = Curves(cells, price_book(1, [old], [a_job()], 360))
    assert prices.u_min[0] == prices.u_min[1]
    assert prices.u_max[0] == prices.u_max[1]


def test_scarcity_is_judged_by_the_devices_that_are_left() -> None:
    job = a_job()
    book = price_book(1, [a_node("n1", V100=4)], [job], 360)
    smaller = Cells([a_node("n1", V100=2)])
    curves = Curves(smaller, book)
    assert curves.marginal(smaller.capacity)[0] == pytest.approx(book.curves[0].u_max)


def test_a_flat_curve_stays_flat() -> None:
    nodes = [a_node("n1", V100=3)]
    curves = Curves(Cells(nodes), flat_book(nodes, 0.25))
    assert curves.marginal(Cells(nodes).capacity)[0] == 0.25
