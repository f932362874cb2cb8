"""The message API, asked through the Python client over a backplane in memory."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from builders_gateway import Others, a_client, a_fork, a_gateway, a_page, a_spec, waits
from hadare.client import HadareClient
from hadare.model.devices import NodeState
from hadare.model.errors import Rejected, Unavailable
from hadare.model.events import Event, LogLine
from hadare.model.jobs import JobState, Measured, ObjectRef
from hadare.model.leases import LeaseKey, StepReport
from hadare.model.plans import Decision, PriceCurve
from hadare.runtime.memory import MemoryHub
from hadare.wire import api, api_cluster, subjects
from hadare.wire.subjects import Endpoint


@pytest.fixture
def hub() -> MemoryHub:
    return MemoryHub()


@pytest.fixture
async def client(hub: MemoryHub) -> AsyncIterator[HadareClient]:
    async with a_gateway(hub), a_client(hub) as client:
        yield client
    assert hub.failures == []


@pytest.fixture
def others(hub: MemoryHub, client: HadareClient) -> Others:
    return Others(hub)


async def refused(act: Any) -> Rejected:
    with pytest.raises(Rejected) as refusal:
        await act
    return refusal.value


async def raw(client: HadareClient, endpoint: Endpoint[Any, Any], question: dict[str, Any]) -> Any:
    """As a user without our client would ask."""
    plain = Endpoint(endpoint.template, cast(type[dict[str, Any]], dict), endpoint.answer)
    return await client.ask(plain, question)


# Submitting


async def test_a_submitted_job_can_be_read_at_once(client: HadareClient) -> None:
    job = await client.submit(a_spec(name="mine"))
    status = await client.get(job.job_id)
    assert (status.name, status.state, status.total_steps) == ("mine", JobState.QUEUED, 100)


async def test_a_job_has_a_trace_even_if_nobody_traces(client: HadareClient) -> None:
    job = await client.submit(a_spec())
    assert len((await client.get(job.job_id)).trace_id) == 32


async def test_the_same_request_twice_is_one_job(client: HadareClient) -> None:
    first = await client.submit(a_spec(), request_id="r")
    second = await client.submit(a_spec(), request_id="r")
    assert (first.created, second.created, first.job_id) == (True, False, second.job_id)


async def test_the_same_request_with_another_spec_is_a_conflict(client: HadareClient) -> None:
    await client.submit(a_spec(), request_id="r")
    assert (await refused(client.submit(a_spec(seed=1), request_id="r"))).code == 409


async def test_a_taken_name_is_a_conflict(client: HadareClient) -> None:
    await client.submit(a_spec(name="mine"))
    assert (await refused(client.submit(a_spec(name="mine")))).code == 409


async def test_every_fault_of_request_and_spec_is_listed_by_path(client: HadareClient) -> None:
    question = {"spec": {"workload": "nonsense", "total_stepz": 1, "batch_size": 1}, "requestid": "r"}
    refusal = await refused(raw(client, api.SUBMIT, question))
    assert refusal.code == 400
    assert {fault["path"]: fault["message"] for fault in refusal.details["faults"]} == {
        "requestid": "there is no such field; did you mean 'request_id'?",
        "spec.workload": "expected pkg.module:Class or pkg.module:function, importable on the node agents",
        "spec.total_stepz": "there is no such field; did you mean 'total_steps'?",
        "spec.total_steps": "is missing",
    }


async def test_a_refused_spec_leaves_nothing(client: HadareClient, hub: MemoryHub) -> None:
    await refused(client.submit({"workload": "nonsense"}))
    assert hub.buckets["jobs"] == {}


async def test_a_spec_of_10_mb_is_refused_with_the_limit_leaves_nothing_and_the_next_one_is_taken(
    client: HadareClient, hub: MemoryHub
) -> None:
    refusal = await refused(client.submit(a_spec(config={"text": "x" * 10**7})))
    assert refusal.code == 413
    assert "over the limit of" in refusal.message or "at most" in refusal.message
    assert hub.buckets["jobs"] == {}
    assert (await client.submit(a_spec())).created


async def test_a_submission_without_a_request_id_is_accepted(client: HadareClient) -> None:
    assert (await raw(client, api.SUBMIT, {"spec": a_spec()})).created


async def test_an_unknown_field_of_any_question_is_refused_with_a_suggestion(client: HadareClient) -> None:
    refusal = await refused(raw(client, api.LIST, {"limits": 5}))
    assert "did you mean 'limit'?" in refusal.message


# Naming and listing


async def test_a_job_is_found_by_its_name(client: HadareClient) -> None:
    job = await client.submit(a_spec(name="mine"))
    assert (await client.get("mine")).job_id == job.job_id


@pytest.mark.parametrize("name", ["nobody", "mime", "not a name", "a.b", "*"])
async def test_an_unknown_job_is_not_found(client: HadareClient, name: str) -> None:
    assert (await refused(client.get(name))).code == 404


async def test_a_name_that_is_nearly_right_gets_a_suggestion(client: HadareClient, others: Others) -> None:
    await client.submit(a_spec(name="digits-long"))
    await others.settle()
    assert "did you mean 'digits-long'?" in (await refused(client.get("digit-long"))).message


async def test_a_list_comes_in_pages_without_gaps_or_repeats(client: HadareClient, others: Others) -> None:
    submitted = [(await client.submit(a_spec())).job_id for _ in range(7)]
    await others.settle()
    listed = [job.job_id async for job in client.list(page=3)]
    assert sorted(listed) == sorted(submitted)


async def test_a_list_can_be_of_one_state(client: HadareClient, others: Others) -> None:
    done, _open = await client.submit(a_spec()), await client.submit(a_spec())
    await others.progress(done.job_id, JobState.COMPLETED)
    assert [job.job_id async for job in client.list(JobState.COMPLETED)] == [done.job_id]


async def test_a_page_of_a_list_never_exceeds_a_message(client: HadareClient, others: Others) -> None:
    jobs = [(await client.submit(a_spec())).job_id for _ in range(8)]
    for job_id in jobs:
        excluded = {f"node-{number}": "x" * 4000 for number in range(50)}
        await others.progress(job_id, JobState.QUEUED, excluded=excluded)
    answer = await client.ask(api.LIST, api.ListJobs(limit=1000))
    assert 0 < len(answer.jobs) < 8
    assert len([job async for job in client.list(page=1000)]) == 8


# Joining


async def test_a_status_shows_what_the_tracker_counted(client: HadareClient, others: Others) -> None:
    job = await client.submit(a_spec())
    rate = Measured(steps_per_s=4.0, count=3)
    await others.progress(
        job.job_id, JobState.RUNNING, steps=40, version=2, metrics={"acc": 0.5}, eta_s=9.0, throughput={"T4": rate}
    )
    status = await client.get(job.job_id)
    assert (status.steps, status.version, status.metrics, status.eta_s) == (40, 2, {"acc": 0.5}, 9.0)
    assert status.throughput == {"T4": 4.0}


async def test_a_waiting_job_says_why_at_which_position_and_behind_whom(client: HadareClient, others: Others) -> None:
    job = await client.submit(a_spec())
    await others.progress(job.job_id, JobState.WAITING)
    await others.plan(3, a_page(3, decisions=(waits(job.job_id),)))
    status = await client.get(job.job_id)
    assert status.reason == "all devices are taken; position 2; behind other"
    assert status.decision == waits(job.job_id)


async def test_a_plan_that_no_head_names_yet_says_nothing(client: HadareClient, others: Others) -> None:
    job = await client.submit(a_spec())
    await others.plan(3, a_page(3, decisions=(waits(job.job_id, "old"),)))
    await others.backplane.table(subjects.ROUND_PAGES).put("4.0", a_page(4, decisions=(waits(job.job_id, "new"),)))
    await others.settle()
    assert cast(Decision, (await client.get(job.job_id)).decision).message == "old"


async def test_the_forks_of_the_open_round_are_shown_with_their_last_report(
    client: HadareClient, others: Others
) -> None:
    job = await client.submit(a_spec())
    await others.progress(job.job_id, JobState.RUNNING)
    await others.plan(3, a_page(3, forks=(a_fork(job.job_id), a_fork(job.job_id, "n2", "T4", fork=1))))
    key = LeaseKey(job_id=job.job_id, round=3, fork=1)
    report = StepReport(key=key, node="n2", device_type="T4", steps=7, loss=0.25, steps_per_s=3.5)
    await others.backplane.bus.publish(subjects.STEP_REPORT, report, node="n2")
    await others.settle()
    forks = (await client.get(job.job_id)).forks
    assert [(fork.node, fork.type, fork.steps, fork.loss) for fork in forks] == [
        ("n1", "V100", 0, None),
        ("n2", "T4", 7, 0.25),
    ]


async def test_a_report_of_an_older_round_is_not_shown(client: HadareClient, others: Others) -> None:
    job = await client.submit(a_spec())
    key = LeaseKey(job_id=job.job_id, round=2, fork=0)
    report = StepReport(key=key, node="n1", device_type="V100", steps=7)
    await others.backplane.bus.publish(subjects.STEP_REPORT, report, node="n1")
    await others.plan(3, a_page(3, forks=(a_fork(job.job_id),)))
    assert (await client.get(job.job_id)).forks[0].steps == 0


async def test_no_forks_are_shown_between_rounds(client: HadareClient, others: Others) -> None:
    job = await client.submit(a_spec())
    await others.plan(3, a_page(3, forks=(a_fork(job.job_id),)), state="closed")
    assert (await client.get(job.job_id)).forks == ()


# What users want


async def test_a_cancelled_job_is_cancelling_at_once(client: HadareClient, others: Others) -> None:
    job = await client.submit(a_spec())
    await others.progress(job.job_id, JobState.RUNNING)
    assert (await client.cancel(job.job_id)).state is JobState.CANCELLING
    assert (await client.get(job.job_id)).state is JobState.CANCELLING


async def test_a_job_pauses_and_resumes(client: HadareClient) -> None:
    job = await client.submit(a_spec())
    assert (await client.pause(job.job_id)).desired == "paused"
    assert (await client.resume(job.job_id)).desired == "run"


async def test_a_cancelled_job_cannot_be_resumed(client: HadareClient) -> None:
    job = await client.submit(a_spec())
    await client.cancel(job.job_id)
    assert (await refused(client.resume(job.job_id))).code == 409


async def test_every_wish_is_an_event_once(client: HadareClient, hub: MemoryHub) -> None:
    job = await client.submit(a_spec())
    await client.cancel(job.job_id)
    await client.cancel(job.job_id)
    assert [stored.event.what for stored in hub.events] == ["submitted", "cancel_requested"]


async def test_an_open_job_cannot_be_deleted(client: HadareClient) -> None:
    job = await client.submit(a_spec())
    assert (await refused(client.delete(job.job_id))).code == 409


async def test_an_ended_job_can_be_deleted_and_its_name_used_again(client: HadareClient, others: Others) -> None:
    job = await client.submit(a_spec(name="mine"))
    await others.progress(job.job_id, JobState.COMPLETED)
    assert (await client.delete("mine")).job_id == job.job_id
    assert (await refused(client.get("mine"))).code == 404
    assert (await client.submit(a_spec(name="mine"))).created


# Watching


async def test_a_watch_gives_the_status_then_every_event_until_the_job_has_ended(
    client: HadareClient, others: Others
) -> None:
    job = await client.submit(a_spec())
    seen: list[str] = []
    async for news in client.watch(job.job_id):
        if isinstance(news, api.JobStatus):
            seen.append(news.state)
            continue
        seen.append(news.event.what)
        if news.event.what == "submitted":
            await tell(others, job.job_id, "started")
        if news.event.what == "started":
            await others.progress(job.job_id, JobState.COMPLETED)
            await tell(others, job.job_id, "completed")
    assert seen == ["queued", "submitted", "started", "completed"]


async def test_a_watch_from_a_sequence_number_repeats_nothing(client: HadareClient, others: Others) -> None:
    job = await client.submit(a_spec())
    await tell(others, job.job_id, "started")
    await tell(others, job.job_id, "completed")
    await others.progress(job.job_id, JobState.COMPLETED)
    assert [n.event.what async for n in client.watch(job.job_id, from_seq=2) if not isinstance(n, api.JobStatus)] == [
        "completed"
    ]


async def test_a_watch_names_the_subject_of_the_events(client: HadareClient) -> None:
    job = await client.submit(a_spec())
    answer = await client.ask(api.WATCH, api.Watch(job_id=job.job_id))
    assert answer.subject == f"hadare.event.v1.job.{job.job_id}.>"
    assert [stored.sequence for stored in answer.events] == [answer.last_seq]


async def test_waiting_ends_with_the_jobs_end(client: HadareClient, others: Others) -> None:
    job = await client.submit(a_spec())
    await others.progress(job.job_id, JobState.FAILED, error="ImportError: no module named pkg")
    status = await client.wait(job.job_id)
    assert (status.state, status.error) == (JobState.FAILED, "ImportError: no module named pkg")


async def test_waiting_has_a_time_limit(client: HadareClient) -> None:
    job = await client.submit(a_spec())
    with pytest.raises(TimeoutError):
        await client.wait(job.job_id, timeout_s=0.01)


async def tell(others: Others, job_id: str, what: str) -> None:
    await others.backplane.journal.append(Event(kind="job", id=job_id, what=what), f"{job_id}:{what}")


async def test_logs_come_in_order_and_can_be_narrowed_to_a_fork(client: HadareClient, others: Others) -> None:
    job = await client.submit(a_spec())
    for number in range(5):
        line = LogLine(job_id=job.job_id, round=1, fork=number % 2, node="n1", text=f"line {number}")
        await others.backplane.journal.log(line)
    assert [line.text async for line in client.logs(job.job_id)] == [f"line {number}" for number in range(5)]
    assert [line.text async for line in client.logs(job.job_id, fork=1)] == ["line 1", "line 3"]


# Weights


async def a_model(others: Others, job_id: str, folder: Path) -> ObjectRef:
    path = folder / "weights"
    path.write_bytes(b"weights of a model")
    return await others.backplane.objects(subjects.WEIGHTS).put(path, "label")


async def test_the_newest_weights_are_fetched_whole(client: HadareClient, others: Others, tmp_path: Path) -> None:
    job = await client.submit(a_spec())
    ref = await a_model(others, job.job_id, tmp_path)
    await others.progress(job.job_id, JobState.COMPLETED, version=1, weights=ref)
    await others.version(job.job_id, 1, ref, metrics={"acc": 0.9})
    found = await client.weights_get(job.job_id, tmp_path / "copy")
    assert (found.version, found.metrics, found.bucket) == (1, {"acc": 0.9}, "hadare_weights")
    assert hashlib.sha256((tmp_path / "copy").read_bytes()).hexdigest() == found.weights.sha256


async def test_a_version_that_progress_does_not_name_yet_does_not_exist(
    client: HadareClient, others: Others, tmp_path: Path
) -> None:
    job = await client.submit(a_spec())
    ref = await a_model(others, job.job_id, tmp_path)
    await others.progress(job.job_id, JobState.RUNNING, version=1)
    for number in (0, 1, 2):
        await others.version(job.job_id, number, ref)
    assert [version.version async for version in client.weights_list(job.job_id)] == [1, 0]
    assert (await refused(client.weights_get(job.job_id, tmp_path / "x", version=2))).code == 404


async def test_weights_that_are_no_longer_kept_are_not_found_but_listed(
    client: HadareClient, others: Others, tmp_path: Path
) -> None:
    job = await client.submit(a_spec())
    ref = await a_model(others, job.job_id, tmp_path)
    await others.progress(job.job_id, JobState.RUNNING, version=1)
    await others.version(job.job_id, 0, ref, weights_deleted=True)
    await others.version(job.job_id, 1, ref)
    assert [(v.version, v.available) async for v in client.weights_list(job.job_id)] == [(1, True), (0, False)]
    assert "no longer kept" in (await refused(client.weights_get(job.job_id, tmp_path / "x", version=0))).message


async def test_many_versions_are_listed_in_pages(client: HadareClient, others: Others, tmp_path: Path) -> None:
    job = await client.submit(a_spec())
    ref = await a_model(others, job.job_id, tmp_path)
    await others.progress(job.job_id, JobState.RUNNING, version=44)
    for number in range(45):
        await others.version(job.job_id, number, ref)
    assert [version.version async for version in client.weights_list(job.job_id)] == list(range(44, -1, -1))


async def test_a_job_without_a_model_says_so(client: HadareClient, tmp_path: Path) -> None:
    job = await client.submit(a_spec())
    assert "no model yet" in (await refused(client.weights_get(job.job_id, tmp_path / "x"))).message


# The cluster


async def test_nodes_are_listed_with_state_wish_and_who_holds_which_device(
    client: HadareClient, others: Others
) -> None:
    job = await client.submit(a_spec())
    await others.node("n1", "V100", "T4")
    await others.plan(3)
    await others.lease(job.job_id, round_no=3, device=1)
    (node,) = await client.nodes()
    assert (node.state, node.drain) == (NodeState.READY, False)
    assert [(device.type, device.job_id) for device in node.devices] == [("V100", None), ("T4", job.job_id)]


async def test_leases_of_an_older_round_hold_nothing(client: HadareClient, others: Others) -> None:
    job = await client.submit(a_spec())
    await others.node("n1", "V100")
    await others.plan(4)
    await others.lease(job.job_id, round_no=3, device=0)
    assert (await client.nodes())[0].devices[0].job_id is None


async def test_draining_a_node_is_recorded_as_a_wish(client: HadareClient, others: Others) -> None:
    await others.node("n1", "V100")
    assert (await client.drain("n1", "new fan")).drain
    entry = await others.backplane.table(subjects.NODE_WISHES).get("n1")
    assert entry is not None
    assert (entry.record.drain, entry.record.reason) == (True, "new fan")
    assert not (await client.undrain("n1")).drain


async def test_putting_a_node_back_pardons_it_each_time(client: HadareClient, others: Others) -> None:
    await others.node("n1", "V100")
    pardons = []
    for act in (client.undrain, client.drain, client.undrain):
        await act("n1")
        entry = await others.backplane.table(subjects.NODE_WISHES).get("n1")
        assert entry is not None
        pardons.append(entry.record.pardon)
    assert pardons == [1, 1, 2]


async def test_an_unknown_node_cannot_be_drained(client: HadareClient, others: Others) -> None:
    await others.node("node-1", "V100")
    refusal = await refused(client.drain("node-2"))
    assert refusal.code == 404
    assert "node-1" in refusal.message


async def test_a_lost_node_is_forgotten_with_what_was_wished_of_it(client: HadareClient, others: Others) -> None:
    await others.node("n1", "V100")
    await client.drain("n1")
    await others.node("n2", "T4")
    await others.node("n1", "V100", state=NodeState.LOST)
    assert (await client.forget("n1", "sold")).node == "n1"
    await others.settle()
    assert [node.node for node in await client.nodes()] == ["n2"]
    assert await others.backplane.table(subjects.NODE_WISHES).get("n1") is None
    (event,) = [e.event for e in await others.backplane.journal.read("node", "n1") if e.event.what == "forgotten"]
    assert event.data == {"reason": "sold"}


@pytest.mark.parametrize("state", [NodeState.READY, NodeState.SUSPECT, NodeState.DRAINING, None])
async def test_a_node_that_is_not_lost_is_not_forgotten(
    client: HadareClient, others: Others, state: NodeState | None
) -> None:
    await others.node("n1", "V100", state=state)
    refusal = await refused(client.forget("n1"))
    assert refusal.code == 409
    assert "only a lost node can be forgotten" in refusal.message
    assert [node.node for node in await client.nodes()] == ["n1"]


async def test_an_unknown_node_cannot_be_forgotten(client: HadareClient, others: Others) -> None:
    await others.node("node-1", "V100", state=NodeState.LOST)
    refusal = await refused(client.forget("node-2"))
    assert refusal.code == 404
    assert "node-1" in refusal.message


async def test_prices_are_those_of_the_next_device_and_none_where_all_are_taken(
    client: HadareClient, others: Others
) -> None:
    free = PriceCurve(node="n1", type="V100", capacity=2, u_min=1.0, u_max=100.0, taken=1)
    full = PriceCurve(node="n2", type="T4", capacity=1, u_min=1.0, u_max=100.0, taken=1)
    await others.prices(5, full, free)
    prices = await client.prices()
    assert prices.round == 5
    assert [(cell.node, cell.price) for cell in prices.cells] == [("n1", pytest.approx(10.0)), ("n2", None)]


async def test_before_the_first_round_there_are_no_prices(client: HadareClient) -> None:
    assert (await client.prices()).round == -1


async def test_rounds_are_listed_newest_first_in_numbers(client: HadareClient, others: Others) -> None:
    chosen = Decision(job_id="a", code="chosen")
    for number in (1, 2):
        await others.plan(number, a_page(number, forks=(a_fork("a"),), decisions=(chosen, waits("b"))))
    answer = await client.rounds()
    assert [(entry.round, entry.forks, entry.placed, entry.waiting) for entry in answer.rounds] == [
        (2, 1, 1, 1),
        (1, 1, 1, 1),
    ]
    assert answer.head is not None
    assert answer.head.round == 2


async def test_a_round_is_read_whole_over_its_pages(client: HadareClient, others: Others) -> None:
    await others.plan(1, a_page(1, 0, 2, forks=(a_fork("a"),)), a_page(1, 1, 2, forks=(a_fork("b"),)))
    view = await client.round()
    assert [fork.job_id for fork in view.forks] == ["a", "b"]
    assert (view.round, view.state, view.policy) == (1, "open", "hadare")


async def test_a_round_that_was_never_planned_is_not_found(client: HadareClient) -> None:
    assert (await refused(client.round())).code == 404
    assert (await refused(client.round(7))).code == 404


async def test_the_cluster_is_well_if_all_services_answer_and_a_node_is_ready(
    client: HadareClient, others: Others
) -> None:
    assert (await client.status()).problems == ("no node is ready",)
    await others.node("n1", "V100")
    await client.submit(a_spec())
    await others.settle()
    status = await client.status()
    assert status.ok
    assert status.jobs == {"queued": 1}
    assert [service.name for service in status.services] == ["allocator", "gateway", "jobtracker", "pricing"]


async def test_a_lost_node_is_named_among_the_problems(client: HadareClient, others: Others) -> None:
    await others.node("n1", "V100")
    await others.node("n2", "V100", state=NodeState.LOST)
    status = await client.status()
    assert status.ok
    assert "n2 is lost" in status.problems[0]


# Several gateways


async def test_what_one_gateway_stores_another_one_knows(hub: MemoryHub) -> None:
    async with a_gateway(hub, "first"), a_client(hub) as client:
        await client.submit(a_spec(name="mine"))
    async with a_gateway(hub, "second"), a_client(hub) as client:
        assert (await client.get("mine")).name == "mine"
        assert [job.name async for job in client.list()] == ["mine"]


async def test_a_question_nobody_answers_ends_as_unavailable(hub: MemoryHub) -> None:
    async with HadareClient(hub.connect("client"), timeout_s=0.05, patience_s=0.1) as client:
        with pytest.raises(Unavailable):
            await client.get("mine")


async def test_a_question_waits_for_a_gateway_that_comes_back(hub: MemoryHub) -> None:
    async with a_client(hub) as client:
        import asyncio

        asking = asyncio.create_task(client.submit(a_spec()))
        await asyncio.sleep(0)
        async with a_gateway(hub):
            assert (await asking).created


async def test_empty_questions_need_no_fields(client: HadareClient) -> None:
    assert isinstance(await raw(client, api_cluster.STATUS, {}), api_cluster.ClusterStatus)
