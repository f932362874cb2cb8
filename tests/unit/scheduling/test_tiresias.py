"""Tiresias as a policy: queues over rounds, and devices of one type."""

from __future__ import annotations

from dataclasses import replace

from builders_rounds import Rounds
from builders_scheduling import a_job, a_node, a_snapshot, devices_of
from hadare.model.plans import GangMember
from hadare.scheduling.baselines.las import LasRules
from hadare.scheduling.policies import Tiresias, policy_of

ONE = (a_node("n1", V100=1),)
SHORT_QUEUE = Tiresias(rules=LasRules(limits=(720.0,)))


def test_it_is_known_by_name() -> None:
    assert policy_of("tiresias") == Tiresias()


def test_a_job_keeps_running_in_its_queue_when_another_arrives() -> None:
    cluster = Rounds(Tiresias(), ONE)
    cluster.arrive(a_job("b", steps_left=10**8))
    cluster.run()
    cluster.arrive(a_job("a", steps_left=10**8))
    for _ in range(4):
        cluster.run()
    assert cluster.served == {"b": [0, 1, 2, 3, 4]}


def test_a_job_past_its_limit_is_pre_empted_by_a_newcomer() -> None:
    cluster = Rounds(SHORT_QUEUE, ONE)
    cluster.arrive(a_job("a", steps_left=10**8))
    cluster.run()
    cluster.arrive(a_job("b", steps_left=10**8))
    for _ in range(3):
        cluster.run()
    assert cluster.served == {"a": [0, 1], "b": [2, 3]}


def test_a_gang_uses_up_its_limit_faster() -> None:
    cluster = Rounds(SHORT_QUEUE, [a_node("n1", V100=2)])
    cluster.arrive(a_job("a", gang=2, steps_left=10**8))
    cluster.run()
    cluster.arrive(a_job("b", steps_left=10**8))
    cluster.run()
    assert cluster.served == {"a": [0], "b": [1]}


def test_a_starved_job_is_promoted_if_the_rules_say_so() -> None:
    def rounds_of(policy: Tiresias) -> list[int]:
        cluster = Rounds(policy, ONE)
        cluster.arrive(a_job("long", steps_left=10**8))
        for number in range(12):
            cluster.run()
            cluster.arrive(a_job(f"s{number:02}", steps_left=3600))
        return cluster.served["long"]

    assert rounds_of(SHORT_QUEUE) == [0, 1]
    assert len(rounds_of(Tiresias(rules=LasRules(limits=(720.0,), promote_after=1.0)))) > 2


def test_who_does_not_fit_is_skipped() -> None:
    found, _ = Tiresias().plan(a_snapshot([a_job("a", gang=3), a_job("b")], [a_node("n1", V100=2, K80=1)]), {})
    assert [fork.job_id for fork in found.forks] == ["b"]
    assert {d.job_id: d.code for d in found.decisions} == {"a": "fits_nowhere", "b": "chosen"}


def test_it_is_blind_to_speed() -> None:
    """Many equal jobs alone on an empty cluster: about as many begin on the slow type as on the fast one."""
    nodes = [a_node("n1", V100=1), a_node("n2", K80=1)]
    begun = [
        next(iter(devices_of(Tiresias().plan(a_snapshot([a_job(f"j{i}")], nodes), {})[0], f"j{i}"))) for i in range(60)
    ]
    assert 18 <= sum(device_type == "K80" for _, device_type in begun) <= 42


def test_a_newcomer_takes_idle_devices_before_those_of_a_running_job() -> None:
    memory = SHORT_QUEUE.plan(a_snapshot([a_job("a")], [a_node("n1", V100=1)]), {})[1]
    placed = ((GangMember(node="n1", type="V100"),),)
    nodes = [a_node("n1", V100=1), a_node("n2", K80=1)]
    for name in ("b", "c", "d", "e"):
        jobs = [a_job("a", placed=placed), a_job(name)]
        found, _ = SHORT_QUEUE.plan(a_snapshot(jobs, nodes, now_s=720.0), memory)
        assert devices_of(found, "a") == {("n1", "V100"): 1}
        assert devices_of(found, name) == {("n2", "K80"): 1}


def test_a_job_that_runs_on_stays_on_its_devices() -> None:
    placed = ((GangMember(node="n2", type="V100"),),)
    nodes = [a_node("n1", V100=1), a_node("n2", V100=1)]
    found, _ = Tiresias().plan(a_snapshot([a_job("a", placed=placed), a_job("b")], nodes), {})
    assert devices_of(found, "a") == {("n2", "V100"): 1}


def test_a_gang_of_mixed_types_from_another_policy_is_not_kept() -> None:
    mixed = ((GangMember(node="n1", type="V100"), GangMember(node="n2", type="K80")),)
    nodes = [a_node("n1", V100=2), a_node("n2", K80=2)]
    found, _ = Tiresias().plan(a_snapshot([a_job("a", gang=2, placed=mixed)], nodes), {})
    assert list(devices_of(found, "a").values()) == [2]


def test_devices_beside_a_running_gang_are_idle_ones() -> None:
    """Nobody loses the K80 to a newcomer that would find room beside a."""
    nodes = [a_node("n1", V100=4), a_node("n2", K80=1)]
    running = {
        "a": a_job("a", gang=2, placed=((GangMember(node="n1", type="V100", count=2),),)),
        "z": a_job("z", placed=((GangMember(node="n2", type="K80"),),)),
    }
    memory = {
        "jobs": [
            {"job_id": "a", "gang": 2, "checked_s": 0.0, "running": True},
            {"job_id": "z", "gang": 1, "checked_s": 0.0, "running": True, "level": 1, "served_s": 999.0},
        ],
        "levels": [["a"], ["z"]],
    }
    for name in ("b", "c", "d", "e", "f"):
        found, _ = SHORT_QUEUE.plan(a_snapshot([*running.values(), a_job(name)], nodes), memory)
        assert devices_of(found, "z") == {("n2", "K80"): 1}


def test_a_paused_job_keeps_its_service_and_does_not_count_as_waiting() -> None:
    job = a_job("a")
    rules = LasRules(limits=(300.0,), promote_after=1.0)
    policy = Tiresias(rules=rules)
    memory = policy.plan(a_snapshot([job], ONE), {})[1]
    paused = replace(job, unready="paused")
    for now_s in (360.0, 720.0, 9999.0):
        memory = policy.plan(a_snapshot([paused], ONE, now_s=now_s), memory)[1]
    assert memory["jobs"][0]["served_s"] == 360.0
    assert memory["jobs"][0]["waited_s"] == 0.0
    assert memory["levels"] == [[], ["a"]]


def test_a_job_that_is_gone_is_forgotten() -> None:
    memory = Tiresias().plan(a_snapshot([a_job("a"), a_job("b")]), {})[1]
    assert [s["job_id"] for s in Tiresias().plan(a_snapshot([a_job("b")]), memory)[1]["jobs"]] == ["b"]
