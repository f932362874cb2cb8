from __future__ import annotations

import pytest

from hadare.model.errors import Rejected
from hadare.wire import subjects
from hadare.wire.subjects import Endpoint, Records, Topic, fill


def test_tokens_fill_their_places() -> None:
    assert fill("node.v1.{node}.grant", {"node": "n1"}) == "node.v1.n1.grant"


def test_a_token_that_is_not_given_is_a_wildcard() -> None:
    assert fill("node.v1.{node}.grant", {}) == "node.v1.*.grant"


@pytest.mark.parametrize("value", ["a.b", "a b", ">", "", "a\n", "$x", "é", "x" * 129])
def test_a_value_that_would_change_the_subject_is_rejected(value: str) -> None:
    with pytest.raises(Rejected) as refused:
        fill("node.v1.{node}.grant", {"node": value})
    assert refused.value.code == 400


def test_a_key_is_family_and_name() -> None:
    assert Records("b", "version", object).key("j1.3") == "version.j1.3"
    assert Records("b", "", object).key("n1") == "n1"
    assert Records("b", "head", object).key("") == "head"


@pytest.mark.parametrize("name", ["a b", "a..b", ".a", "a.", "*", ">", "a:b", "a\n", "é", "x" * 600])
def test_a_name_that_cannot_be_a_key_is_rejected(name: str) -> None:
    with pytest.raises(Rejected):
        Records("b", "f", object).key(name)


def test_no_two_endpoints_or_topics_share_a_subject() -> None:
    templates = [thing.template for thing in vars(subjects).values() if isinstance(thing, Topic | Endpoint)]
    assert len(templates) == len(set(templates)) > 0


def test_no_two_records_share_keys() -> None:
    places = [(thing.bucket, thing.family) for thing in vars(subjects).values() if isinstance(thing, Records)]
    assert len(places) == len(set(places)) > 0
    assert {bucket for bucket, _ in places} == set(subjects.BUCKETS)


def test_subjects_carry_a_version() -> None:
    templates = [thing.template for thing in vars(subjects).values() if isinstance(thing, Topic | Endpoint)]
    assert all(template.split(".")[1] == "v1" for template in templates)
