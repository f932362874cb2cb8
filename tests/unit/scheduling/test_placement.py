from typing import Any

import numpy as np
import pytest

from builders_scheduling import a_job, a_node, a_snapshot, devices_of, flat_book
from hadare.model.plans import GangMember, JobView, NodeView
from hadare.scheduling.eligibility import Cells, job_table
from hadare.scheduling.placement import Candidate, Gangs, compositions, gang_rate
from hadare.scheduling.policies import Hadar
from hadare.scheduling.pricing import price_book


def gangs_of(job: JobView, nodes: list[NodeView]) -> tuple[Gangs, Cells]:
    cells = Cells(nodes)
    return Gangs(job_table([job], cells.types, 0.0), cells), cells


def all_of(job: JobView, nodes: list[NodeView]) -> list[Candidate]:
    gangs, cells = gangs_of(job, nodes)
    return gangs.candidates([0], np.zeros(len(cells.types)))[0]


def best(job: JobView, nodes: list[NodeView]) -> dict[tuple[str, str], int]:
    plan, _ = Hadar().plan(a_snapshot([job], nodes, flat_book(nodes)), {})
    return devices_of(plan, job.job_id)


def placed_on(node: str, device_type: str, **changes: Any) -> JobView:
    return a_job(placed=((GangMember(node=node, type=device_type, count=1),),), **changes)


def test_a_lockstep_gang_is_as_fast_as_its_slowest_rank() -> None:
    assert gang_rate([10.0, 4.0], lockstep=True) == 8.0


def test_a_balanced_gang_adds_its_ranks_up() -> None:
    assert gang_rate([10.0, 4.0], efficiency=0.5) == 7.0


def test_a_job_in_lockstep_does_not_mix_what_a_balanced_one_mixes() -> None:
    nodes = [a_node("n1", V100=3), a_node("n2", K80=1), a_node("n3", P100=4)]
    assert best(a_job(gang=4), nodes) == {("n1", "V100"): 3, ("n3", "P100"): 1}
    assert best(a_job(gang=4, batching="lockstep", spread_factor=0.9), nodes) == {("n3", "P100"): 4}


def test_the_rate_of_a_lockstep_gang_is_planned_at_its_slowest_rank() -> None:
    nodes = [a_node("n1", V100=1), a_node("n2", K80=1)]
    plan, _ = Hadar().plan(a_snapshot([a_job(gang=2, batching="lockstep")], nodes), {})
    assert plan.forks[0].rate == pytest.approx(2 * 2.7)


def test_all_ways_to_make_three_of_two_types() -> None:
    assert list(compositions(3, [2, 5])) == [(0, 3), (1, 2), (2, 1)]


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
    nodes = [a_node("n1", V100=4), a_node("n2", V100=2)]
    assert best(a_job(gang=2, spread_factor=0.5), nodes) == {("n2", "V100"): 2}


def test_a_job_stays_when_moving_gains_less_than_the_restart() -> None:
    nodes = [a_node("n1", V100=1), a_node("n2", V100=1)]
    assert best(placed_on("n2", "V100", restart_cost_s=60.0), nodes) == {("n2", "V100"): 1}


def test_a_job_moves_when_moving_gains_more_than_the_restart() -> None:
    nodes = [a_node("n1", V100=1), a_node("n2", K80=1)]
    assert best(placed_on("n2", "K80", restart_cost_s=60.0), nodes) == {("n1", "V100"): 1}


def test_a_job_near_its_end_does_not_move_to_a_faster_device() -> None:
    nodes = [a_node("n1", V100=1), a_node("n2", K80=1)]
    assert best(placed_on("n2", "K80", restart_cost_s=60.0, steps_left=100), nodes) == {("n2", "K80"): 1}


def test_a_job_whose_restart_costs_nothing_stays_all_the_same() -> None:
    nodes = [a_node(f"n{i}", V100=1) for i in range(4)]
    assert best(placed_on("n2", "V100"), nodes) == {("n2", "V100"): 1}


def test_a_gang_pays_the_marginal_price_of_each_device() -> None:
    job = a_job(gang=2, steps_left=14_400, total_steps=14_400)  # 20 steps/s together
    nodes = [a_node("n1", V100=2)]
    curve = price_book(0, nodes, [job], 360).curves[0]
    plan, _ = Hadar().plan(a_snapshot([job], nodes), {})
    assert plan.forks[0].price == pytest.approx(curve.price(0) + curve.price(1))
    assert plan.forks[0].payoff == pytest.approx(2.0 - plan.forks[0].price)


def test_a_gang_on_the_node_that_it_may_use_is_found_among_others() -> None:
    nodes = [a_node("n1", V100=2), a_node("n2", V100=2)]
    assert best(a_job(gang=2, excluded={"n1": "no data"}), nodes) == {("n2", "V100"): 2}
