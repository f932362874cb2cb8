"""Who may publish what: every bucket has one writer, and a node agent speaks for itself alone."""

from __future__ import annotations

import pytest

from hadare.runtime.credentials import users
from hadare.runtime.permissions import Permissions
from hadare.wire.subjects import BUCKETS

MEMBERS = users("c1", ("n1", "n2"))

WRITERS = {
    "jobs": {"gateway"},
    "progress": {"jobtracker"},
    "nodes": {"n1", "n2", "gateway"},  # which deletes those that are lost
    "node_wishes": {"gateway"},
    "node_states": {"allocator"},
    "prices": {"pricing"},
    "rounds": {"allocator"},
}


def covers(pattern: str, subject: str) -> bool:
    parts, wanted = pattern.split("."), subject.split(".")
    for place, part in enumerate(parts):
        if part == ">":
            return len(wanted) > place
        if place >= len(wanted) or part not in ("*", wanted[place]):
            return False
    return len(parts) == len(wanted)


def may_publish(user: str, subject: str) -> bool:
    return any(covers(pattern, subject) for pattern in MEMBERS[user].publish)


def may_hear(user: str, subject: str) -> bool:
    return any(covers(pattern, subject) for pattern in MEMBERS[user].subscribe)


@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_bucket_is_written_by_its_owner_alone(bucket: str) -> None:
    keys = ("n1", "n2", "job.a", "leader")
    assert {user for user in MEMBERS for key in keys if may_publish(user, f"$KV.c1_{bucket}.{key}")} == WRITERS[bucket]


def test_a_node_agent_writes_its_own_inventory_and_no_other() -> None:
    assert may_publish("n1", "$KV.c1_nodes.n1")
    assert not may_publish("n1", "$KV.c1_nodes.n2")


@pytest.mark.parametrize(
    "subject", ["c1.node.v1.{}.heartbeat", "c1.node.v1.{}.report", "c1.event.v1.node.{}.registered"]
)
def test_a_node_agent_speaks_for_itself_alone(subject: str) -> None:
    assert may_publish("n1", subject.format("n1"))
    assert not may_publish("n1", subject.format("n2"))


@pytest.mark.parametrize("subject", ["c1.node.v1.{}.grant", "c1.node.v1.{}.revoke", "_INBOX_{}.a.b"])
def test_a_node_agent_hears_only_what_is_meant_for_it(subject: str) -> None:
    assert may_hear("n1", subject.format("n1"))
    assert not may_hear("n1", subject.format("n2"))


@pytest.mark.parametrize("user", sorted(set(MEMBERS) - {"allocator", "jobtracker"}))
def test_leases_are_granted_by_the_allocator_and_the_tracker_alone(user: str) -> None:
    assert not may_publish(user, "c1.node.v1.n2.grant")


@pytest.mark.parametrize("user", sorted(MEMBERS))
@pytest.mark.parametrize(
    "verb", ["STREAM.DELETE.KV_c1_jobs", "STREAM.PURGE.KV_c1_jobs", "STREAM.MSG.DELETE.KV_c1_jobs"]
)
def test_nobody_may_delete_the_state_of_record(user: str, verb: str) -> None:
    assert not may_publish(user, f"$JS.API.{verb}")


@pytest.mark.parametrize("user", sorted(set(MEMBERS) - {"gateway"}))
def test_only_the_gateway_answers_the_message_api(user: str) -> None:
    assert not may_hear(user, "c1.api.v1.jobs.submit")


@pytest.mark.parametrize("allowed", MEMBERS.values(), ids=MEMBERS)
def test_nobody_may_do_everything(allowed: Permissions) -> None:
    assert not {">", "*", "$JS.>", "$JS.API.>", "$KV.>"} & {*allowed.publish, *allowed.subscribe}


def test_two_clusters_on_one_server_do_not_touch_each_other() -> None:
    assert not may_publish("allocator", "$KV.hadare_rounds.head")
    assert not may_publish("client", "hadare.api.v1.jobs.submit")
