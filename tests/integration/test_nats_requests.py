"""What any NATS client sees of a service: formats, error headers, limits, and who gets the answer."""

from __future__ import annotations

import asyncio
import json

import msgpack
import pytest
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from hadare.model.devices import Heartbeat
from hadare.model.errors import Rejected
from hadare.model.leases import Revoke, Revoked
from hadare.runtime import nats_link
from hadare.runtime.bus import Identity, Route
from hadare.runtime.nats_connection import NatsBackplane
from hadare.wire.subjects import HEARTBEAT, REVOKE
from nats_fixtures import Connect

pytestmark = pytest.mark.integration


async def revoke(question: Revoke) -> Revoked:
    match question.reason:
        case "refuse":
            raise Rejected(412, "the epoch is old\r\nInjected: yes", {"epoch": 7})
        case "stumble":
            raise RuntimeError("the password is 1234")
        case "huge":
            return Revoked(ended=tuple("x" * 1000 for _ in range(1100)))
        case "odd details":
            raise Rejected(400, "odd", {"what": object()})
    return Revoked(ended=(question.job_id,))


@pytest.fixture
async def served(connect: Connect) -> NatsBackplane:
    backplane = await connect("server")
    await backplane.bus.serve(Identity("agent", "1.0.0", ""), [Route(REVOKE, revoke, {"node": "n1"})])
    return backplane


async def request(backplane: NatsBackplane, body: bytes) -> Msg:
    return await backplane.link.client.request(f"{backplane.bus.prefix}.node.v1.n1.revoke", body, timeout=10)


async def test_a_json_question_gets_a_json_answer(served: NatsBackplane, backplane: NatsBackplane) -> None:
    reply = await request(backplane, b'{"job_id": "j1"}')
    assert json.loads(reply.data) == {"ended": ["j1"], "free": True}
    assert reply.headers["content-type"] == "application/json"


async def test_a_messagepack_question_gets_a_messagepack_answer(
    served: NatsBackplane, backplane: NatsBackplane
) -> None:
    reply = await request(backplane, msgpack.packb({"job_id": "j1"}))
    assert msgpack.unpackb(reply.data) == {"ended": ["j1"], "free": True}
    assert reply.headers["content-type"] == "application/msgpack"


async def test_an_empty_question_is_an_empty_json_object(served: NatsBackplane, backplane: NatsBackplane) -> None:
    """So sends ``nats request SUBJECT ''``; here a field is missing, and the answer says which."""
    reply = await request(backplane, b"")
    assert reply.headers["Nats-Service-Error-Code"] == "400"
    assert "job_id" in json.loads(reply.data)["message"]


async def test_a_rejection_has_the_headers_of_nats_micro_and_a_body_in_the_askers_format(
    served: NatsBackplane, backplane: NatsBackplane
) -> None:
    as_json = await request(backplane, b'{"job_id": "j1", "reason": "refuse"}')
    packed = await request(backplane, msgpack.packb({"job_id": "j1", "reason": "refuse"}))
    for reply, body in ((as_json, json.loads(as_json.data)), (packed, msgpack.unpackb(packed.data))):
        assert reply.headers["Nats-Service-Error-Code"] == "412"
        assert reply.headers["Nats-Service-Error"].startswith("the epoch is old")
        assert "Injected" not in reply.headers
        assert body == {"code": 412, "message": "the epoch is old\r\nInjected: yes", "details": {"epoch": 7}}


async def test_a_bug_is_answered_without_a_word_of_the_exception(
    served: NatsBackplane, backplane: NatsBackplane
) -> None:
    reply = await request(backplane, b'{"job_id": "j1", "reason": "stumble"}')
    assert reply.headers["Nats-Service-Error-Code"] == "500"
    assert json.loads(reply.data) == {"code": 500, "message": "internal error", "details": {}}
    assert "1234" not in str(reply.headers)


@pytest.mark.parametrize(
    "body", [b"\xc1\xc1", b'{"job_id": ', b"\x93\x01\x02\x03", b'{"job_id": "' + b"x" * 100 + b'"}']
)
async def test_rubbish_is_answered_with_400(served: NatsBackplane, backplane: NatsBackplane, body: bytes) -> None:
    assert (await request(backplane, body)).headers["Nats-Service-Error-Code"] == "400"


async def test_an_answer_over_the_limit_is_an_error_and_the_service_lives_on(
    served: NatsBackplane, backplane: NatsBackplane
) -> None:
    reply = await request(backplane, b'{"job_id": "j1", "reason": "huge"}')
    assert reply.headers["Nats-Service-Error-Code"] == "413"
    assert json.loads((await request(backplane, b'{"job_id": "j1"}')).data)["ended"] == ["j1"]


async def test_details_that_cannot_travel_are_left_out(served: NatsBackplane, backplane: NatsBackplane) -> None:
    reply = await request(backplane, b'{"job_id": "j1", "reason": "odd details"}')
    assert json.loads(reply.data) == {"code": 400, "message": "odd", "details": {}}


