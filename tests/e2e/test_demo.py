"""The demonstration, whole: this is what ``make demo`` runs."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_clusters import LocalCluster, local_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    yield from local_cluster(tmp_path)


def test_every_job_reaches_its_steps_and_its_target(cluster: LocalCluster) -> None:
    output = cluster.hadare("demo", "--dir", ".hadare", "--json", "report.json", "--plain")
    report = json.loads((cluster.folder / "report.json").read_text())
    assert {"jobs", "ttd_s", "mean_jct_s", "cru", "ok"} <= report.keys()
    assert report["ok"] is True
    for job in report["jobs"]:
        assert {"name", "steps", "target_steps", "metric", "target", "reached", "forks", "versions"} <= job.keys()
        assert job["steps"] == job["target_steps"]
        assert job["forks"] > job["rounds"] > 0
        assert Path(job["trace"]).is_file()
    assert 0.5 < report["cru"] <= 1.0
    assert len(report["devices"]) == 5
    assert Path(report["timeline"]).is_file()
    assert "Every job reached its steps and its target." in output
    cluster.assert_gone()


def test_ctrl_c_ends_everything(cluster: LocalCluster) -> None:
    process = cluster.command("demo", "--dir", ".hadare", "--plain")
    assert process.stdout is not None
    while "devices busy" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 130, output
    cluster.assert_gone()
