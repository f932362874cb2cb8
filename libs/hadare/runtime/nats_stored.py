"""Messages that a stream holds, looked up one by one or listed by subject."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hadare.runtime.nats_errors import ApiError
from hadare.runtime.nats_link import Link

_NO_MESSAGE = 10037


@dataclass(frozen=True, slots=True)
class Stored:
    """A message of a stream. ``at`` is the server's clock (Unix seconds)."""

    subject: str
    sequence: int
    at: float
    headers: dict[str, str]
    data: bytes


async def last_of(link: Link, stream: str, subject: str) -> Stored | None:
    """The newest message of a subject (wildcards allowed), as the stream's leader knows it. Raises ``Unavailable``."""
    try:
        answer = await link.api_retrying(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
    except ApiError as error:
        if error.err_code == _NO_MESSAGE:
            return None
        raise
    return _stored(answer["message"])


async def subjects_of(link: Link, stream: str, pattern: str) -> set[str]:
    """Every subject of the stream that matches and holds a message. Raises ``Unavailable``."""
    found: set[str] = set()
    while True:
        info = await link.api_retrying(f"STREAM.INFO.{stream}", {"subjects_filter": pattern, "offset": len(found)})
        page = info["state"].get("subjects") or {}
        found.update(page)
        if not page or len(found) >= int(info.get("total", 0)):
            return found


def unix_seconds(timestamp: str) -> float:
    """RFC 3339, to the microsecond, as Unix seconds."""
    return datetime.fromisoformat(timestamp).timestamp()


def _stored(raw: Mapping[str, Any]) -> Stored:
    return Stored(
        subject=str(raw["subject"]),
        sequence=int(raw["seq"]),
        at=unix_seconds(str(raw["time"])),
        headers=_headers(base64.b64decode(raw.get("hdrs") or "")),
        data=base64.b64decode(raw.get("data") or ""),
    )


def _headers(block: bytes) -> dict[str, str]:
    """``NATS/1.0`` and then one ``name: value`` a line."""
    lines = block.decode("utf-8", "replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name.strip(): value.strip() for name, _, value in pairs}
