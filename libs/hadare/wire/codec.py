"""Bytes to typed, validated messages and back: MessagePack between services, JSON for whoever speaks it.

``msgpack`` packs and unpacks, ``msgspec`` converts and validates. Every size and depth is bounded.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from typing import Any, TypeVar, cast

import msgpack
import msgspec

from hadare.model.errors import Rejected
from hadare.wire.shapes import decoder

M = TypeVar("M")

MAX_MESSAGE_BYTES = 1_000_000
"""Below NATS' default max_payload (1 MiB), with room for headers: those count on the server, not in the client."""

_MAX_ITEMS = 200_000
_MAX_DEPTH = 32
_FIRST_MAP = b"\x80"
"""The least first byte of a map in MessagePack; no JSON text begins with this one or a higher."""


class Format(StrEnum):
    """The two forms a message can have. A map in MessagePack never starts with ``{``, so one byte tells them apart."""

    MSGPACK = "application/msgpack"
    JSON = "application/json"


def format_of(data: bytes) -> Format:
    """JSON if the first visible byte is ``{``; an empty request counts as JSON, as the stock ``nats`` command sends."""
    head = data[:64].lstrip()
    return Format.JSON if head[:1] == b"{" or not head else Format.MSGPACK


def encode(message: object, form: Format = Format.MSGPACK) -> bytes:
    """Raises ``Rejected`` (413) if the message is larger than ``MAX_MESSAGE_BYTES``."""
    plain = msgspec.to_builtins(message, enc_hook=_no_such_type)
    data: bytes = msgpack.packb(plain) if form is Format.MSGPACK else msgspec.json.encode(plain)
    if len(data) > MAX_MESSAGE_BYTES:
        raise Rejected(413, f"a {type(message).__name__} of {len(data)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
    return data


def decode(data: bytes, kind: type[M]) -> M:
    """Unknown fields are ignored; missing or wrong ones raise ``Rejected`` (400) naming the path."""
    straight = decoder(kind)
    if straight is not None and len(data) <= MAX_MESSAGE_BYTES and data[:1] >= _FIRST_MAP:
        # By far the fastest way. What it does not take goes the long way, which says why not.
        with suppress(msgspec.DecodeError, RecursionError):
            return cast(M, straight.decode(data))
    return convert(unpack(data), kind)


def convert(plain: object, kind: type[M]) -> M:
    """A map of plain values to a typed message. Raises ``Rejected`` (400) naming the path."""
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise Rejected(400, f"{kind.__name__}: {error}") from error


def unpack(data: bytes) -> Any:
    """Bytes in either form to plain values. Raises ``Rejected`` (400, 413)."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise Rejected(413, f"a message of {len(data)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
    try:
        plain = _unpack(data)
    except (ValueError, msgspec.DecodeError, msgpack.UnpackException, RecursionError) as error:
        raise Rejected(400, f"neither valid MessagePack nor valid JSON: {error}") from error
    _check_depth(plain)
    return plain


def to_plain(message: object) -> Any:
    """A typed message as plain values (maps, lists, numbers, strings), ready for JSON."""
    return msgspec.to_builtins(message, enc_hook=_no_such_type)


def dumps(message: object) -> str:
    """One readable JSON document, for people and scripts. What is no number there (NaN, infinite) is null."""
    return msgspec.json.format(msgspec.json.encode(to_plain(message)), indent=2).decode()


def _unpack(data: bytes) -> Any:
    if format_of(data) is Format.JSON:
        return msgspec.json.decode(data) if data.strip() else {}
    return msgpack.unpackb(
        data,
        raw=False,
        strict_map_key=True,
        max_str_len=MAX_MESSAGE_BYTES,
        max_bin_len=MAX_MESSAGE_BYTES,
        max_array_len=_MAX_ITEMS,
        max_map_len=_MAX_ITEMS,
        max_ext_len=0,
    )


def _check_depth(plain: object) -> None:
    """Level by level: every message passes here, so a call for each value would cost more than to unpack it."""
    level = [plain]
    for _ in range(_MAX_DEPTH):
        level = [
            child
            for value in level
            for child in (value.values() if type(value) is dict else value if type(value) is list else ())
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise Rejected(400, f"nested deeper than {_MAX_DEPTH} levels")


def _no_such_type(value: object) -> object:
    raise TypeError(f"{type(value).__name__} cannot travel on the bus")
