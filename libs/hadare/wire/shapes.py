"""What a type may hold, all the way down: bytes can be decoded straight into a type that leaves nothing open."""

from __future__ import annotations

import msgspec
from msgspec import inspect

_PLAIN = (
    inspect.NoneType,
    inspect.BoolType,
    inspect.IntType,
    inspect.FloatType,
    inspect.StrType,
    inspect.LiteralType,
    inspect.EnumType,
)

_decoders: dict[type, msgspec.msgpack.Decoder[object] | None] = {}
"""One for each type that was ever asked for: there are as many as subjects and tables."""


def decoder(kind: type) -> msgspec.msgpack.Decoder[object] | None:
    """A decoder of MessagePack into ``kind``; None if some part of it may be anything, or is not of plain values.

    How deep such a type's values nest is bound by the type itself, and what it does not know is skipped.
    """
    if kind not in _decoders:
        closed = _is_closed(inspect.type_info(kind), frozenset())
        _decoders[kind] = msgspec.msgpack.Decoder(kind) if closed else None
    return _decoders[kind]


def _is_closed(found: inspect.Type, within: frozenset[int]) -> bool:
    """``within``: the types that this is a part of; one that is a part of itself nests without a bound."""
    if isinstance(found, _PLAIN):
        return True
    if id(found) in within:
        return False
    parts: list[inspect.Type]
    match found:
        case inspect.Metadata():
            parts = [found.type]
        case inspect.DataclassType() | inspect.StructType():
            parts = [field.type for field in found.fields]
        case inspect.UnionType():
            parts = list(found.types)
        case inspect.DictType():
            parts = [found.key_type, found.value_type]
        case inspect.TupleType():
            parts = list(found.item_types)
        case inspect.VarTupleType() | inspect.ListType() | inspect.SetType() | inspect.FrozenSetType():
            parts = [found.item_type]
        case _:
            return False
    return all(_is_closed(part, within | {id(found)}) for part in parts)
