"""The engine against answers that can be worked out by hand."""

from __future__ import annotations

import pytest

from builders_simulator import a_sim_job, a_sim_node, finish_s, simulated
from hadare.model.errors import Rejected
from hadare.model.plans import RoundPlan
from hadare.simulator.settings import Costs, NodeEvent


def test_a_job_alone_on_one_device_takes_its_steps_over_its_rate() -> None:
    outcome = simulated([a_sim_job()], [a_sim_node()])
    assert finish_s(outcome) == pytest.approx(3600.0)


def test_forks_add_up_and_end_together() -> None:
    outcome = simulated([a_sim_job(total_steps=27_000)], [a_sim_node("n1", V100=1), a_sim_node("n2", P100=1)])
    assert finish_s(outcome) == pytest.approx(27_000 / 15.0, abs=0.5)


def test_a_gang_is_as_fast_as_its_ranks_together() -> None:
    job = a_sim_job(gang=3, rates={"V100": 10.0, "P100": 5.0})
    outcome = simulated([job], [a_sim_node("n1", V100=2), a_sim_node("n2", P100=1)], "hadar")
    assert finish_s(outcome) == pytest.approx(36_000 / 25.0, abs=1.0)


def test_a_job_in_mode_gang_runs_in_lockstep_on_all_its_devices_and_pays_for_the_exchange() -> None:
    plans: list[RoundPlan] = []
    job = a_sim_job(total_steps=14_000, mode="gang")
    outcome = simulated([job], [a_sim_node("n1", V100=1), a_sim_node("n2", P100=1)], seen=plans.append)
    update_s = 22 / (10.0 * 32) + 2 * 5e-4  # 22 and 10 of 32 samples; a ring of two, and nothing to send
    assert finish_s(outcome) == pytest.approx(14_000 * update_s, abs=1.0)
    assert [fork.batch_shares for fork in plans[0].forks] == [(22, 10)]


def test_a_job_that_arrives_within_a_round_waits_for_the_next() -> None:
    jobs = [a_sim_job(), a_sim_job("job-b", 3600, arrival_s=100.0)]
    outcome = simulated(jobs, [a_sim_node("n1", V100=1), a_sim_node("n2", V100=1)])
    assert outcome.stories["job-b"].first_s == pytest.approx(360.0)


def test_event_driven_a_job_starts_when_it_arrives() -> None:
    jobs = [a_sim_job(), a_sim_job("job-b", 3600, arrival_s=100.0)]
    outcome = simulated(jobs, [a_sim_node("n1", V100=1), a_sim_node("n2", V100=1)], round_s=0.0)
    assert outcome.stories["job-b"].first_s == pytest.approx(100.0)


def test_event_driven_a_device_is_free_for_the_next_job_when_one_ends() -> None:
    jobs = [a_sim_job("job-a", 1000), a_sim_job("job-b", 1000)]
    outcome = simulated(jobs, [a_sim_node()], "yarn-cs", round_s=0.0)
    assert sorted(finish_s(outcome, name) for name in outcome.stories) == pytest.approx([100.0, 200.0])


def two_short_jobs_beside_a_long_one(policy: str, **settings: float) -> list[float]:
    """When the short ones end, one after another on the same device."""
    short = [a_sim_job(name, 1000, rates={"V100": 10.0}) for name in ("job-a", "job-b")]
    jobs = [*short, a_sim_job("job-c", rates={"K80": 10.0})]
    outcome = simulated(jobs, [a_sim_node("n1", V100=1), a_sim_node("n2", K80=1)], policy, **settings)
    return sorted(finish_s(outcome, job.job_id) for job in short)


def test_a_round_may_end_with_a_job_as_live_and_only_where_that_is_asked_for() -> None:
    assert two_short_jobs_beside_a_long_one("hadare") == pytest.approx([100.0, 460.0])
    assert two_short_jobs_beside_a_long_one("hadare", early_s=1.0) == pytest.approx([100.0, 200.0])


def test_the_baselines_rounds_have_their_full_length_as_published() -> None:
    assert two_short_jobs_beside_a_long_one("gavel", early_s=1.0) == pytest.approx([100.0, 460.0])


def test_a_seed_draws_the_lots_of_policies_that_are_blind_to_types_anew() -> None:
    jobs = [a_sim_job(f"job-{n}", rates={"V100": 10.0, "K80": 5.0}) for n in range(2)]
    nodes = [a_sim_node("n1", V100=4), a_sim_node("n2", K80=4)]
    assert len({simulated(jobs, nodes, "yarn-cs", seed=seed).ended_s for seed in range(8)}) == 2
    assert len({simulated(jobs, nodes, "hadar", seed=seed).ended_s for seed in range(3)}) == 1


def test_no_fraction_of_a_step_is_lost_between_rounds() -> None:
    job = a_sim_job(total_steps=1000, rates={"V100": 0.31})
    assert finish_s(simulated([job], [a_sim_node()])) == pytest.approx(1000 / 0.31, abs=2 / 0.31)


