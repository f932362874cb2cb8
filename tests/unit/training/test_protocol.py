from __future__ import annotations

import struct

import msgpack
import pytest

from hadare.model.leases import Failure
from hadare.training.protocol import (
    COMMANDS,
    MAX_MESSAGE_BYTES,
    REPORTS,
    Done,
    Exit,
    Failed,
    FrameReader,
    Progress,
    ProtocolError,
    Stop,
    Train,
    decode,
    encode,
    frame,
)

TRAIN = Train(base="/v0", out="/f", quota=5, remaining_s=2.5, data_seed=7, nominal_rate=None, evaluate_base=True)
FAILED = Failed(failure=Failure(kind="not_finite", message="the loss is nan"))


def test_a_message_comes_back_as_it_was() -> None:
    assert decode(encode(TRAIN), COMMANDS) == TRAIN
    assert decode(encode(FAILED), REPORTS) == FAILED
    assert decode(encode(Done(reason="clock", phases_ms={"load": 1.0})), REPORTS) == Done(
        reason="clock", phases_ms={"load": 1.0}
    )


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_stream_is_cut_into_messages_however_it_arrives(size: int) -> None:
    stream = frame(TRAIN) + frame(Stop(within_s=1.0)) + frame(Exit())
    reader = FrameReader(COMMANDS)
    found = [m for a in range(0, len(stream), size) for m in reader.feed(stream[a : a + size])]
    assert found == [TRAIN, Stop(within_s=1.0), Exit()]


def test_a_length_over_the_bound_is_refused_before_the_bytes_are_there() -> None:
    with pytest.raises(ProtocolError, match="over"):
        FrameReader(REPORTS).feed(struct.pack("!I", MAX_MESSAGE_BYTES + 1))


def test_a_message_over_the_bound_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="over"):
        encode(Failed(failure=Failure(kind="exception", message="x", tail="x" * MAX_MESSAGE_BYTES)))


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1",
        b"",
        msgpack.packb(7),
        msgpack.packb(["Spawn", {}]),
        msgpack.packb(["Progress"]),
        msgpack.packb({"a": 1}),
    ],
)
def test_what_is_not_a_report_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(body, REPORTS)


def test_a_field_of_the_wrong_type_is_named() -> None:
    with pytest.raises(ProtocolError, match=r"\$\.steps"):
        decode(msgpack.packb(["Progress", {"phase": "training", "steps": "many"}]), REPORTS)


def test_an_unknown_field_is_ignored() -> None:
    body = msgpack.packb(["Progress", {"phase": "training", "colour": 1}])
    assert decode(body, REPORTS) == Progress(phase="training")
