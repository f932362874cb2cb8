"""Throughput x[j, r]: a documented first guess, and how fast measurements take its place.

First guess (steps/s of one rank): ``X = 7.0 · PMI / (batch_size · GFLOP per sample)^0.75``. The two constants were
fitted to the isolated one-GPU rates that Gavel published for V100, P100 and K80 (six models, 75 cells, leaving one
model out: median error 23 %, 90th percentile 89 %). The paper names the ingredients, not the formula.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from math import exp, isfinite, log

from hadare.model.jobs import JobSpec, Measured
from hadare.model.plans import Throughput
from hadare.scheduling.devices import pmi

COLD_CONSTANT = 7.0
COLD_EXPONENT = 0.75
DEFAULT_GFLOP_PER_SAMPLE = 1.0
GFLOP_KEY = "gflop_per_sample"
"""``spec.config[GFLOP_KEY]``: training GFLOP (forward and backward) of one sample, if the user knows it."""

SMALLEST_GAIN = 0.2
SURPRISE = 0.5
"""An observation whose log ratio to the estimate is larger is a surprise; two in a row are a change point."""

SCALED_CONFIDENCE = 0.25


def cold_rate(spec: JobSpec, device_type: str) -> float:
    """Steps/s of one rank before anything was measured."""
    work = spec.batch_size * _gflop_per_sample(spec)
    return float(COLD_CONSTANT * pmi(device_type) / work**COLD_EXPONENT)


def confidence(measured: Measured) -> float:
    """0 for a bare guess, towards 1 with each observation; halved while an observation contradicts the estimate."""
    return measured.count / (measured.count + 1.0) * (0.5 if measured.surprises else 1.0)


def observe(measured: Measured | None, steps_per_s: float) -> Measured:
    """Fold one observation in. The first replaces any prior; later ones have gain ``max(0.2, 1/n)`` in log space.

    A first surprise is held back (it may be an outlier); a second one in a row replaces the estimate and starts the
    count anew. An observation of zero means "not measured" and changes nothing.
    """
    known = measured or Measured(steps_per_s=0.0, count=0)
    if not (isfinite(steps_per_s) and steps_per_s > 0):
        return known
    if known.count == 0 or known.steps_per_s <= 0:
        return Measured(steps_per_s=steps_per_s, count=1)
    ratio = log(steps_per_s / known.steps_per_s)
    if abs(ratio) > SURPRISE:
        if known.surprises:
            return Measured(steps_per_s=steps_per_s, count=1)
        return Measured(steps_per_s=known.steps_per_s, count=known.count, surprises=1)
    count = known.count + 1
    gain = max(SMALLEST_GAIN, 1.0 / count)
    return Measured(steps_per_s=known.steps_per_s * exp(gain * ratio), count=count)


def estimate(
    spec: JobSpec,
    measured: Mapping[str, Measured],
    types: Iterable[str],
    shared: Mapping[str, Measured] | None = None,
) -> dict[str, Throughput]:
    """Throughput of the job on each of ``types``, from the best source that there is.

    In this order: the job's own measurement; one of another job of the same ``workload_key`` (``shared``); the
    measured types scaled by the ratio of performance-memory indices; the cold formula.
    """
    known = {**_observed(shared or {}), **_observed(measured)}
    level = _level(known)
    return {name: _estimate_one(spec, name, known, level) for name in sorted(set(types))}


def workload_key(spec: JobSpec) -> str:
    """Jobs of one key are expected to run at one rate: same workload, batch size and configuration."""
    config = json.dumps(spec.config, sort_keys=True, default=str)
    return f"{spec.workload}|{spec.batch_size}|{sha256(config.encode()).hexdigest()[:16]}"


def _observed(measured: Mapping[str, Measured]) -> dict[str, Measured]:
    return {name: value for name, value in measured.items() if value.count > 0 and value.steps_per_s > 0}


def _estimate_one(spec: JobSpec, name: str, known: Mapping[str, Measured], level: float | None) -> Throughput:
    if name in known:
        return Throughput(steps_per_s=known[name].steps_per_s, confidence=confidence(known[name]))
    if level is not None:
        return Throughput(steps_per_s=level * pmi(name), confidence=SCALED_CONFIDENCE)
    return Throughput(steps_per_s=cold_rate(spec, name))


def _level(known: Mapping[str, Measured]) -> float | None:
    """Steps/s per unit of PMI over the measured types: their geometric mean, weighted by observations."""
    rated = sorted(known.items())
    if not rated:
        return None
    total = sum(value.count for _, value in rated)
    return exp(sum(value.count * log(value.steps_per_s / pmi(name)) for name, value in rated) / total)


def _gflop_per_sample(spec: JobSpec) -> float:
    given = spec.config.get(GFLOP_KEY, DEFAULT_GFLOP_PER_SAMPLE)
    usable = isinstance(given, int | float) and isfinite(given) and given > 0
    return float(given) if usable else DEFAULT_GFLOP_PER_SAMPLE
