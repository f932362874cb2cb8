"""What can be checked of the NATS side without a server."""

from __future__ import annotations

import pytest

from hadare.model.errors import Broken
from hadare.runtime.bus import Identity, Route
from hadare.runtime.nats_micro import INBOX, Discovery, describe, endpoint_name
from hadare.runtime.nats_stored import unix_seconds
from hadare.runtime.nats_streams import SHARES, Names, declarations
from hadare.wire.subjects import BUCKETS, CODE, GRANT, WEIGHTS


@pytest.mark.parametrize(
    "reply",
    ["_INBOX.abc", "_INBOX.AbC09.x1y2", "_INBOX_gateway.a.b", "_INBOX_node-n1.a", "_INBOX_UABC23.NUID.t0k3n"],
)
def test_inboxes_are_answered(reply: str) -> None:
    assert INBOX.match(reply)


NO_INBOXES = [
    *("", "_INBOX", "_INBOX.", "_INBOX_", "_INBOX_a", "_INBOXES.a", "x_INBOX.a", "_INBOX..a", "_INBOX_a_b.c"),
    *("_INBOX.a.*", "_INBOX.>", "_INBOX.a b", "_INBOX.a\n", "_INBOX.a\r\nPUB x 1"),
    *("$JS.API.STREAM.DELETE.x", "hadare.node.v1.n2.revoke"),
]


@pytest.mark.parametrize("reply", NO_INBOXES)
def test_nothing_else_is_answered(reply: str) -> None:
    assert not INBOX.match(reply)


@pytest.mark.parametrize(
    ("template", "name"),
    [("api.v1.jobs.submit", "jobs-submit"), ("node.v1.{node}.grant", "grant"), ("pricing.v1.quote", "quote")],
)
def test_an_endpoint_is_called_by_its_verb(template: str, name: str) -> None:
    assert endpoint_name(template) == name


async def no_handler(_: object) -> object:
    raise AssertionError


def test_endpoints_say_subject_group_and_types() -> None:
    (found,) = describe([Route(GRANT, no_handler, {"node": "n1"}, group="g")], "hadare")  # type: ignore[arg-type]
    assert (found.name, found.subject, found.group) == ("grant", "hadare.node.v1.n1.grant", "g")
    assert found.metadata["question"] == "Lease"


@pytest.mark.parametrize(
    "identity", [Identity("a b", "1.0.0", ""), Identity("a", "1.0", ""), Identity("", "1.0.0", "")]
)
def test_a_name_or_version_that_micro_does_not_allow_is_broken(identity: Identity) -> None:
    with pytest.raises(Broken):
        Discovery(None, identity, [], "i")  # type: ignore[arg-type]


def test_the_stores_together_fit_into_the_capacity() -> None:
    configs = declarations("hadare", 64 * 2**30, 1)
    assert sum(SHARES.values()) <= 1.0
    assert sum(config["max_bytes"] for config in configs) <= 64 * 2**30


def test_every_bucket_and_store_is_declared_on_disk_with_a_limit() -> None:
    configs = {config["name"]: config for config in declarations("c1", 2**30, 3)}
    names = Names("c1")
    expected = {names.kv_stream(bucket) for bucket in BUCKETS}
    expected |= {names.objects_stream(WEIGHTS), names.objects_stream(CODE), names.events, names.logs}
    assert set(configs) == expected
    assert {config["storage"] for config in configs.values()} == {"file"}
    assert {config["num_replicas"] for config in configs.values()} == {3}
    assert all(config["max_bytes"] > 0 for config in configs.values())


def test_records_refuse_and_histories_forget_when_they_are_full() -> None:
    configs = {config["name"]: config for config in declarations("c1", 2**30, 1)}
    assert configs["KV_c1_jobs"]["discard"] == "new"
    assert configs["OBJ_c1_weights"]["discard"] == "new"
    assert configs["c1_events"]["discard"] == configs["c1_logs"]["discard"] == "old"


def test_no_two_streams_take_the_same_subject() -> None:
    subjects = [subject for config in declarations("c1", 2**30, 1) for subject in config["subjects"]]
    assert len(subjects) == len(set(subjects))
    assert all("c1" in subject for subject in subjects)


TIMES = [("1970-01-01T00:00:01Z", 1.0), ("1970-01-01T00:00:01.500000123Z", 1.5), ("1970-01-01T01:00:00+01:00", 0.0)]


@pytest.mark.parametrize(("text", "seconds"), TIMES)
def test_the_servers_timestamps_are_read(text: str, seconds: float) -> None:
    assert unix_seconds(text) == pytest.approx(seconds)
