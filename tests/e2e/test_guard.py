"""A guard in a whole cluster: real forks, real candidates, evaluated by the agents that trained."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from hadare.forking.outer import choose
from hadare.model.jobs import GuardSpec
from local_clusters import LocalCluster, local_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

GUARD = GuardSpec(metric="loss", better="lower")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    for running in local_cluster(tmp_path_factory.mktemp("cluster")):
        running.up("--cluster", "1x1:V100,1x1:T4", "--round", "4")
        yield running


def a_guarded_job(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "workload": "hadare.training.workloads.digits:Digits",
        "config": {"lr": 0.002},
        "batch_size": 16,
        "total_steps": 1200,
        "consolidation": {"guard": {"metric": "loss", "better": "lower"}},
        **changes,
    }


def versions_of(cluster: LocalCluster, name: str) -> list[dict[str, Any]]:
    """Those that forks have made, oldest first."""
    listed = cluster.json("weights", "list", name)["versions"]
    return [version for version in reversed(listed) if version["version"] > 0]


def test_every_version_is_the_best_candidate_and_has_its_metrics(cluster: LocalCluster) -> None:
    job = cluster.json("submit", cluster.write_job(a_guarded_job("guarded")), "--wait")
    assert (job["state"], job["steps"]) == ("completed", 1200)
    made = versions_of(cluster, "guarded")
    # On a slow machine a guard may be late, and then pauses.
    seen = [version for version in made if version["guard"] and not version["guard"]["reason"]]
    assert seen
    for version in seen:
        scores = version["guard"]["scores"]
        several = {"fastest"} if len(version["parents"]) > 1 else set()
        assert set(scores) == {"average", "longer", "nesterov"} | several
        assert version["guard"]["chosen"] == choose(scores, GUARD)
        assert version["metrics"]["loss"] == pytest.approx(scores[version["guard"]["chosen"]])
    # At a tenth of the usual learning rate, more of the same is better.
    assert {version["guard"]["chosen"] for version in seen} - {"average"}
    assert made[-1]["steps"] == sum(parent["steps"] for version in made for parent in version["parents"]) == 1200


def test_a_metric_that_the_workload_does_not_report_leaves_the_average_and_is_told(cluster: LocalCluster) -> None:
    guard = {"guard": {"metric": "bleu", "better": "higher"}}
    spec = a_guarded_job("unseen", total_steps=400, consolidation=guard)
    assert cluster.json("submit", cluster.write_job(spec), "--wait")["state"] == "completed"
    for version in versions_of(cluster, "unseen"):
        assert version["guard"]["chosen"] == "average"
        assert "no metric 'bleu'" in version["guard"]["reason"]
    assert "no metric 'bleu'" in cluster.hadare("job", "unseen").replace("\n", " ")


async def test_an_agent_that_dies_while_it_evaluates_costs_the_choice_and_not_the_round(cluster: LocalCluster) -> None:
    code = cluster.folder / "code"
    code.mkdir()
    (code / "slow_judge.py").write_text(
        "import time\n"
        "from hadare.training.workloads.digits import Digits\n"
        "class SlowJudge(Digits):\n"
        "    def evaluate(self, model):\n"
        "        print('judging', flush=True)\n"
        "        time.sleep(0.4)\n"
        "        return super().evaluate(model)\n"
    )
    how = {"guard": {"metric": "loss", "better": "lower"}, "ema_half_life": None}
    spec = a_guarded_job("struck", workload="slow_judge:SlowJudge", total_steps=3000, consolidation=how)
    cluster.hadare("submit", cluster.write_job(spec), "--code", str(code))
    judge = await _first_judge(cluster, "struck")
    psutil.Process(cluster.pid_of(judge)).kill()
    await cluster.until_event("struck", "consolidated")
    version = versions_of(cluster, "struck")[0]
    assert version["guard"]["chosen"] == "average"
    assert version["guard"]["reason"]
    assert version["steps"] > 0
    assert cluster.json("job", "struck")["lost_rounds"] == 0
    cluster.hadare("cancel", "struck")


async def _first_judge(cluster: LocalCluster, job: str) -> str:
    """The node that evaluates first, by what is printed there."""
    async with cluster.client() as client, asyncio.timeout(60):
        async for entry in client.logs(job, follow=True):
            if "judging" in entry.text:
                return entry.node
    raise AssertionError("nobody evaluates")
