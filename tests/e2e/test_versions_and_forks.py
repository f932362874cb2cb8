"""What a job's options do to its forks and its versions, on a cluster as a user starts it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from local_clusters import LocalCluster, digits, local_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    for running in local_cluster(tmp_path_factory.mktemp("cluster")):
        running.up("--cluster", "1x1:V100,1x1:K80", "--round", "2")
        yield running


def done(cluster: LocalCluster, name: str, steps: int, **spec: Any) -> Any:
    """A job that has come to its end, with its history."""
    job = cluster.json("submit", cluster.write_job({**digits(name, steps), **spec}), "--wait")
    assert job["state"] == "completed", job
    return cluster.json("job", name, "--history", "100")


def forks_by_round(job: Any) -> list[int]:
    return [version["forks"] for version in job["history"] if version["version"] > 0]


def test_a_job_ends_with_the_version_that_reaches_its_target(cluster: LocalCluster) -> None:
    job = done(cluster, "target", 20_000, until={"metric": "accuracy", "at_least": 0.95})
    assert job["reason"] == "its target is reached"
    assert job["steps"] < 20_000
    assert job["metrics"]["accuracy"] >= 0.95
    assert job["metrics_version"] == job["version"]


def test_a_target_out_of_reach_ends_with_the_budget_and_one_by_an_unknown_name_says_what_there_is(
    cluster: LocalCluster,
) -> None:
    beyond = done(cluster, "beyond", 300, until={"metric": "accuracy", "at_least": 2.0})
    assert beyond["reason"] == "its budget is used up before accuracy reached the target"
    unknown = done(cluster, "unknown", 300, until={"metric": "bleu", "at_least": 0.5})
    assert "it reports no metric 'bleu', only: accuracy" in unknown["reason"]


def test_a_job_does_not_fork_before_it_is_to(cluster: LocalCluster) -> None:
    job = done(cluster, "after", 1000, fork_after=2)
    assert forks_by_round(job)[:3] == [1, 1, 2]


def test_a_job_that_waits_for_the_bend_forks_once_its_history_says_that_it_came(cluster: LocalCluster) -> None:
    forks = forks_by_round(done(cluster, "bend", 1600, fork_after="auto"))
    alone = forks.index(2)
    assert alone >= 3
    assert forks[:alone] == [1] * alone
    events = cluster.json("watch", "bend")["events"]
    (bent,) = [one["event"]["data"] for one in events if one["event"]["what"] == "bent"]
    assert len(bent["losses"]) >= 2


def test_a_device_that_would_add_too_little_is_left_out(cluster: LocalCluster) -> None:
    job = done(cluster, "share", 600, min_fork_share=0.5)
    assert set(forks_by_round(job)) == {1}
    assert set(job["throughput"]) == {"V100"}


TIGHT = """
import os
import torch
from hadare.training.workloads.digits import Digits

class Tight(Digits):
    def loss(self, model, batch):
        if "k80" in os.environ["HADARE_ARTIFACTS"]:  # the folder of a fork is in that of its node
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return super().loss(model, batch)
"""


def test_a_job_that_does_not_fit_a_type_of_device_completes_on_the_others_and_says_why(cluster: LocalCluster) -> None:
    code = cluster.folder / "code"
    code.mkdir()
    (code / "tight.py").write_text(TIGHT)
    spec = {**digits("tight", 300), "workload": "tight:Tight"}
    job = cluster.json("submit", cluster.write_job(spec), "--code", str(code), "--wait")
    assert job["state"] == "completed", job
    assert job["excluded_types"] == {"K80": "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"}
    assert (job["excluded"], set(job["throughput"])) == ({}, {"V100"})
    assert "K80: OutOfMemoryError: CUDA out of memory" in cluster.hadare("job", "tight")
    events = cluster.json("watch", "tight")["events"]
    (told,) = [one["event"]["data"] for one in events if one["event"]["what"] == "type_excluded"]
    assert told["device_type"] == "K80"


def test_a_job_is_told_what_forking_was_worth_to_it(cluster: LocalCluster) -> None:
    job = done(cluster, "truth", 800)
    assert 0.0 < job["truth"]["gain"] < 1.3
    assert 0.0 < job["truth"]["agreement"] <= 1.0
    assert all(version["fork_gain"] for version in job["history"] if version["forks"] > 1)
    listed = cluster.json("weights", "list", "truth")["versions"]
    assert all(parent["delta_norm"] > 0 for version in listed for parent in version["parents"])
    assert "times the fastest fork alone" in cluster.hadare("job", "truth")


def test_old_versions_lose_their_weights_and_new_ones_can_be_listed_fetched_compared_and_exported(
    cluster: LocalCluster,
) -> None:
    job = done(cluster, "kept", 1800, consolidation={"ema_half_life": "round"})
    newest = job["version"]
    assert newest >= 4
    listed = cluster.json("weights", "list", "kept")["versions"]
    assert [version["version"] for version in listed if version["available"]] == [newest, newest - 1, newest - 2]
    assert len(listed) == newest + 1
    assert "no longer kept" in cluster.hadare("weights", "get", "kept", "--version", "1", status=3)
    moved = cluster.json("weights", "diff", "kept", str(newest - 1))["tensors"]
    assert any(tensor["change"] > 0 for tensor in moved)
    cluster.json("weights", "export", "kept", "-o", "plain.safetensors")
    cluster.json("weights", "export", "kept", "--ema", "--format", "torch", "-o", "ema.pt")
    plain = load_file(cluster.folder / "plain.safetensors")
    smooth = torch.load(cluster.folder / "ema.pt", weights_only=True)
    assert sorted(plain) == sorted(smooth)
    assert not all(torch.equal(plain[name], smooth[name]) for name in plain)
