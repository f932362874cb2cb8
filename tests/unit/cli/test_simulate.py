"""``hadare simulate`` and ``hadare trace`` from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hadare.cli.main import hadare

SMALL = ("simulate", "--cluster", "1x2:V100,1x2:K80", "--trace", "poisson_120", "--jobs", "4", "--oracle")


def run(*words: str) -> Result:
    return CliRunner().invoke(hadare, list(words), obj=None)


def document(*words: str) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_simulation_answers_with_the_documented_keys() -> None:
    found = document(*SMALL, "--policy", "hadare")
    wanted = {"ttd_s", "mean_jct_s", "median_jct_s", "p95_jct_s", "cru", "gru", "jobs_done", "preemptions"}
    assert wanted | {"decision_ms_median"} <= set(found["policies"]["hadare"])
    assert {"fluid_ttd_s", "fluid_ttd_gangs_s", "mean_jct_s"} <= set(found["bounds"])
    assert found["policies"]["hadare"]["jobs_done"] == found["jobs"] == 4
    assert found["devices"] == {"K80": 2, "V100": 2}


def test_policies_are_compared_on_the_same_jobs() -> None:
    jobs = ("simulate", "--cluster", "4:V100,4:K80", "--trace", "synthetic:jobs=3,gang=1", "--seed", "4")
    found = document(*jobs, "--policy", "hadare,yarn-cs")
    assert list(found["policies"]) == ["hadare", "yarn-cs"]
    assert all(figures["jobs_done"] == 3 for figures in found["policies"].values())


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    result = run(*SMALL, "--policy", "best")
    assert result.exit_code == 2
    assert "hadare" in result.output


def test_a_job_that_can_never_run_is_said_and_the_exit_code_tells() -> None:
    result = run("simulate", "--cluster", "1:V100", "--trace", "poisson_120", "--jobs", "1", "--policy", "gavel")
    assert result.exit_code == 1
    assert "never finished 1 jobs" in result.output


def test_a_report_is_written_where_it_was_asked_for(tmp_path: Path) -> None:
    document(*SMALL, "--report", str(tmp_path / "out"))
    assert (tmp_path / "out" / "report.html").read_text().count("<svg") > 8


def test_costs_make_a_run_longer() -> None:
    free = document(*SMALL)["policies"]["hadare"]["ttd_s"]
    dear = document(*SMALL, "--restart-cost", "120", "--boundary", "10")["policies"]["hadare"]["ttd_s"]
    assert dear > free * 1.02


def test_nodes_fail_by_a_schedule(tmp_path: Path) -> None:
    schedule = tmp_path / "events.csv"
    schedule.write_text("at_s,node,what\n100,v100-1,fail\n")
    found = document(*SMALL, "--events", str(schedule))["policies"]["hadare"]
    assert found["lost_device_s"] > 0


@pytest.mark.parametrize(
    ("text", "place"), [("100,v100-1,melt", "line 2, column 3 'what'"), ("x,v100-1,fail", "line 2, column 1 'at_s'")]
)
def test_a_bad_schedule_is_refused_with_line_and_column(tmp_path: Path, text: str, place: str) -> None:
    schedule = tmp_path / "events.csv"
    schedule.write_text(f"at_s,node,what\n{text}\n")
    result = run(*SMALL, "--events", str(schedule))
    assert result.exit_code == 2
    assert place in result.output.replace("\n", " ")


def test_a_restart_cost_that_is_no_number_is_refused() -> None:
    assert run(*SMALL, "--restart-cost", "much").exit_code == 2


def test_the_shipped_traces_are_listed() -> None:
    assert document("trace", "list")["traces"]["static_480"]["jobs"] == 480


def test_a_trace_that_was_made_can_be_read_again(tmp_path: Path) -> None:
    made = run("trace", "make", "--jobs", "6", "--interval", "60", "--seed", "3").stdout
    path = tmp_path / "made.csv"
    path.write_text(made)
    assert document("trace", "show", str(path))["jobs"] == 6
