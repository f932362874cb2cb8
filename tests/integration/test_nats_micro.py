"""NATS micro's wire format (ADR-32), as the stock ``nats micro ls|info|stats`` commands read it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from nats.errors import NoRespondersError
from nats.micro.service import ServiceInfo, ServicePing, ServiceStats

from hadare.model.errors import Rejected
from hadare.model.leases import Revoke, Revoked
from hadare.runtime.bus import Identity, Route
from hadare.runtime.nats_connection import NatsBackplane
from hadare.wire.subjects import REVOKE
from nats_fixtures import Connect

pytestmark = pytest.mark.integration


async def revoke(question: Revoke) -> Revoked:
    if question.reason:
        raise Rejected(409, question.reason)
    return Revoked(ended=(question.job_id,))


def an_identity(prefix: str, **metadata: str) -> Identity:
    """Discovery is not prefixed: other tests' services answer too, so each test has a name of its own."""
    return Identity(f"agent-{prefix}", "1.2.3", "a node agent", metadata)


async def serve(backplane: NatsBackplane, **metadata: str) -> None:
    await backplane.bus.serve(an_identity(backplane.bus.prefix, **metadata), [Route(REVOKE, revoke, {"node": "n1"})])


async def collect(backplane: NatsBackplane, subject: str, count: int) -> list[dict[str, Any]]:
    """Asks like the stock command does: one request, many replies."""
    client = backplane.link.client
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    await client.publish(subject, b"", reply=inbox)
    replies = [json.loads((await subscription.next_msg(timeout=10)).data) for _ in range(count)]
    await client.flush()
    assert subscription.pending_msgs == 0
    await subscription.unsubscribe()
    return replies


async def test_every_instance_answers_a_ping_with_who_it_is(connect: Connect, prefix: str) -> None:
    for name in ("one", "two"):
        await serve(await connect(name), zone=name)
    pings = await collect(await connect("asker"), f"$SRV.PING.agent-{prefix}", 2)
    assert {ping["metadata"]["zone"] for ping in pings} == {"one", "two"}
    assert {ping["type"] for ping in pings} == {"io.nats.micro.v1.ping_response"}
    assert {ping["version"] for ping in pings} == {"1.2.3"}
    assert len({ping["id"] for ping in pings}) == 2


async def test_one_instance_is_addressed_by_its_id(connect: Connect, prefix: str) -> None:
    for name in ("one", "two"):
        await serve(await connect(name))
    asker = await connect("asker")
    wanted = (await collect(asker, f"$SRV.PING.agent-{prefix}", 2))[0]["id"]
    assert [reply["id"] for reply in await collect(asker, f"$SRV.INFO.agent-{prefix}.{wanted}", 1)] == [wanted]


async def test_info_names_subject_group_formats_and_schemas(backplane: NatsBackplane, prefix: str) -> None:
    await serve(backplane)
    info = (await collect(backplane, f"$SRV.INFO.agent-{prefix}", 1))[0]
    assert info["type"] == "io.nats.micro.v1.info_response"
    assert info["description"] == "a node agent"
    assert info["endpoints"] == [
        {
            "name": "revoke",
            "subject": f"{prefix}.node.v1.n1.revoke",
            "queue_group": "q",
            "metadata": {
                "format": "application/msgpack, application/json",
                "question": "Revoke",
                "answer": "Revoked",
            },
        }
    ]


async def test_metadata_is_never_null(backplane: NatsBackplane, prefix: str) -> None:
    await serve(backplane)
    for verb in ("PING", "INFO", "STATS"):
        described = (await collect(backplane, f"$SRV.{verb}.agent-{prefix}", 1))[0]
        assert isinstance(described["metadata"], dict)
        assert all(isinstance(value, str) for value in described["metadata"].values())


async def test_stats_count_requests_and_errors(backplane: NatsBackplane, prefix: str) -> None:
    await serve(backplane)
    for _ in range(3):
        await backplane.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=10, node="n1")
    with pytest.raises(Rejected):
        await backplane.bus.ask(REVOKE, Revoke(job_id="j1", reason="not now"), timeout_s=10, node="n1")
    stats = (await collect(backplane, f"$SRV.STATS.agent-{prefix}", 1))[0]
    endpoint = stats["endpoints"][0]
    assert stats["type"] == "io.nats.micro.v1.stats_response"
    assert (endpoint["num_requests"], endpoint["num_errors"], endpoint["last_error"]) == (4, 1, "409:not now")
    assert endpoint["average_processing_time"] == endpoint["processing_time"] // 4 > 0


async def test_a_stock_client_parses_every_answer(backplane: NatsBackplane, prefix: str) -> None:
    await serve(backplane, zone="east")
    answers = {
        verb: (await collect(backplane, f"$SRV.{verb}.agent-{prefix}", 1))[0] for verb in ("PING", "INFO", "STATS")
    }
    assert ServicePing.from_dict(answers["PING"]).metadata["zone"] == "east"
    assert ServiceInfo.from_dict(answers["INFO"]).endpoints[0].name == "revoke"
    assert ServiceStats.from_dict(answers["STATS"]).endpoints[0].num_requests == 0


async def test_all_services_answer_the_unnamed_ping(backplane: NatsBackplane, prefix: str) -> None:
    await serve(backplane)
    client = backplane.link.client
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    await client.publish("$SRV.PING", b"", reply=inbox)
    name = ""
    async with asyncio.timeout(10):
        while name != f"agent-{prefix}":
            name = json.loads((await subscription.next_msg(timeout=10)).data)["name"]


async def test_a_stopped_service_is_no_longer_found(backplane: NatsBackplane, prefix: str) -> None:
    server = await backplane.bus.serve(an_identity(prefix), [Route(REVOKE, revoke, {"node": "n1"})])
    await server.stop()
    with pytest.raises(NoRespondersError):
        await backplane.link.client.request(f"$SRV.PING.agent-{prefix}", timeout=10)


async def test_discovery_does_not_answer_to_a_subject_that_is_no_inbox(
    backplane: NatsBackplane, connect: Connect, prefix: str
) -> None:
    await serve(backplane)
    spy = await connect("spy")
    caught = await spy.link.client.subscribe(f"{prefix}.node.v1.n2.revoke")
    await spy.link.flush()
    await backplane.link.client.publish(f"$SRV.INFO.agent-{prefix}", b"", reply=f"{prefix}.node.v1.n2.revoke")
    await collect(backplane, f"$SRV.INFO.agent-{prefix}", 1)  # the service has seen the one before
    await spy.link.flush()
    assert caught.pending_msgs == 0
