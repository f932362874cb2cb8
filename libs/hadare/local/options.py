"""What the command line asks of a cluster on one machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_DIRECTORY = Path(".hadare")
DEFAULT_CLUSTER = "1x1:V100,1x1:P100,1x1:T4,1x1:K80,1x1:T400"
DEFAULT_ROUND_S = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """``hadare up``. ``cluster``: a file, or ``NODESxDEVICES:TYPE,…``; None: as before, else the default.

    ``json``: one JSON document (``nats_url, http_url, services, nodes, ok``) on stdout.
    """

    directory: Path = DEFAULT_DIRECTORY
    cluster: str | None = None
    round_s: float = DEFAULT_ROUND_S
    policy: str = "hadare"
    detach: bool = False
    json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """``hadare demo``. ``directory`` None: a temporary one, removed at the end. ``json_file``: where the report goes."""

    directory: Path | None = None
    json_file: Path | None = None
    cluster: str | None = None
    round_s: float | None = None
    plain: bool = False
