"""Forks or one gang: what is made of the devices that a policy gave to a job, and by which numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from builders_snapshots import snapshots
from hadare.model.devices import NodeState
from hadare.model.plans import (
    Decision,
    ForkPlan,
    Gang,
    GangMember,
    JobView,
    NodeView,
    PriceBook,
    RoundPlan,
    Snapshot,
    Throughput,
)
from hadare.scheduling.modes import HYSTERESIS, WORTH, plan_round, why_no_gang, with_modes
from hadare.scheduling.policies import policy_names, policy_of

RATES = {"V100": 20.0, "P100": 12.0, "K80": 4.0}
TASK = "a.b:Task"


def a_job(**changes: Any) -> JobView:
    rates = {kind: Throughput(steps_per_s=rate, confidence=0.9) for kind, rate in RATES.items()}
    known = {"arrival_s": 0.0, "steps_left": 10**6, "total_steps": 10**6, "throughput": rates, "workload": TASK}
    return JobView(**{"job_id": "job-a", "batch_size": 36, "mode": "gang", **known, **changes})


def on(node: str, kind: str, fork: int = 0, **changes: Any) -> ForkPlan:
    gang = (GangMember(node=node, type=kind),)
    known = {"job_id": "job-a", "fork": fork, "gang": gang, "quota": 500, "rate": RATES[kind]}
    return ForkPlan(**{**known, "price": 1.0, "payoff": 2.0, **changes})


THREE = (on("n1", "V100"), on("n2", "P100", 1), on("n2", "K80", 2))


def shaped(job: JobView, *forks: ForkPlan, round_s: float = 360.0) -> tuple[tuple[ForkPlan, ...], Decision]:
    plan = RoundPlan(round=1, epoch=1, forks=forks or THREE, decisions=(Decision(job_id=job.job_id, code="chosen"),))
    snapshot = Snapshot(round=1, epoch=1, now_s=0.0, round_s=round_s, nodes=(), jobs=(job,), prices=PriceBook(round=1))
    made = with_modes(plan, snapshot)
    return made.forks, made.decisions[0]


def test_all_devices_of_the_job_become_one_gang_with_balanced_shares() -> None:
    (fork,), decision = shaped(a_job())
    assert fork.gang == (
        GangMember(node="n1", type="V100"),
        GangMember(node="n2", type="K80"),
        GangMember(node="n2", type="P100"),
    )
    assert fork.batch_shares == (20, 4, 12)
    assert (fork.price, fork.payoff, fork.filled) == (3.0, 6.0, False)
    assert decision.mode.startswith("gang: 3 devices in lockstep make ")


def test_its_rate_is_one_over_the_batch_at_the_summed_speeds_plus_the_exchange() -> None:
    (fork,), _ = shaped(a_job(exchange_s={"spread": 0.01}))
    assert fork.rate == pytest.approx(1 / (1 / 36 + 0.01))


def test_a_gang_on_one_node_exchanges_as_gangs_on_one_node_do() -> None:
    forks = (on("n2", "P100"), on("n2", "K80", 1))
    (fork,), _ = shaped(a_job(exchange_s={"spread": 5.0, "packed": 0.0}), *forks)
    assert fork.rate == pytest.approx(16.0)


def test_an_update_of_a_job_that_asks_for_a_gang_of_w_is_w_steps_and_w_batches() -> None:
    (fork,), _ = shaped(a_job(gang=3, batch_size=12, exchange_s={"spread": 0.0}))
    assert sum(fork.batch_shares) == 36
    assert fork.rate == pytest.approx(36.0)  # 36 samples an update, three updates of 12 in one
    assert fork.quota % 3 == 0


def test_a_device_that_would_hold_up_the_others_is_left_out_and_that_is_said() -> None:
    (fork,), decision = shaped(a_job(batch_size=6))
    assert {member.type for member in fork.gang} == {"V100", "P100"}
    assert "without 1 so slow" in decision.mode


@pytest.mark.parametrize(
    ("job", "forks", "why"),
    [
        (a_job(workload="a.b:train"), THREE, "forks: train is a script"),
        (a_job(), (on("n1", "V100"),), "forks: it has one device"),
        (a_job(batch_size=1), THREE, "forks: its batch of 1 leaves no sample for a second device"),
    ],
)
def test_what_cannot_be_a_gang_stays_forks_with_the_reason(job: JobView, forks: tuple[ForkPlan, ...], why: str) -> None:
    made, decision = shaped(job, *forks)
    assert made == forks
    assert decision.mode.startswith(why)


@pytest.mark.parametrize("mode", ["gang", "auto"])
def test_a_job_whose_gangs_bring_nothing_forks_until_a_round_brings_something(mode: Any) -> None:
    (_,), _ = shaped(a_job(mode=mode, barren=2))
    made, decision = shaped(a_job(mode=mode, barren=3))
    assert (made, decision.mode) == (THREE, "forks: 3 rounds in a row brought nothing")


def test_a_function_is_told_from_a_class_by_its_name() -> None:
    assert why_no_gang("pkg.mod:Task") == ""
    assert "script" in why_no_gang("pkg.mod:train")


def test_a_job_in_mode_forks_is_left_as_the_policy_planned_it() -> None:
    made, decision = shaped(a_job(mode="forks"))
    assert made == THREE
    assert decision.mode == ""


# --- auto ---


def chosen(**changes: Any) -> str:
    return shaped(a_job(mode="auto", **changes))[1].mode.partition(":")[0]


def test_auto_takes_the_gang_while_the_exchange_is_cheap_and_forks_when_it_is_dear() -> None:
    assert chosen(exchange_s={"spread": 0.001}) == "gang"
    assert chosen(exchange_s={"spread": 1.0}) == "forks"


def test_auto_estimates_the_exchange_from_the_size_of_the_weights_until_it_is_measured() -> None:
    assert chosen(weights_bytes=10_000) == "gang"
    assert chosen(weights_bytes=400_000_000) == "forks"
    assert chosen(weights_bytes=400_000_000, exchange_s={"spread": 0.001}) == "gang"


def test_auto_takes_forks_where_they_were_measured_to_be_worth_their_steps() -> None:
    slow = {"spread": 0.02}
    assert chosen(exchange_s=slow, fork_gain=(1.0, 1.1, 1.1)) == "forks"
    assert chosen(exchange_s={"spread": 0.005}, fork_gain=(1.0, 1.1, 1.1)) == "gang"
    assert chosen(exchange_s={"spread": 0.005}, fork_gain=(1.0, 1.6, 1.8)) == "forks"


def test_forks_that_were_not_measured_are_taken_for_what_the_built_in_workloads_showed() -> None:
    _, decision = shaped(a_job(mode="auto"))
    worth = 20 * (1 + WORTH * (36 / 20 - 1))
    assert f"worth {worth:.3g} of one device's" in decision.mode
    assert "assumed" in decision.mode


def test_the_numbers_that_decided_are_in_the_reason() -> None:
    _, decision = shaped(a_job(mode="auto", exchange_s={"spread": 0.01}, fork_gain=(1.0, 1.2, 1.3)))
    for text in ("27.8 ms", "10 ms (measured)", "as 3 forks 36 steps/s", "a gain of 1.30", "measured)"):
        assert text in decision.mode


def test_auto_changes_over_only_for_what_is_clearly_better() -> None:
    worth = 20 * (1 + WORTH * 0.8)
    a_little_worse = {"spread": 1 / (worth * (1 - HYSTERESIS / 2)) - 1 / 36}
    a_little_better = {"spread": 1 / (worth * (1 + HYSTERESIS / 2)) - 1 / 36}
    gang: tuple[Gang, ...] = ((GangMember(node="n1", type="V100"), GangMember(node="n2", type="P100")),)
    forks: tuple[Gang, ...] = ((GangMember(node="n1", type="V100"),), (GangMember(node="n2", type="P100"),))
    assert chosen(exchange_s=a_little_worse) == "forks"
    assert chosen(exchange_s=a_little_worse, placed=gang) == "gang"
    assert chosen(exchange_s=a_little_better) == "gang"
    assert chosen(exchange_s=a_little_better, placed=forks) == "forks"


def test_a_consolidation_that_takes_much_of_the_round_speaks_for_the_gang() -> None:
    even = {"spread": 1 / (20 * (1 + WORTH * 0.8)) - 1 / 36 + 0.002}
    assert chosen(exchange_s=even) == "forks"
    assert chosen(exchange_s=even, consolidation_cost_s=100.0) == "gang"


# --- over whatever a policy plans ---


@pytest.mark.parametrize("policy", policy_names())
def test_the_decision_of_a_round_is_the_same_each_time_it_is_made(policy: str) -> None:
    node = NodeView(node="n1", state=NodeState.READY, devices={"V100": 2, "K80": 2})
    snapshot = Snapshot(
        round=1, epoch=1, now_s=0.0, round_s=360.0, nodes=(node,), jobs=(a_job(),), prices=PriceBook(round=1)
    )
    assert plan_round(policy_of(policy), snapshot, {}) == plan_round(policy_of(policy), snapshot, {})


@given(snapshots())
def test_a_mode_takes_no_device_that_the_policy_did_not_give(snapshot: Snapshot) -> None:
    policy = policy_of("hadare")
    jobs = tuple(replace(job, mode="auto", batch_size=8, workload=TASK) for job in snapshot.jobs)
    before, _ = policy.plan(replace(snapshot, jobs=jobs), {})
    after = with_modes(before, replace(snapshot, jobs=jobs))

    def devices(plan: RoundPlan, job_id: str) -> dict[tuple[str, str], int]:
        held: dict[tuple[str, str], int] = {}
        for member in (member for fork in plan.forks if fork.job_id == job_id for member in fork.gang):
            held[member.node, member.type] = held.get((member.node, member.type), 0) + member.count
        return held

    for job in jobs:
        had, has = devices(before, job.job_id), devices(after, job.job_id)
        assert all(count <= had.get(cell, 0) for cell, count in has.items())
        forks = [fork for fork in after.forks if fork.job_id == job.job_id]
        assert sum(fork.quota for fork in forks) <= max(job.steps_left, 0)
        for fork in forks:
            ranks = sum(member.count for member in fork.gang)
            assert ranks == 1 or (len(fork.batch_shares) == ranks and min(fork.batch_shares) >= 1)
            assert ranks == 1 or sum(fork.batch_shares) == job.batch_size * job.gang