async def test_a_question_over_the_bus_limit_is_rejected_and_the_connection_survives(
    served: NatsBackplane, backplane: NatsBackplane
) -> None:
    """A body of exactly 1 MiB with headers would make the server end the connection for good."""
    with pytest.raises(Rejected) as refused:
        await backplane.bus.ask(REVOKE, Revoke(job_id="j" * 2**20), timeout_s=10, node="n1")
    assert refused.value.code == 413
    answer = await backplane.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=10, node="n1")
    assert answer.ended == ("j1",)


async def test_the_largest_body_that_we_send_passes_with_its_headers(backplane: NatsBackplane) -> None:
    caught = await backplane.link.client.subscribe(f"{backplane.bus.prefix}.big")
    await backplane.link.publish(f"{backplane.bus.prefix}.big", b"x" * 1_000_000, headers={"h": "y" * 4096})
    assert len((await caught.next_msg(timeout=10)).data) == 1_000_000
    assert await backplane.link.client.rtt() > 0


async def test_the_answer_never_goes_to_a_subject_that_the_asker_chose(
    served: NatsBackplane, backplane: NatsBackplane, connect: Connect
) -> None:
    """Reply-subject injection: who may ask a service must not write, through it, where he may not."""
    victim = f"{backplane.bus.prefix}.node.v1.n2.revoke"
    spy = await connect("spy")
    caught = await spy.link.client.subscribe(victim)
    await spy.link.flush()
    client = backplane.link.client
    for reply in (victim, "$JS.API.STREAM.DELETE.x", "_INBOX", "_INBOXES.a", "_INBOX_a b.c".replace(" ", ".")):
        await client.publish(f"{backplane.bus.prefix}.node.v1.n1.revoke", b'{"job_id": "j1"}', reply=reply)
    await backplane.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=10, node="n1")  # all those before were seen
    await spy.link.flush()
    assert caught.pending_msgs == 0


async def test_a_message_without_a_reply_subject_is_not_acted_on(
    served: NatsBackplane, backplane: NatsBackplane
) -> None:
    handled: list[str] = []

    async def note(question: Revoke) -> Revoked:
        handled.append(question.job_id)
        return Revoked()

    await backplane.bus.serve(Identity("other", "1.0.0", ""), [Route(REVOKE, note, {"node": "n9"})])
    await backplane.link.client.publish(f"{backplane.bus.prefix}.node.v1.n9.revoke", b'{"job_id": "unasked"}')
    await backplane.bus.ask(REVOKE, Revoke(job_id="asked"), timeout_s=10, node="n9")
    assert handled == ["asked"]


async def test_headers_of_the_question_do_not_come_back(served: NatsBackplane, backplane: NatsBackplane) -> None:
    reply = await backplane.link.client.request(
        f"{backplane.bus.prefix}.node.v1.n1.revoke",
        b'{"job_id": "j1"}',
        timeout=10,
        headers={"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "X-Mine": "1"},
    )
    assert set(reply.headers) == {"content-type"}


async def test_a_subject_with_a_part_missing_is_rejected_before_it_is_sent(backplane: NatsBackplane) -> None:
    with pytest.raises(Rejected) as refused:
        await backplane.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=10)
    assert refused.value.code == 400


async def test_a_slow_subscriber_does_not_hold_up_the_connection(served: NatsBackplane, connect: Connect) -> None:
    """Every subscription has a queue of its own: a handler that hangs delays nobody else's messages."""
    stuck = asyncio.Event()

    async def hang(question: Revoke) -> Revoked:
        await stuck.wait()
        return Revoked()

    one = await connect("one")
    await one.bus.serve(Identity("hanging", "1.0.0", ""), [Route(REVOKE, hang, {"node": "n5"}, concurrency=1)])
    hanging = [asyncio.create_task(one.bus.ask(REVOKE, Revoke(job_id="j"), timeout_s=20, node="n5")) for _ in range(5)]
    answer = await one.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=10, node="n1")
    assert answer.ended == ("j1",)
    stuck.set()
    await asyncio.gather(*hanging)


async def test_what_a_slow_subscriber_loses_is_logged(
    backplane: NatsBackplane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_link, "PENDING_MESSAGES", 5)
    go_on = asyncio.Event()
    heard: list[int] = []

    async def dawdle(message: Heartbeat) -> None:
        await go_on.wait()
        heard.append(message.sequence)

    with capture_logs() as logged:
        subscription = await backplane.bus.subscribe(HEARTBEAT, dawdle)
        for sequence in range(50):
            beat = Heartbeat(node="n1", incarnation="i", sequence=sequence)
            await backplane.bus.publish(HEARTBEAT, beat, node="n1")
        await backplane.link.flush()
        go_on.set()
        await subscription.stop()
    assert 5 <= len(heard) < 50
    assert [entry["kind"] for entry in logged if entry["event"] == "bus error"] == ["SlowConsumerError"]
