"""Finds every fault of a user's input at once, each with its path, against the dataclasses that are the messages.

Stricter than the codec: between services an unknown field is ignored, from a user it is a fault with a suggestion.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from hadare.model.errors import Rejected

M = TypeVar("M")

MAX_FAULTS = 100
_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong at ``path`` (dotted, ``[n]`` for a place in a list), and what would be right."""

    path: str
    message: str


def read(plain: object, kind: type[M], what: str) -> M:
    """A user's input as a typed message. Raises ``Rejected`` (400) with every fault in ``details.faults``."""
    refuse(faults_of(plain, kind), what)
    return msgspec.convert(plain, kind)


def refuse(faults: Iterable[Fault], what: str) -> None:
    """Raises ``Rejected`` (400) that lists the faults, if there are any."""
    found = list(faults)[:MAX_FAULTS]
    if not found:
        return
    listed = "; ".join(f"{fault.path or what}: {fault.message}" for fault in found[:5])
    more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
    details = {"faults": [{"path": fault.path, "message": fault.message} for fault in found]}
    raise Rejected(400, f"{what} has {len(found)} fault{'s' * (len(found) > 1)}: {listed}{more}", details)


def faults_of(value: object, kind: Any, path: str = "") -> Iterator[Fault]:
    """The faults of ``value`` as a ``kind``: wrong types, out of range, missing, unknown with a suggestion."""
    base, optional = _without_none(kind)
    if value is None and optional:
        return
    origin = get_origin(_bare(base))
    if dataclasses.is_dataclass(_bare(base)):
        yield from _of_record(value, _bare(base), path)
    elif origin is tuple and isinstance(value, list | tuple):
        yield from _of_whole(list(value), base, list[Any], path)
        item = get_args(_bare(base))[0]
        for index, child in enumerate(value):
            yield from faults_of(child, item, f"{path}[{index}]")
    elif origin is dict and isinstance(value, Mapping):
        yield from _of_whole(dict(value), base, dict[Any, Any], path)
        yield from _of_items(value, get_args(_bare(base))[1], path)
    else:
        yield from _of_leaf(value, base, path)


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?``, or nothing if no known name is near."""
    near = difflib.get_close_matches(name.lower(), sorted(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def faults_of_plain(value: object, path: str, depth: int = _MAX_DEPTH) -> Iterator[Fault]:
    """The faults of a free-form value: it must be JSON (text keys, finite numbers) and not too deep."""
    if depth == 0:
        yield Fault(path, f"nested deeper than {_MAX_DEPTH} levels")
    elif isinstance(value, Mapping):
        yield from _of_items(value, Any, path, depth - 1)
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from faults_of_plain(child, f"{path}[{index}]", depth - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield Fault(path, f"{value} is not a finite number")
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        yield Fault(path, "does not fit into 64 bits")
    elif isinstance(value, str):
        yield from _of_text(value, path)
    elif value is not None and not isinstance(value, bool | int | float):
        yield Fault(path, f"a {type(value).__name__} is not a JSON value; write it as text")


def _of_record(value: object, kind: type[Any], path: str) -> Iterator[Fault]:
    if not isinstance(value, Mapping):
        yield Fault(path, f"expected a map of fields, got {_name(value)}")
        return
    fields = {spec.name: spec for spec in dataclasses.fields(kind)}
    hints = _hints(kind)
    for key in value:
        if key not in fields:
            yield Fault(join(path, printable(key)), f"there is no such field{nearest(str(key), fields)}")
    for name, spec in fields.items():
        if name in value:
            yield from faults_of(value[name], hints[name], join(path, name))
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            yield Fault(join(path, name), "is missing")


def _of_items(value: Mapping[Any, Any], kind: Any, path: str, depth: int = _MAX_DEPTH) -> Iterator[Fault]:
    for key, child in value.items():
        where = join(path, printable(key))
        if not isinstance(key, str):
            yield Fault(where, f"a key must be text, got {_name(key)}")
        elif any(_of_text(key, where)):
            yield from _of_text(key, where)
        elif kind is Any:
            yield from faults_of_plain(child, where, depth)
        else:
            yield from faults_of(child, kind, where)


def _of_leaf(value: object, kind: Any, path: str) -> Iterator[Fault]:
    if kind is Any:
        yield from faults_of_plain(value, path)
        return
    if isinstance(value, str | float):
        odd = list(faults_of_plain(value, path))
        if odd:
            yield from odd
            return
    words = _words(_bare(kind))
    if words and value not in words:
        near = nearest(value, words) if isinstance(value, str) else ""
        yield Fault(path, f"expected one of {', '.join(words)}; got {printable(value)!r}{near}")
        return
    words = _words_beside_numbers(kind)
    if isinstance(value, str) and words and value not in words:
        near = nearest(value, words)
        yield Fault(path, f"expected a number or {' or '.join(words)}; got {printable(value)!r}{near}")
        return
    yield from _convert(value, kind, path)


def _of_whole(value: object, kind: Any, shape: Any, path: str) -> Iterator[Fault]:
    """The bounds of a container itself, without those of what it holds."""
    metadata = getattr(kind, "__metadata__", ())
    yield from _convert(value, Annotated[(shape, *metadata)] if metadata else shape, path)


def _of_text(value: str, path: str) -> Iterator[Fault]:
    try:
        value.encode()
    except UnicodeEncodeError:
        yield Fault(path, "is not valid Unicode")


def _convert(value: object, kind: Any, path: str) -> Iterator[Fault]:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        meant = next((meta.description for meta in getattr(kind, "__metadata__", ()) if meta.description), None)
        yield Fault(path, f"expected {meant}" if meant and "regex" in str(error) else _in_words(str(error)))


def _words(kind: Any) -> tuple[str, ...]:
    """The words that a closed choice allows; none if the kind is not one."""
    if get_origin(kind) is Literal:
        return tuple(str(word) for word in get_args(kind))
    return tuple(str(word.value) for word in kind) if isinstance(kind, type) and issubclass(kind, Enum) else ()


def _words_beside_numbers(kind: Any) -> tuple[str, ...]:
    """The words that may stand in the place of a number."""
    parts = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else ()
    return tuple(word for part in parts for word in _words(_bare(part)))


def _in_words(message: str) -> str:
    text = message.split(" - at `")[0].replace("`", "")
    return text[:1].lower() + text[1:]


def _name(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


def printable(key: object, limit: int = 64) -> str:
    text = str(key).encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _without_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) in (Union, types.UnionType) and type(None) in get_args(kind):
        others = [arm for arm in get_args(kind) if arm is not type(None)]
        if len(others) == 1:
            return others[0], True
    return kind, False


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)
