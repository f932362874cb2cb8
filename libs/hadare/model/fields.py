"""Bounded scalar types. Every value that comes from outside has one of these, so no size is unbounded."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

_SLUG = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z"

JobId = Annotated[str, Meta(pattern=_SLUG, description="lower-case letters, digits and '-', at most 63")]
NodeId = Annotated[str, Meta(pattern=_SLUG, description="lower-case letters, digits and '-', at most 63")]
DeviceType = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}\Z")]
Text = Annotated[str, Meta(max_length=4096)]
LongText = Annotated[str, Meta(max_length=65536)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Seconds = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
