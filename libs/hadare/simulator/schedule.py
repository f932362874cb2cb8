"""What befalls nodes, from a file: ``at_s,node,what`` with ``fail``, ``recover``, ``drain`` or ``undrain``."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import cast, get_args, get_type_hints

from hadare.model.errors import Rejected
from hadare.simulator.cells import Cells
from hadare.simulator.settings import NodeEvent

_KINDS: tuple[str, ...] = get_args(get_type_hints(NodeEvent)["what"])


def read_schedule(path: Path) -> tuple[NodeEvent, ...]:
    """The events of a CSV file, in its order. Raises ``Rejected`` (400) with line and column."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(400, f"cannot read the schedule: {error}") from error
    reader = csv.DictReader(text.splitlines())
    header = list(reader.fieldnames or ())
    missing = [name for name in ("at_s", "node", "what") if name not in header]
    if missing:
        raise Rejected(400, f"{path} line 1: the column {missing[0]} is missing")
    numbers = {name: number for number, name in enumerate(header, 1)}
    return tuple(_event(Cells(row, f"{path} line {reader.line_num}", numbers)) for row in reader)


def _event(cells: Cells) -> NodeEvent:
    what = cells.text("what")
    if what not in _KINDS:
        raise cells.fault("what", f"'{what}' is none of {', '.join(_KINDS)}")
    return NodeEvent(at_s=cells.number("at_s"), node=cells.text("node"), what=cast("NodeEvent", what))  # type: ignore[arg-type]
