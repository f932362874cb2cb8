from typing import Any

import pytest

from builders_scheduling import a_job, a_node, flat_book
from hadare.model.plans import GangMember, JobView, NodeView
from hadare.scheduling.eligibility import Cells, cell_rates, job_table
from hadare.scheduling.placement import Gangs, Placement, PriceSums, gang_rate
from hadare.scheduling.pricing import Curves, price_book


def gangs_of(job: JobView, nodes: list[NodeView], *, flat: bool = True) -> tuple[Gangs, PriceSums, Cells]:
    cells = Cells(nodes)
    prices = PriceSums(cells, Curves(cells, flat_book(nodes) if flat else price_book(0, nodes, [job], 360)))
    table = job_table([job], cells.types, 0.0)
    return Gangs(job, table.stake_of(0), cell_rates(cells, table)[0], cells, prices), prices, cells


def best(job: JobView, nodes: list[NodeView]) -> dict[tuple[str, str], int]:
    gangs, prices, cells = gangs_of(job, nodes)
    chosen = gangs.candidates(prices.capacity, 360.0)[0]
    return {cells.keys[cell]: count for cell, count in chosen.devices}


def all_of(job: JobView, nodes: list[NodeView]) -> list[Placement]:
    gangs, prices, _ = gangs_of(job, nodes)
    return gangs.candidates(prices.capacity, 360.0)


def test_a_lockstep_gang_is_as_fast_as_its_slowest_rank() -> None:
    assert gang_rate([10.0, 4.0], lockstep=True) == 8.0


def test_a_balanced_gang_adds_its_ranks_up() -> None:
    assert gang_rate([10.0, 4.0], efficiency=0.5) == 7.0


def test_at_no_price_a_job_gets_its_fastest_type() -> None:
    assert best(a_job(), [a_node("n1", K80=1), a_node("n2", V100=1)]) == {("n2", "V100"): 1}


def test_a_gang_mixes_types_when_no_single_type_is_enough() -> None:
    assert best(a_job(gang=3), [a_node("n1", V100=2), a_node("n2", P100=1)]) == {("n1", "V100"): 2, ("n2", "P100"): 1}


def test_packed_beats_spread_when_talking_between_nodes_costs() -> None:
    nodes = [a_node("n1", V100=1), a_node("n2", V100=1), a_node("n3", P100=2)]
    assert best(a_job(gang=2, spread_factor=0.5), nodes) == {("n3", "P100"): 2}


def test_spread_over_fast_nodes_wins_when_talking_is_free() -> None:
    nodes = [a_node("n1", V100=1), a_node("n2", V100=1), a_node("n3", P100=2)]
    assert best(a_job(gang=2, spread_factor=1.0), nodes) == {("n1", "V100"): 1, ("n2", "V100"): 1}


def test_one_node_of_two_types_holds_a_packed_mix() -> None:
    nodes = [a_node("n1", V100=1, T4=1), a_node("n2", V100=1)]
    assert best(a_job(gang=2, spread_factor=0.3), nodes) == {("n1", "T4"): 1, ("n1", "V100"): 1}


def test_a_gang_is_whole_or_absent() -> None:
    assert all_of(a_job(gang=4), [a_node("n1", V100=2), a_node("n2", K80=1)]) == []


def test_of_equal_nodes_the_fullest_that_fits_keeps_large_gaps_large() -> None:
    assert best(a_job(gang=2), [a_node("n1", V100=4), a_node("n2", V100=2)]) == {("n2", "V100"): 2}


def test_a_job_stays_when_moving_gains_less_than_the_restart() -> None:
    nodes = [a_node("n1", V100=1), a_node("n2", V100=1)]
    assert best(placed_on("n2", "V100", restart_cost_s=60.0), nodes) == {("n2", "V100"): 1}


def test_a_job_moves_when_moving_gains_more_than_the_restart() -> None:
    nodes = [a_node("n1", V100=1), a_node("n2", K80=1)]
    assert best(placed_on("n2", "K80", restart_cost_s=60.0), nodes) == {("n1", "V100"): 1}


def test_a_job_near_its_end_does_not_move_to_a_faster_device() -> None:
    nodes = [a_node("n1", V100=1), a_node("n2", K80=1)]
    assert best(placed_on("n2", "K80", restart_cost_s=60.0, steps_left=100), nodes) == {("n2", "K80"): 1}


def test_a_gang_pays_the_marginal_price_of_each_device_for_the_rounds_it_holds_them() -> None:
    job = a_job(gang=2, steps_left=14_400, total_steps=14_400)  # 20 steps/s together: 720 s, two rounds
    nodes = [a_node("n1", V100=2)]
    gangs, prices, _ = gangs_of(job, nodes, flat=False)
    curve = price_book(0, nodes, [job], 360).curves[0]
    found = gangs.candidates(prices.capacity, 360.0)[0]
    assert found.price == pytest.approx(curve.price(0) + curve.price(1))
    assert found.payoff == pytest.approx(2.0 - 2 * found.price)


def test_a_job_with_less_than_a_round_left_pays_a_whole_one() -> None:
    job = a_job(steps_left=10, total_steps=10)
    gangs, prices, _ = gangs_of(job, [a_node("n1", V100=1)], flat=False)
    found = gangs.candidates(prices.capacity, 360.0)[0]
    assert found.payoff == pytest.approx(1.0 - found.price)


def placed_on(node: str, device_type: str, **changes: Any) -> JobView:
    return a_job(placed=((GangMember(node=node, type=device_type, count=1),),), **changes)
