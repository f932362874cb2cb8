"""The paper's study: what is assumed is consistent, and nothing that it runs beats the bounds of forks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from hadare.bench.paper import Part, assumptions, case_of, mix_rows, nodes_named, run_parts
from hadare.simulator.rates import shipped_table
from hadare.simulator.settings import Settings
from hadare.simulator.study import prepare, study

SMALL = ("aws-like", "testbed-like")


@pytest.mark.parametrize("cluster", SMALL)
def test_the_small_clusters_have_five_unequal_nodes(cluster: str) -> None:
    nodes = nodes_named(cluster)
    assert len({kind for node in nodes for kind in node.devices}) == len(nodes) == 5


def test_mixes_go_from_one_job_to_twelve_of_the_five_specs() -> None:
    mixes = assumptions()["mixes"]
    assert [len(mix) for mix in mixes.values()] == list(range(1, 13))
    assert {name for mix in mixes.values() for name in mix} == set(assumptions()["jobs"])


def test_a_seed_changes_lengths_by_a_third_at_most_and_seed_0_nothing() -> None:
    written = [row.total_steps for row in mix_rows("M-5", 0)]
    assert written == [assumptions()["jobs"][name]["total_steps"] for name in assumptions()["mixes"]["M-5"]]
    changed = [row.total_steps for row in mix_rows("M-5", 2)]
    assert changed != written
    assert all(2 / 3 <= one / other <= 4 / 3 for one, other in zip(changed, written, strict=True))


@pytest.mark.parametrize("cluster", SMALL)
def test_one_job_gains_from_forks_the_sum_of_its_rates_over_the_best_and_no_more(cluster: str) -> None:
    nodes = nodes_named(cluster)
    (job,) = prepare(mix_rows("M-1", 0), shipped_table(), nodes)
    found = study([job], nodes, ["hadare", "gavel"], Settings(oracle=True))
    ceiling = sum(job.fork_rates.values()) / max(job.fork_rates.values())
    ratio = found.metrics["gavel"].ttd_s / found.metrics["hadare"].ttd_s
    assert found.metrics["gavel"].ttd_s / found.bounds["fluid_ttd_s"] == pytest.approx(ceiling, rel=0.001)
    assert ratio == pytest.approx(ceiling, rel=0.01)


@pytest.mark.parametrize("cluster", SMALL)
@pytest.mark.parametrize("mix", ["M-2", "M-7", "M-12"])
def test_forks_come_near_the_bound_of_a_mix_and_beat_gavel(cluster: str, mix: str) -> None:
    nodes = nodes_named(cluster)
    found = study(prepare(mix_rows(mix, 0), shipped_table(), nodes), nodes, ["hadare", "gavel"], EARLY)
    hadare, gavel, bounds = found.metrics["hadare"], found.metrics["gavel"], found.bounds
    assert 0.999 <= hadare.ttd_s / bounds["fluid_ttd_s"] <= 1.1
    assert 0.999 <= hadare.mean_jct_s / bounds["mean_jct_s"] <= 1.4
    assert hadare.ttd_s < gavel.ttd_s
    assert hadare.mean_jct_s < gavel.mean_jct_s
    assert hadare.cru > gavel.cru


EARLY = Settings(oracle=True, early_s=3.6)


def test_parts_that_run_side_by_side_give_what_they_give_one_after_another() -> None:
    parts = [
        Part("traces", mix, partial(case_of, mix, mix_rows(mix, 0), "aws-like", ("hadare",), EARLY))
        for mix in ("M-5", "M-1", "M-2")
    ]
    said: list[str] = []
    one, two = ([rows for rows, _ in run_parts(parts, workers, said.append)] for workers in (1, 2))
    assert [replace(row, decision_ms=0.0) for rows in one for row in rows] == [
        replace(row, decision_ms=0.0) for rows in two for row in rows
    ]
    assert sorted(line.split(":")[0] for line in said) == ["M-1", "M-1", "M-2", "M-2", "M-5", "M-5"]