def test_a_cold_fork_pays_the_restart_and_a_warm_one_does_not() -> None:
    outcome = simulated([a_sim_job()], [a_sim_node()], costs=Costs(restart_s=60.0))
    assert finish_s(outcome) == pytest.approx(3660.0)
    assert outcome.stories["job-a"].restarts == 1


def test_weights_on_their_way_cost_time_at_each_boundary() -> None:
    job = a_sim_job(total_steps=7200, model_bytes=100_000_000)
    outcome = simulated([job], [a_sim_node()], costs=Costs(bandwidth_mb_s=10.0))
    # Fetched once (10 s), handed back after 350 s of training; the rest, warm, in the second and third round.
    assert finish_s(outcome) == pytest.approx(10 + 350 + 10 + 360 + 10 + 10 + 10, abs=0.5)


def test_a_round_boundary_is_time_in_which_nobody_trains() -> None:
    outcome = simulated([a_sim_job(total_steps=7200)], [a_sim_node()], costs=Costs(boundary_s=5.0))
    assert finish_s(outcome) == pytest.approx(725.0)


def test_a_gang_that_spans_nodes_is_slower_only_where_spreading_costs() -> None:
    job = a_sim_job(gang=2, spread={"V100": 0.5})
    nodes = [a_sim_node("n1"), a_sim_node("n2")]
    assert finish_s(simulated([job], nodes, "hadar")) == pytest.approx(1800.0)
    assert finish_s(simulated([job], nodes, "hadar", costs=Costs(spread=True))) == pytest.approx(3600.0)


def test_a_failed_nodes_round_is_lost_and_the_job_goes_on_elsewhere() -> None:
    events = (NodeEvent(at_s=500.0, node="n1", what="fail"),)
    outcome = simulated([a_sim_job()], [a_sim_node("n1"), a_sim_node("n2")], "yarn-cs", events=events)
    story = outcome.stories["job-a"]
    # 360 s counted, 140 s lost; the round closes at 720 s and its grace, then 3,240 s are left.
    assert finish_s(outcome) == pytest.approx(730.0 + 3240.0, abs=1.0)
    assert story.lost_s == pytest.approx(140.0)


def test_a_drained_node_finishes_its_round_and_gets_no_other() -> None:
    plans: list[RoundPlan] = []
    events = (NodeEvent(at_s=400.0, node="n1", what="drain"),)
    outcome = simulated([a_sim_job()], [a_sim_node("n1"), a_sim_node("n2")], "yarn-cs", plans.append, events=events)
    nodes = [plan.forks[0].gang[0].node for plan in plans if plan.forks]
    assert nodes[:3] == ["n1", "n1", "n2"]
    assert finish_s(outcome) == pytest.approx(3600.0)


def test_a_node_that_comes_back_is_used_again() -> None:
    events = (NodeEvent(at_s=10.0, node="n1", what="fail"), NodeEvent(at_s=2000.0, node="n1", what="recover"))
    outcome = simulated([a_sim_job()], [a_sim_node()], events=events)
    assert 2000.0 + 3600.0 <= finish_s(outcome) <= 2000.0 + 3600.0 + 2 * 360.0


def test_an_event_of_an_unknown_node_is_refused() -> None:
    events = (NodeEvent(at_s=10.0, node="n9", what="fail"),)
    with pytest.raises(Rejected, match="n9"):
        simulated([a_sim_job()], [a_sim_node()], events=events)


def test_a_job_that_fits_nowhere_ends_the_simulation_and_is_named() -> None:
    job = a_sim_job(gang=2)
    outcome = simulated([job], [a_sim_node()], "gavel", idle_rounds=5)
    assert outcome.stuck == ("job-a",)


def test_without_an_oracle_the_first_guess_is_the_formula_and_the_second_is_measured() -> None:
    seen: list[float] = []
    jobs = [a_sim_job(total_steps=36_000)]
    simulated(jobs, [a_sim_node()], "hadare", lambda plan: seen.extend(f.rate for f in plan.forks), oracle=False)
    assert seen[0] != pytest.approx(10.0, rel=0.05)
    assert seen[1] == pytest.approx(10.0)


def test_the_same_seed_gives_the_same_run() -> None:
    jobs = [a_sim_job(f"job-{n}", 9000 * (n + 1), arrival_s=200.0 * n) for n in range(4)]
    nodes = [a_sim_node("n1", V100=2), a_sim_node("n2", K80=2)]
    runs = [simulated(jobs, nodes, oracle=False, noise=0.1, seed=7) for _ in range(2)]
    assert [s.finish_s for s in runs[0].stories.values()] == [s.finish_s for s in runs[1].stories.values()]


def test_a_job_that_lost_its_devices_before_its_end_counts_as_pre_empted() -> None:
    jobs = [a_sim_job("job-a", 36_000), a_sim_job("job-b", 1800, arrival_s=300.0)]
    outcome = simulated(jobs, [a_sim_node()], "hadare")
    assert outcome.stories["job-a"].preemptions == 1
    assert outcome.stories["job-b"].preemptions == 0
