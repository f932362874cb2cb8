"""The report stands alone and shows every policy."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from builders_simulator import a_sim_job, a_sim_node
from hadare.simulator.report import draw, write_report
from hadare.simulator.settings import Settings
from hadare.simulator.study import Study, study


@pytest.fixture(scope="module")
def made() -> Study:
    jobs = [a_sim_job(f"job-{n}", 9000 * (n + 1), arrival_s=300.0 * n) for n in range(3)]
    nodes = [a_sim_node("n1", V100=2), a_sim_node("n2", K80=2)]
    return study(jobs, nodes, ["hadare", "yarn-cs"], Settings(oracle=True, detail=True))


def test_every_picture_is_well_formed(made: Study) -> None:
    for svg in draw(made).values():
        ElementTree.fromstring(svg)


def test_the_gantt_chart_has_a_bar_for_each_stretch(made: Study) -> None:
    svg = draw(made)["gantt-hadare"]
    assert svg.count("<title>") == len(made.outcomes["hadare"].stretches)


def test_the_page_loads_nothing_from_elsewhere(made: Study, tmp_path: Path) -> None:
    page = write_report(made, tmp_path / "new", "a trace").read_text()
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in page


def test_the_page_names_policies_bounds_and_the_trace(made: Study, tmp_path: Path) -> None:
    page = write_report(made, tmp_path, "trace <b>").read_text()
    assert all(word in page for word in ("hadare", "yarn-cs", "fluid_ttd_s", "trace &lt;b&gt;"))


def test_the_document_has_the_documented_keys(made: Study) -> None:
    document = made.document()
    keys = {"ttd_s", "mean_jct_s", "median_jct_s", "p95_jct_s", "cru", "gru", "jobs_done", "preemptions"}
    ratios = {"ttd_over_bound", "mean_jct_over_bound"}
    assert keys | ratios | {"decision_ms_median"} <= set(document["policies"]["hadare"])
    assert {"fluid_ttd_s", "fluid_ttd_gangs_s", "mean_jct_s"} <= set(document["bounds"])


def test_no_policy_beats_the_bounds(made: Study) -> None:
    for metrics in made.metrics.values():
        assert metrics.ttd_s >= made.bounds["fluid_ttd_s"] * 0.999
        assert metrics.mean_jct_s >= made.bounds["mean_jct_s"] * 0.999
