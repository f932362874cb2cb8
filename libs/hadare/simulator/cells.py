"""A row of a trace while it is read: typed access to its columns, and faults that say where they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from hadare.model.errors import Rejected

_LARGEST = 1e12


@dataclass(frozen=True, slots=True)
class Cells:
    """``place``: file and line, or path. ``numbers``: of the columns, from 1, where there are lines."""

    fields: Mapping[str, Any]
    place: str
    numbers: Mapping[str, int]

    def fault(self, column: str, message: str) -> Rejected:
        number = f" {self.numbers[column]}" if column in self.numbers else ""
        return Rejected(400, f"{self.place}, column{number} '{column}': {message}")

    def text(self, column: str) -> str:
        value = self.fields.get(column)
        text = "" if value is None or isinstance(value, bool | list | dict) else str(value).strip()
        if not text:
            raise self.fault(column, "is empty")
        return text[:256]

    def number(self, column: str, *, default: float | None = None, least: float = 0.0) -> float:
        """A number from ``least`` up; ``default`` where the column is missing or empty."""
        value = self.fields.get(column)
        if default is not None and (value is None or value == ""):
            return default
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise self.fault(column, f"'{value}' is no number") from None
        if not (isfinite(number) and least <= number <= _LARGEST):
            raise self.fault(column, f"{value} is not from {least:g} to {_LARGEST:g}")
        return number

    def whole(self, column: str, *, default: int | None = None, least: int = 0) -> int:
        """A whole number from ``least`` up."""
        number = self.number(column, default=default, least=least)
        if number != int(number):
            raise self.fault(column, f"{self.fields.get(column)} is no whole number")
        return int(number)
