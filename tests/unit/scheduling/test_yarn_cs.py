"""YARN as a policy: one line, whole gangs, no pre-emption."""

from __future__ import annotations

from dataclasses import replace

from builders_rounds import Rounds
from builders_scheduling import a_job, a_node, a_snapshot, devices_of
from hadare.model.devices import NodeState
from hadare.scheduling.policies import YarnCs, policy_of

TWO = (a_node("n1", V100=2),)


def test_it_is_known_by_name() -> None:
    assert policy_of("yarn-cs") == YarnCs()


def test_a_started_job_keeps_its_devices_until_it_ends() -> None:
    cluster = Rounds(YarnCs(), TWO)
    cluster.arrive(a_job("b", gang=2, steps_left=20 * 360 * 3))
    cluster.run()
    cluster.arrive(a_job("a", priority=100.0, steps_left=10))
    for _ in range(3):
        cluster.run()
    assert cluster.served == {"b": [0, 1, 2], "a": [3]}


def test_the_first_in_line_that_does_not_fit_blocks_all_behind_it() -> None:
    first = a_job("a", arrival_s=0.0)
    _, memory = YarnCs().plan(a_snapshot([first], TWO), {})
    jobs = [first, a_job("b", arrival_s=1.0, gang=2), a_job("c", arrival_s=2.0)]
    found, _ = YarnCs().plan(a_snapshot(jobs, TWO, now_s=360.0), memory)
    assert {fork.job_id for fork in found.forks} == {"a"}
    told = {d.job_id: d for d in found.decisions}
    assert told["b"].code == told["c"].code == "waiting_for_capacity"
    assert told["b"].blockers == ("a",)
    assert told["c"].blockers == ("b",)
    assert "nobody passes it" in told["c"].message


def test_the_line_is_in_the_order_of_arrival() -> None:
    jobs = [a_job("a", arrival_s=2.0, gang=2), a_job("b", arrival_s=1.0, gang=2)]
    found, _ = YarnCs().plan(a_snapshot(jobs, TWO), {})
    assert [fork.job_id for fork in found.forks] == ["b"]


def test_a_job_that_fits_nowhere_does_not_block_the_line() -> None:
    jobs = [a_job("a", gang=3), a_job("b", arrival_s=1.0)]
    found, _ = YarnCs().plan(a_snapshot(jobs, [a_node("n1", V100=2, K80=2)]), {})
    assert {d.job_id: d.code for d in found.decisions} == {"a": "fits_nowhere", "b": "chosen"}


def test_a_small_gang_waits_for_one_node_that_holds_it_whole() -> None:
    nodes = [a_node("n1", V100=2), a_node("n2", V100=2)]
    singles = [a_job("a", arrival_s=0.0), a_job("b", arrival_s=0.0, gang=2)]
    _, memory = YarnCs().plan(a_snapshot(singles, nodes), {})
    assert memory["held"]["b"] == [{"node": "n2", "type": "V100", "count": 2}]
    wide = a_job("c", arrival_s=1.0, gang=3)
    assert not devices_of(YarnCs().plan(a_snapshot([*singles, wide], nodes), memory)[0], "c")
    alone, _ = YarnCs().plan(a_snapshot([wide], nodes), {})
    assert devices_of(alone, "c") == {("n1", "V100"): 2, ("n2", "V100"): 1}


def test_a_job_that_lost_its_node_stands_in_line_again_by_its_arrival() -> None:
    nodes = [a_node("n1", V100=1), a_node("n2", V100=1)]
    jobs = [a_job("a", arrival_s=0.0), a_job("b", arrival_s=1.0), a_job("c", arrival_s=2.0)]
    _, memory = YarnCs().plan(a_snapshot(jobs, nodes), {})
    lost = [replace(nodes[0], state=NodeState.LOST), nodes[1]]
    found, memory = YarnCs().plan(a_snapshot(jobs, lost), memory)
    assert {fork.job_id for fork in found.forks} == {"b"}
    back, _ = YarnCs().plan(a_snapshot(jobs, nodes), memory)
    assert {fork.job_id for fork in back.forks} == {"a", "b"}


def test_a_started_job_that_is_not_ready_for_a_round_keeps_its_devices_and_a_paused_one_does_not() -> None:
    first, second = a_job("a", gang=2), a_job("b", arrival_s=1.0)
    _, memory = YarnCs().plan(a_snapshot([first], TWO), {})
    busy, kept = YarnCs().plan(a_snapshot([replace(first, unready="being evaluated"), second], TWO), memory)
    assert busy.forks == ()
    assert "a" in kept["held"]
    paused, freed = YarnCs().plan(a_snapshot([replace(first, unready="paused"), second], TWO), memory)
    assert [fork.job_id for fork in paused.forks] == ["b"]
    assert "a" not in freed["held"]
