"""What the demonstration's jobs must reach: one worker's metric at the same total steps, less the spread of its seeds.

The numbers are measured by ``python -m hadare.local.calibrate`` and kept beside the job files in ``targets.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from statistics import mean, stdev
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from hadare.model.errors import Broken

DEVIATIONS = 2.0
"""A target lies so many standard deviations (over seeds) on the worse side of one worker's mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One worker's metric at the end of a job, by seed. ``spec`` is the digest of the job file it was measured for."""

    metric: str
    better: Literal["higher", "lower"]
    steps: int
    values: Annotated[dict[int, float], Meta(min_length=2)]
    spec: str

    @property
    def mean(self) -> float:
        return mean(self.values.values())

    @property
    def deviation(self) -> float:
        return stdev(self.values.values())

    @property
    def target(self) -> float:
        """The mean, less (for losses: plus) ``DEVIATIONS`` standard deviations."""
        margin = DEVIATIONS * self.deviation
        return self.mean - margin if self.better == "higher" else self.mean + margin

    def reached_by(self, value: float | None) -> bool:
        if value is None:
            return False
        return value >= self.target if self.better == "higher" else value <= self.target


JOBS = ("digits", "weather", "charlm")
"""The demonstration's jobs, in the order in which they are submitted."""


def demo_file(name: str) -> Traversable:
    """A file of the demonstration, as it is installed."""
    return resources.files("hadare.local").joinpath("demo", name)


def job_file(name: str) -> dict[str, Any]:
    """A job file of the demonstration as a map, ready to submit."""
    plain = yaml.safe_load(demo_file(f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(plain, dict)
    return plain


def load_targets() -> dict[str, Calibration]:
    """The calibrations, by job. Raises ``Broken`` if the file of the installation is damaged."""
    text = demo_file("targets.yaml").read_text(encoding="utf-8")
    try:
        return msgspec.convert(yaml.safe_load(text)["jobs"], dict[str, Calibration], strict=False)
    except (msgspec.ValidationError, yaml.YAMLError, KeyError, TypeError) as error:
        raise Broken(f"targets.yaml of this installation is damaged: {error}") from error


def as_plain(calibration: Calibration) -> Mapping[str, Any]:
    """How a calibration is written down; mean, deviation and target only for whoever reads the file."""
    return {
        "metric": calibration.metric,
        "better": calibration.better,
        "steps": calibration.steps,
        "values": {seed: round(value, 6) for seed, value in sorted(calibration.values.items())},
        "mean": round(calibration.mean, 6),
        "deviation": round(calibration.deviation, 6),
        "target": round(calibration.target, 6),
        "spec": calibration.spec,
    }
