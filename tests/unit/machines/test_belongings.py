"""What a job may ask of a place and bring along."""

from __future__ import annotations

from typing import Any

import pytest

from hadare.machines import admission
from hadare.machines.belongings import SentWeights, VersionOf, hash_of_object, start_of
from hadare.model.jobs import ObjectRef

HASH = "a" * 64
START = ObjectRef(name="j.v1.x", sha256="b" * 64, bytes=10)


def a_spec(**more: Any) -> dict[str, Any]:
    return {"workload": "pkg.mod:Net", "total_steps": 10, "batch_size": 2, **more}


def faults(**more: Any) -> list[str]:
    return [fault.path for fault in admission.check_spec(a_spec(**more))]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("digits", VersionOf("digits", None)),
        ("digits@12", VersionOf("digits", 12)),
        (f"sha256:{HASH}", SentWeights(HASH)),
        ("digits@", None),
        ("Digits", None),
        ("digits@-1", None),
        ("sha256:abc", None),
        ("model.safetensors", None),
    ],
)
def test_start_from_names_a_version_or_a_file_that_was_sent(text: str, meant: object) -> None:
    assert start_of(text) == meant


def test_the_hash_of_what_was_sent_is_in_its_objects_name() -> None:
    assert hash_of_object(SentWeights(HASH).object) == HASH


def test_good_belongings_have_no_faults() -> None:
    assert not faults(
        code=HASH,
        requirements=["torch>=2.1", "einops==0.8.*; python_version > '3.8'", "pkg[extra]"],
        data=["/data/imagenet", "s3://bucket/key", "fast-disk", "set=imagenet"],
        start_from="digits@3",
    )


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("code", "not a hash", "code"),
        ("requirements", ["torch>=2.1", "torch=2"], "requirements[1]"),
        ("requirements", ["pkg @ https://example.org/pkg.whl"], "requirements[0]"),
        ("data", ["relative path"], "data[0]"),
        ("start_from", "no such form!", "start_from"),
        ("start_object", {"name": "x", "sha256": HASH, "bytes": 1}, "start_object"),
    ],
)
def test_bad_belongings_are_named_by_their_path(field: str, value: object, path: str) -> None:
    assert faults(**{field: value}) == [path]


def test_a_request_keeps_its_digest_whatever_its_start_was_found_to_be() -> None:
    spec = admission.read_spec(a_spec(start_from="digits"))
    found = admission.intent_of(spec, "r1", submitted_at=1.0, traceparent="", start=START).record
    unresolved = admission.intent_of(spec, "r1", submitted_at=1.0, traceparent="").record
    assert found.spec.start_object == START
    assert found.digest == unresolved.digest
