"""A service's settings from its environment: read once, at the start, and every fault reported at once."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from hadare.model.errors import HadareError

C = TypeVar("C")

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class BadConfig(HadareError):
    """The environment does not describe a valid configuration. ``faults`` has one line for each fault."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("the configuration has faults:\n" + "\n".join(f"  {fault}" for fault in faults))
        self.faults = faults


def load(kind: type[C], environ: Mapping[str, str], prefix: str = "HADARE_") -> C:
    """A ``kind`` (a frozen dataclass) whose field ``nats_url`` comes from ``HADARE_NATS_URL``, and so on.

    A variable that is not set leaves the default; an empty one too, except for optional fields, where it means None.
    A ``__post_init__`` may raise ``ValueError`` to refuse a combination. Raises ``BadConfig`` with all faults.
    """
    assert dataclasses.is_dataclass(kind)
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    faults: list[str] = []
    for field in dataclasses.fields(kind):
        variable = prefix + field.name.upper()
        given = environ.get(variable)
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if given is None or (given.strip() == "" and not _is_optional(hints[field.name])):
            if required:
                faults.append(f"{variable} is not set")
            continue
        try:
            values[field.name] = parse(given.strip(), hints[field.name])
        except ValueError as fault:
            faults.append(f"{variable}={given!r}: {fault}")
    if faults:
        raise BadConfig(faults)
    try:
        return kind(**values)
    except ValueError as fault:
        raise BadConfig([str(fault)]) from fault


def parse(text: str, kind: Any) -> Any:
    """A string as ``str``, ``int``, ``float``, ``bool``, ``Path``, a ``Literal``, or an optional one of them.

    Raises ``ValueError`` saying what was expected.
    """
    if _is_optional(kind):
        inner = next(arm for arm in typing.get_args(kind) if arm is not type(None))
        return parse(text, inner) if text else None
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if text in choices:
            return text
        raise ValueError(f"expected one of {', '.join(map(str, choices))}")
    if kind is bool:
        return _bool(text)
    if kind in (int, float):
        return _number(text, kind)
    if kind in (str, Path):
        return kind(text)
    raise TypeError(f"a configuration cannot hold a {kind}")


def _is_optional(kind: Any) -> bool:
    return typing.get_origin(kind) in (Union, types.UnionType) and type(None) in typing.get_args(kind)


def _bool(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError("expected true or false")


def _number(text: str, kind: type[int] | type[float]) -> int | float:
    try:
        number = kind(text)
    except ValueError:
        raise ValueError("expected a whole number" if kind is int else "expected a number") from None
    if not isfinite(number):
        raise ValueError("expected a number that is finite")
    return number
