"""A cluster on one machine, used from outside: by the ``hadare`` command, and by the NATS protocol alone."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
import torch
from safetensors.torch import load_file

from hadare.training.task import build_task
from local_clusters import LocalCluster, digits, local_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    yield from local_cluster(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="module")
def started(cluster: LocalCluster) -> Any:
    return cluster.up("--cluster", "1x1:V100,1x1:T4", "--round", "2")


def test_it_is_up_when_the_command_returns(cluster: LocalCluster, started: Any) -> None:
    assert {"nats_url", "http_url", "services", "nodes", "ok"} <= started.keys()
    assert started["ok"] is True
    assert started["http_url"] is None
    assert {service["name"] for service in started["services"]} == {"gateway", "pricing", "allocator", "jobtracker"}
    assert {node["node"]: node["state"] for node in started["nodes"]} == {"t4-1": "ready", "v100-1": "ready"}


def test_it_holds_its_directory_alone(cluster: LocalCluster, started: Any) -> None:
    assert "already running" in cluster.hadare("up", "--detach", status=4)


def test_the_reported_metric_is_that_of_the_weights_that_one_gets(cluster: LocalCluster, started: Any) -> None:
    spec = digits("reproduced", 400)
    job = cluster.json("submit", cluster.write_job(spec), "--wait")
    assert (job["state"], job["steps"]) == ("completed", 400)
    fetched = cluster.json("weights", "get", "reproduced", "-o", "weights.safetensors")
    assert fetched["version"] == job["version"]
    assert evaluated(spec, cluster.folder / "weights.safetensors") == pytest.approx(job["metrics"], rel=1e-5)


async def test_the_nats_protocol_alone_is_enough(cluster: LocalCluster, started: Any) -> None:
    spec = digits("protocol", 400)
    connection = await nats.connect(started["nats_url"])

    async def ask(verb: str, **question: Any) -> Any:
        answer = await connection.request(f"hadare.api.v1.{verb}", json.dumps(question).encode(), timeout=10)
        assert "Nats-Service-Error" not in (answer.headers or {}), answer.data
        return json.loads(answer.data)

    job_id = (await ask("jobs.submit", spec=spec, request_id="once"))["job_id"]
    assert (await ask("jobs.submit", spec=spec, request_id="once")) == {
        "job_id": job_id,
        "name": "protocol",
        "created": False,
    }
    events = await connection.subscribe((await ask("jobs.watch", job_id=job_id))["subject"])
    while (job := await ask("jobs.get", job_id=job_id))["state"] != "completed":
        await events.next_msg(timeout=60)
    fetched = await ask("weights.get", job_id=job_id)
    store = await connection.jetstream().object_store(fetched["bucket"])
    data = (await store.get(fetched["weights"]["name"])).data
    await connection.close()
    assert data is not None
    assert hashlib.sha256(data).hexdigest() == fetched["weights"]["sha256"]
    path = cluster.folder / "protocol.safetensors"
    path.write_bytes(data)
    assert evaluated(spec, path) == pytest.approx(job["metrics"], rel=1e-5)


def evaluated(spec: dict[str, Any], path: Path) -> dict[str, float]:
    """What the workload says of a weights file, read by nothing but safetensors and torch."""
    task, _ = build_task(spec["workload"], spec["config"], spec["batch_size"], seed=0)
    model = task.build_model()
    tensors = load_file(path)
    model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    model.eval()
    with torch.no_grad():
        return task.evaluate(model)


async def test_after_down_nothing_is_left_and_up_goes_on_where_it_was(cluster: LocalCluster, started: Any) -> None:
    cluster.hadare("submit", cluster.write_job(digits("long", 900)))
    await cluster.until_event("long", "consolidated")
    cluster.hadare("down")
    cluster.assert_gone()
    assert cluster.up()["nats_url"] == started["nats_url"]
    cluster.hadare("watch", "long")
    job = cluster.json("job", "long")
    assert (job["state"], job["steps"]) == ("completed", 900)


def test_down_says_when_there_is_nothing_to_end(cluster: LocalCluster, started: Any) -> None:
    assert cluster.json("down")["stopped"] is True
    assert cluster.json("down")["stopped"] is False
    cluster.assert_gone()
