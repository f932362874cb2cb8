"""Who is at fault when something fails, and what the caller should do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class HadareError(Exception):
    """Root of every error that HadarE raises on purpose; anything else is a bug in HadarE."""


class Rejected(HadareError):
    """The caller's fault: the request is refused and has changed nothing.

    Goes over the wire as ``{code, message, details}``. ``code`` is an HTTP-like status
    (400 malformed, 404 unknown, 409 conflict, 412 fenced by a newer epoch, 413 too large, 429 over a limit).
    """

    def __init__(self, code: int, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details: dict[str, Any] = dict(details or {})


class Unavailable(HadareError):
    """The other side could not be reached in time: retry with back-off. Whether it acted is unknown."""


class Conflict(HadareError):
    """A compare-and-set lost: somebody else wrote first. Read again and decide anew."""


class Broken(HadareError):
    """HadarE's own fault or a broken installation: the process stops with a non-zero status."""


def text_of(error: BaseException) -> str:
    """What it says of itself. It is users' code that makes the text, and may fail in that as well."""
    try:
        return str(error)
    except (Exception, SystemExit) as another:  # noqa: BLE001 - whatever it is, the first error is the one to tell of
        return f"(its text could not be made: {type(another).__name__})"
