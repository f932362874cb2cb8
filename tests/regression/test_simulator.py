"""Whole runs: figures stay in their ranges (ranges.toml), and how policies relate holds whatever the figures are."""

from __future__ import annotations

import tomllib

import pytest

from builders_regression import RANGES_FILE, figures_of, run_of
from hadare.bench.paper import nodes_named
from hadare.simulator.rates import shipped_table
from hadare.simulator.settings import Settings
from hadare.simulator.study import prepare, study
from hadare.simulator.traces import read_trace

pytestmark = pytest.mark.timeout(300)
"""Whole runs: seconds each on an idle machine, minutes beside other work."""
RANGES = tomllib.loads(RANGES_FILE.read_text())
TRACES = ("static_480:40", "poisson_120:20")


@pytest.mark.parametrize("case", sorted(RANGES))
def test_figures_stay_in_their_ranges(case: str) -> None:
    found = figures_of(case)
    apart = {name: (found[name][0], wanted["mean"]) for name, wanted in RANGES[case].items()}
    out = {name: pair for name, pair in apart.items() if abs(pair[0] - pair[1]) > RANGES[case][name]["margin"]}
    assert out == {}


@pytest.mark.parametrize("case", TRACES)
def test_forks_finish_before_gangs_mixed_gangs_before_pure_ones_and_fairness_before_first_come(case: str) -> None:
    metrics = run_of(case).metrics
    assert metrics["hadare"].ttd_s < metrics["hadar"].ttd_s <= metrics["gavel"].ttd_s * 1.001
    in_order = [metrics[name].mean_jct_s for name in ("hadare", "hadar", "gavel", "yarn-cs")]
    assert in_order == sorted(in_order)
    assert metrics["hadare"].cru > metrics["gavel"].cru


@pytest.mark.parametrize("case", TRACES)
def test_nobody_beats_the_bounds_and_everybody_finishes_everything(case: str) -> None:
    run = run_of(case)
    for metrics in run.metrics.values():
        assert metrics.unfinished == 0
        assert metrics.ttd_s >= 0.999 * run.bounds["fluid_ttd_s"]
        assert metrics.mean_jct_s >= 0.999 * run.bounds["mean_jct_s"]


@pytest.mark.parametrize("policy", ["hadar", "gavel", "yarn-cs"])
def test_gangs_do_not_beat_the_bounds_of_gangs(policy: str) -> None:
    run = run_of("static_480:40")
    assert run.metrics[policy].ttd_s >= 0.999 * run.bounds["fluid_ttd_gangs_s"]
    assert run.metrics[policy].mean_jct_s >= 0.999 * run.bounds["mean_jct_gangs_s"]


def test_who_keeps_plans_for_some_rounds_loses_next_to_nothing() -> None:
    nodes = nodes_named("sim-60")
    jobs = prepare(read_trace("static_480")[:40], shipped_table(), nodes)
    every = study(jobs, nodes, ["hadare"], Settings(oracle=True, early_s=3.6), bounds=False).metrics["hadare"]
    held = run_of("static_480:40").metrics["hadare"]
    assert held.rounds < every.rounds
    assert held.ttd_s == pytest.approx(every.ttd_s, rel=0.01)
    assert held.mean_jct_s == pytest.approx(every.mean_jct_s, rel=0.02)


def test_who_comes_first_and_is_served_first_is_never_pre_empted() -> None:
    assert run_of("static_480:40").metrics["yarn-cs"].preemptions == 0
