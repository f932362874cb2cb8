"""Answers that may be long are cut so that each fits into one message, whatever form it is sent in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hadare.wire import codec

T = TypeVar("T")

BUDGET_BYTES = codec.MAX_MESSAGE_BYTES * 3 // 4


def fitting(items: Sequence[T], budget: int = BUDGET_BYTES) -> list[T]:
    """As many of the first items as fit, at least one. JSON is the longer form, so it is what counts."""
    kept: list[T] = []
    used = 0
    for item in items:
        used += len(codec.encode(item, codec.Format.JSON)) + 1
        if kept and used > budget:
            break
        kept.append(item)
    return kept


def page(items: Sequence[T], name: Callable[[T], str], cursor: str, limit: int) -> tuple[list[T], str]:
    """Items by name, from after ``cursor``, and the cursor for the next page ('': none)."""
    rest = [item for item in sorted(items, key=name) if name(item) > cursor]
    kept = fitting(rest[:limit])
    return kept, name(kept[-1]) if len(kept) < len(rest) else ""
