"""Traces made to order: the paper's size classes with its five model kinds, gangs, static or Poisson arrivals.

Hadar's classes by GPU-hours of a V100: S up to 1, M up to 10, L up to 50, XL up to 100. The paper does not say how
often each class and gang comes; the shares here are ours (gangs as in Gavel's generator).
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from math import ceil

from hadare.model.errors import Rejected
from hadare.simulator.jobs import TraceRow


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Jobs of ``low`` to ``high`` GPU-hours; ``models`` with their batch sizes; ``share`` of all jobs."""

    name: str
    low: float
    high: float
    models: tuple[tuple[str, int], ...]
    share: float


CLASSES = (
    SizeClass("S", 0.05, 1.0, (("ResNet-18", 128),), 0.4),
    SizeClass("M", 1.0, 10.0, (("CycleGAN", 0),), 0.3),
    SizeClass("L", 10.0, 50.0, (("LM", 20), ("Transformer", 64)), 0.2),
    SizeClass("XL", 50.0, 100.0, (("ResNet-50", 64),), 0.1),
)
GANGS = ((1, 0.7), (2, 0.1), (4, 0.15), (8, 0.05))

_TERM = re.compile(r"^synthetic:(?P<options>.*)$")


@dataclass(frozen=True, slots=True)
class Synthetic:
    """``interval_s``: mean time between arrivals, 0 for all at once."""

    jobs: int = 120
    interval_s: float = 0.0
    seed: int = 0
    most_gang: int = 8

    def rows(self) -> tuple[TraceRow, ...]:
        """The jobs, by arrival; the same for the same seed."""
        chance = random.Random(self.seed)
        now, rows = 0.0, []
        for number in range(self.jobs):
            size = chance.choices(CLASSES, [each.share for each in CLASSES])[0]
            model, batch = chance.choice(size.models)
            gangs = [(gang, share) for gang, share in GANGS if gang <= self.most_gang]
            rows.append(
                TraceRow(
                    job_id=f"{size.name.lower()}-{number:05d}",
                    arrival_s=now,
                    model=model,
                    batch_size=batch,
                    gang=chance.choices([gang for gang, _ in gangs], [share for _, share in gangs])[0],
                    gpu_hours=chance.uniform(size.low, size.high),
                )
            )
            now += ceil(chance.expovariate(1 / self.interval_s)) if self.interval_s > 0 else 0.0
        return tuple(rows)


def of_size(gpu_hours: float) -> tuple[str, int]:
    """Model and batch size of the class that a job of so many GPU-hours falls into."""
    size = next((size for size in CLASSES if gpu_hours <= size.high), CLASSES[-1])
    return size.models[0]


def parse_synthetic(text: str, seed: int) -> Synthetic | None:
    """``synthetic:jobs=480,interval=3600,gang=8``, or None if it is no such thing. Raises ``Rejected`` (400)."""
    match = _TERM.match(text)
    if match is None:
        return None
    values: dict[str, float] = {}
    for option in filter(None, match["options"].split(",")):
        name, _, value = option.partition("=")
        if name not in ("jobs", "interval", "gang"):
            raise Rejected(400, f"synthetic: unknown option '{name}'; known are jobs, interval, gang")
        try:
            values[name] = float(value)
        except ValueError:
            raise Rejected(400, f"synthetic: {name}='{value}' is no number") from None
    made = Synthetic(
        jobs=int(values.get("jobs", 120)),
        interval_s=values.get("interval", 0.0),
        seed=seed,
        most_gang=int(values.get("gang", 8)),
    )
    if not (1 <= made.jobs <= 100_000 and 0 <= made.interval_s <= 1e9 and made.most_gang >= 1):
        raise Rejected(400, "synthetic: jobs from 1 to 100000, interval and gang not negative")
    return made
