"""What the command line asks of a cluster on one machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_DIRECTORY = Path(".hadare")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """``hadare up``. ``cluster``: a file, or ``NODESxDEVICES:TYPE,…``. None: as in the last start, else a default.

    ``json``: one JSON document (``nats_url, http_url, services, nodes, ok``) on stdout.
    """

    directory: Path = DEFAULT_DIRECTORY
    cluster: str | None = None
    round_s: float | None = None
    policy: str | None = None
    detach: bool = False
    json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """``hadare demo``. ``directory`` None: a new one, ``.hadare/demo-<time>``, that stays. ``json_file``: a report."""

    directory: Path | None = None
    json_file: Path | None = None
    cluster: str | None = None
    round_s: float | None = None
    plain: bool = False
