"""Real OTLP, captured by a collector in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from hadare.model.devices import Heartbeat
from hadare.model.errors import Rejected
from hadare.model.leases import Revoke, Revoked
from hadare.runtime import telemetry
from hadare.runtime.bus import Identity, Route
from hadare.runtime.nats_connection import NatsBackplane
from hadare.wire.subjects import HEARTBEAT, REVOKE
from nats_fixtures import Connect
from otlp import Collector, collecting

pytestmark = pytest.mark.integration

CLIENT, SERVER, ERROR = 3, 2, 2


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        telemetry.configure("tester", "t1", running.endpoint)
        yield running
        telemetry.shutdown()


async def revoke(question: Revoke) -> Revoked:
    with telemetry.span("end the forks"):
        if question.reason:
            raise Rejected(409, question.reason)
        return Revoked()


@pytest.fixture
async def served(connect: Connect) -> NatsBackplane:
    backplane = await connect("server")
    await backplane.bus.serve(Identity("agent", "1.0.0", ""), [Route(REVOKE, revoke, {"node": "n1"})])
    return backplane


async def ask(backplane: NatsBackplane, reason: str = "") -> None:
    await backplane.bus.ask(REVOKE, Revoke(job_id="j1", reason=reason), timeout_s=10, node="n1")


async def test_a_question_is_one_trace_from_the_asker_through_the_handler(
    collector: Collector, served: NatsBackplane, backplane: NatsBackplane
) -> None:
    with telemetry.span("submit"):
        await ask(backplane)
    telemetry.shutdown()
    root = collector.only("submit")
    asked = collector.only("request node.v1.{node}.revoke")
    handled = collector.only("process node.v1.{node}.revoke")
    inner = collector.only("end the forks")
    assert {span.trace_id for span in (root, asked, handled, inner)} == {root.trace_id}
    assert [root.parent_id, asked.parent_id, handled.parent_id, inner.parent_id] == [
        "",
        root.span_id,
        asked.span_id,
        handled.span_id,
    ]


async def test_spans_follow_the_messaging_conventions_and_name_no_ids(
    collector: Collector, served: NatsBackplane, backplane: NatsBackplane
) -> None:
    await ask(backplane)
    telemetry.shutdown()
    asked = collector.only("request node.v1.{node}.revoke")
    handled = collector.only("process node.v1.{node}.revoke")
    assert (asked.kind, handled.kind) == (CLIENT, SERVER)
    assert (asked.service, asked.instance) == ("hadare-tester", "t1")
    assert handled.attributes == {
        "messaging.system": "nats",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": f"{backplane.bus.prefix}.node.v1.n1.revoke",
        "messaging.destination.template": "node.v1.{node}.revoke",
        "messaging.consumer.group.name": "q",
    }


async def test_a_refusal_marks_both_spans_with_its_code(
    collector: Collector, served: NatsBackplane, backplane: NatsBackplane
) -> None:
    with pytest.raises(Rejected):
        await ask(backplane, reason="not now")
    telemetry.shutdown()
    asked = collector.only("request node.v1.{node}.revoke")
    assert asked.status == ERROR
    assert asked.attributes["error.type"] == "409"
    assert collector.only("process node.v1.{node}.revoke").attributes["error.type"] == "409"


async def test_two_questions_without_a_span_around_them_are_two_traces(
    collector: Collector, served: NatsBackplane, backplane: NatsBackplane
) -> None:
    """Also: a subscription that was opened inside a span does not put all that it receives into that trace."""
    await asyncio.gather(ask(backplane), ask(backplane))
    telemetry.shutdown()
    handled = collector.named("process node.v1.{node}.revoke")
    assert len({span.trace_id for span in handled}) == 2


async def test_a_service_started_inside_a_span_does_not_inherit_it(
    collector: Collector, connect: Connect, backplane: NatsBackplane
) -> None:
    server = await connect("server")
    with telemetry.span("start up"):
        await server.bus.serve(Identity("agent", "1.0.0", ""), [Route(REVOKE, revoke, {"node": "n1"})])
    await backplane.link.client.request(f"{backplane.bus.prefix}.node.v1.n1.revoke", b'{"job_id": "j1"}', timeout=10)
    telemetry.shutdown()
    assert collector.only("process node.v1.{node}.revoke").parent_id == ""


async def test_a_plain_message_makes_no_span_but_carries_the_context(
    collector: Collector, connect: Connect, backplane: NatsBackplane
) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message: Heartbeat) -> None:
        heard.put_nowait(telemetry.traceparent())

    await (await connect("listener")).bus.subscribe(HEARTBEAT, hear)
    beat = Heartbeat(node="n1", incarnation="i", sequence=1)
    await backplane.bus.publish(HEARTBEAT, beat, node="n1")
    with telemetry.span("in a span"):
        inside = telemetry.traceparent()
        await backplane.bus.publish(HEARTBEAT, beat, node="n1")
    async with asyncio.timeout(10):
        assert [await heard.get(), await heard.get()] == ["", inside]
    telemetry.shutdown()
    assert [span.name for span in collector.spans] == ["in a span"]


async def test_work_that_is_taken_up_later_continues_the_trace_and_links_the_round(collector: Collector) -> None:
    with telemetry.span("submit"):
        kept = telemetry.traceparent()
    with telemetry.span("round"):
        round_ = telemetry.traceparent()
    with telemetry.span("train", parent=kept, links=[round_], kind="consumer", attributes={"hadare.steps": 7}):
        pass
    telemetry.shutdown()
    trained = collector.only("train")
    assert trained.trace_id == collector.only("submit").trace_id
    assert trained.links == (collector.only("round").trace_id,)
    assert trained.attributes == {"hadare.steps": 7}


async def test_an_exception_that_leaves_a_span_is_recorded(collector: Collector) -> None:
    with pytest.raises(ValueError, match="odd"), telemetry.span("fails"):
        raise ValueError("odd")
    telemetry.shutdown()
    failed = collector.only("fails")
    assert (failed.status, failed.events) == (ERROR, ("exception",))


async def test_metrics_are_exported(collector: Collector) -> None:
    telemetry.count("hadare.test.counted", 2, {"kind": "a"})
    telemetry.observe("hadare.test.seen", 0.5)
    telemetry.shutdown()
    assert {"hadare.test.counted", "hadare.test.seen"} <= collector.metrics


async def test_a_collector_that_is_away_delays_the_end_by_seconds_at_most() -> None:
    telemetry.configure("tester", "t1", "http://127.0.0.1:1")
    with telemetry.span("never seen"):
        pass
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.to_thread(telemetry.shutdown)
    assert loop.time() - began < 15


async def test_without_an_endpoint_the_context_still_passes_through_a_question(
    served: NatsBackplane, backplane: NatsBackplane, connect: Connect
) -> None:
    """A client that traces reaches a client that traces, through services that do not."""
    given = telemetry.new_traceparent()
    met: list[str] = []

    async def note(question: Revoke) -> Revoked:
        met.append(telemetry.traceparent())
        return Revoked()

    await served.bus.serve(Identity("noting", "1.0.0", ""), [Route(REVOKE, note, {"node": "n2"})])
    with telemetry.span("submit", parent=given):
        await backplane.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=10, node="n2")
    await backplane.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=10, node="n2")
    assert met == [given, ""]
