"""Which types are decoded straight from bytes, and that nothing else is taken on this way than on the long one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgpack
import pytest

from builders import a_job, some_progress
from hadare.model.devices import Heartbeat
from hadare.model.errors import Rejected
from hadare.model.jobs import JobProgress, JobRecord
from hadare.model.rounds import Leader
from hadare.wire import codec
from hadare.wire.shapes import decoder


@dataclass(frozen=True)
class Nested:
    inside: tuple[Nested, ...] = ()


@dataclass(frozen=True)
class Anything:
    data: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize("kind", [Leader, Heartbeat, JobProgress])
def test_records_of_plain_values_are_decoded_straight(kind: type) -> None:
    assert decoder(kind) is not None


@pytest.mark.parametrize("kind", [JobRecord, Nested, Anything, dict[str, bytes]])
def test_what_may_nest_without_a_bound_or_hold_anything_goes_the_long_way(kind: type) -> None:
    assert decoder(kind) is None


def test_both_ways_give_the_same_record() -> None:
    for record in (some_progress("job-a", failures=2), a_job(), Leader(holder="a", epoch=3, nonce="n")):
        data = codec.encode(record)
        assert codec.decode(data, type(record)) == record == codec.convert(codec.unpack(data), type(record))


@pytest.mark.parametrize(
    ("plain", "word"),
    [({"holder": 3, "epoch": 1, "nonce": "n"}, r"\$\.holder"), ({"epoch": 1, "nonce": "n"}, "holder"), ([1], "Leader")],
)
def test_what_does_not_fit_is_refused_in_the_words_of_the_long_way(plain: object, word: str) -> None:
    data = msgpack.packb(plain)
    with pytest.raises(Rejected, match=word) as straight:
        codec.decode(data, Leader)
    with pytest.raises(Rejected) as long:
        codec.convert(codec.unpack(data), Leader)
    assert straight.value.message == long.value.message


def test_bytes_after_the_message_are_refused() -> None:
    data = codec.encode(Leader(holder="a", epoch=3, nonce="n"))
    with pytest.raises(Rejected):
        codec.decode(data + b"\x00", Leader)


def test_a_message_that_nests_without_end_where_nobody_looks_is_refused() -> None:
    endless = b"\x84\xa6holder\xa1a\xa5epoch\x01\xa5nonce\xa1n\xa4more" + b"\x91" * 200_000 + b"\xc0"
    with pytest.raises(Rejected):
        codec.decode(endless, Leader)
