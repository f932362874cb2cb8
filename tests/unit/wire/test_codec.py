from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import msgpack
import pytest

from hadare.model.devices import Device, NodeInventory
from hadare.model.errors import Rejected
from hadare.wire import codec
from hadare.wire.codec import Format

INVENTORY = NodeInventory(
    node="n1",
    incarnation="i1",
    devices=(Device(index=0, type="V100", memory_gb=16.0), Device(index=1, type="T4", memory_gb=15.5, emulated=True)),
    labels={"zone": "é"},
)


@dataclass(frozen=True)
class Loose:
    data: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize("form", list(Format))
def test_a_message_survives_the_journey(form: Format) -> None:
    data = codec.encode(INVENTORY, form)
    assert codec.format_of(data) is form
    assert codec.decode(data, NodeInventory) == INVENTORY


def test_messages_travel_as_maps_of_field_names() -> None:
    assert msgpack.unpackb(codec.encode(INVENTORY))["devices"][1]["type"] == "T4"


def test_unknown_fields_are_ignored() -> None:
    plain = {**codec.to_plain(INVENTORY), "from_the_future": 1}
    assert codec.decode(msgpack.packb(plain), NodeInventory) == INVENTORY


@pytest.mark.parametrize(
    ("change", "path"),
    [({"node": None}, "$.node"), ({"node": "Not A Slug"}, "$.node"), ({"devices": [{"index": -1}]}, "$.devices[0]")],
)
def test_a_wrong_field_is_named_by_its_path(change: dict[str, Any], path: str) -> None:
    with pytest.raises(Rejected) as refused:
        codec.decode(msgpack.packb({**codec.to_plain(INVENTORY), **change}), NodeInventory)
    assert refused.value.code == 400
    assert path in refused.value.message


def test_a_missing_field_is_named() -> None:
    with pytest.raises(Rejected, match="incarnation"):
        codec.decode(b'{"node": "n1", "devices": []}', NodeInventory)


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        b"\x81",
        b"{",
        b'{"a": }',
        b"\xde\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xc7\x04\x01abcd",
        b"\x81\x01\x02",
        b"\x81\xa1\xff\x01",
        b"\x92\x01\x02 trailing",
        b'{"a": 1} trailing',
    ],
)
def test_rubbish_is_rejected_and_never_anything_else(data: bytes) -> None:
    with pytest.raises(Rejected) as refused:
        codec.decode(data, NodeInventory)
    assert refused.value.code == 400


@pytest.mark.parametrize("data", [b"[]", b"5", b"null", msgpack.packb([1, 2]), msgpack.packb(7), msgpack.packb(None)])
def test_what_is_no_map_is_rejected(data: bytes) -> None:
    with pytest.raises(Rejected):
        codec.decode(data, NodeInventory)


def test_nesting_is_bounded() -> None:
    deep: Any = {}
    for _ in range(40):
        deep = {"a": deep}
    with pytest.raises(Rejected, match="nested"):
        codec.decode(msgpack.packb({"data": deep}), Loose)
    with pytest.raises(Rejected):
        codec.decode(b'{"data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", Loose)


def test_what_is_too_large_to_send_is_rejected_here() -> None:
    with pytest.raises(Rejected) as refused:
        codec.encode(Loose({"x": "y" * codec.MAX_MESSAGE_BYTES}))
    assert refused.value.code == 413


def test_what_is_too_large_to_read_is_rejected_unread() -> None:
    with pytest.raises(Rejected) as refused:
        codec.unpack(b"\x00" * (codec.MAX_MESSAGE_BYTES + 1))
    assert refused.value.code == 413


def test_an_object_that_is_no_message_is_a_bug_and_not_pickled() -> None:
    with pytest.raises(TypeError, match="cannot travel"):
        codec.encode(Loose({"x": object()}))


@pytest.mark.parametrize(
    ("data", "form"),
    [(b"{}", Format.JSON), (b"  \n{}", Format.JSON), (b"", Format.JSON), (b"\x80", Format.MSGPACK)],
)
def test_the_form_is_told_by_the_first_byte(data: bytes, form: Format) -> None:
    assert codec.format_of(data) is form


def test_a_document_for_people_is_json() -> None:
    assert codec.convert(json.loads(codec.dumps(INVENTORY)), NodeInventory) == INVENTORY
    assert "é" in codec.dumps(INVENTORY)


def test_a_document_for_scripts_is_json_though_a_number_is_none() -> None:
    text = codec.dumps({"näme": float("nan"), "rate": math.inf, "steps": 3})
    assert json.loads(text, parse_constant=pytest.fail) == {"näme": None, "rate": None, "steps": 3}
    assert text.splitlines()[1] == '  "näme": null,'
