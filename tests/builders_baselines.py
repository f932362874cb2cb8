"""Builders for the tests of the baselines: the golden files, and rounds of a policy on equal terms."""

from __future__ import annotations

import csv
import json
from importlib import resources
from pathlib import Path
from typing import Any

from hadare.scheduling.baselines.replay import TraceJob

GOLDEN = Path(__file__).parent / "regression" / "golden"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


def tiresias_trace(times: int = 1) -> list[TraceJob]:
    """Tiresias' sample trace, its durations multiplied."""
    text = resources.files("hadare.tables").joinpath("traces", "tiresias_60.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return [
        TraceJob(row["job"], int(row["submit_s"]), int(row["num_gpus"]), int(row["duration_s"]) * times) for row in rows
    ]
