"""The rules of consolidation: which forks count, with what weight, and how each kind of tensor is combined.

Pure: it sees names, dtypes, step counts and norms, never a tensor. ``hadare.training.averaging`` does the arithmetic.
Why each rule is what it is: docs/explanation/consolidation.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

FLOATING = frozenset({"F64", "F32", "F16", "BF16"})
COMPLEX = frozenset({"C64"})
MODEL_PREFIX = "model."
OPTIMIZER_PREFIX = "optim."

_COUNTERS = frozenset({"num_batches_tracked", "n_averaged"})
_RUNNING_MAXIMA = frozenset({"max_exp_avg_sq", "max_exp_avg_sqs"})
_SMALLEST_VOTE = 3

Scalar = bool | int | float | str


class Rule(StrEnum):
    """How one tensor of the forks becomes one tensor of the version."""

    AVERAGE = "average"
    MAXIMUM = "maximum"
    SUM_OF_INCREMENTS = "sum_of_increments"
    SAME_OR_LARGEST = "same_or_largest"


def rule_for(name: str, dtype: str) -> Rule:
    """The rule of a tensor of a weights file, by its full name (``model.…`` or ``optim.…``) and safetensors dtype.

    Integers and booleans are never averaged: counters add up what the forks added to the base, others must agree,
    else the fork with most steps is followed.
    """
    last = name.rpartition(".")[2]
    if name.startswith(OPTIMIZER_PREFIX) and (last == "step" or last in _RUNNING_MAXIMA):
        return Rule.MAXIMUM
    if dtype in FLOATING or dtype in COMPLEX:
        return Rule.AVERAGE
    return Rule.SUM_OF_INCREMENTS if last in _COUNTERS else Rule.SAME_OR_LARGEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a fork says of itself, before any of its tensors is read.

    ``spec`` is the hash of its model's names, dtypes, shapes and ties; ``base`` the sha256 of the version that it
    trained from, empty if it does not say.
    """

    fork: int
    steps: int
    spec: str
    base: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What reading a fork showed: ``norm`` is the Euclidean norm of its parameters' delta from the base."""

    fork: int
    steps: int
    finite: bool
    norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Forks that stay, in order of their id, and why the others do not."""

    kept: tuple[int, ...] = ()
    rejected: Mapping[int, str] = field(default_factory=dict)


def screen(claims: Iterable[Claim], *, spec: str, base: str = "", max_steps: int | None = None) -> Verdict:
    """First sieve, by what the forks claim. A fork without steps is left out before its file is read."""
    reasons = {c.fork: _fault(c, spec=spec, base=base, max_steps=max_steps) for c in claims}
    kept = tuple(sorted(f for f, why in reasons.items() if not why))
    return Verdict(kept=kept, rejected={f: why for f, why in sorted(reasons.items()) if why})


def _fault(claim: Claim, *, spec: str, base: str, max_steps: int | None) -> str:
    if claim.steps == 0:
        return "no steps"
    if claim.steps < 0:
        return f"negative step count {claim.steps}"
    if max_steps is not None and claim.steps > max_steps:
        return f"{claim.steps} steps are more than the {max_steps} that the round could hold"
    if claim.spec != spec:
        return "its tensors are not those of the base"
    if base and claim.base and claim.base != base:
        return "trained from another base"
    return ""


def judge(evidence: Iterable[Evidence], *, max_norm_ratio: float) -> Verdict:
    """Second sieve, by what their tensors showed: non-finite forks and outliers go.

    A delta grows about like the square root of its steps, so ``norm/√steps`` is compared with the median of the finite
    forks. With fewer than three of them there is no majority to compare with, and the rule is skipped.
    """
    seen = sorted(evidence, key=lambda e: e.fork)
    finite = [e for e in seen if e.finite and math.isfinite(e.norm)]
    typical = median(_pace(e) for e in finite) if len(finite) >= _SMALLEST_VOTE else 0.0
    rejected: dict[int, str] = {}
    for e in seen:
        if not (e.finite and math.isfinite(e.norm)):
            rejected[e.fork] = "not finite"
        elif typical > 0 and _pace(e) > max_norm_ratio * typical:
            rejected[e.fork] = f"its delta is {_pace(e) / typical:.1f} times the median (limit {max_norm_ratio:g})"
    return Verdict(kept=tuple(e.fork for e in seen if e.fork not in rejected), rejected=rejected)


def _pace(e: Evidence) -> float:
    return e.norm / math.sqrt(e.steps)


def weights(steps: Mapping[int, int]) -> dict[int, float]:
    """``n_f / Σ n`` for each fork, in order of fork id. The paper's weights. Empty if nobody has a step."""
    total = sum(steps.values())
    return {fork: steps[fork] / total for fork in sorted(steps)} if total > 0 else {}


def largest(steps: Mapping[int, int]) -> int:
    """The fork with most steps; the smallest id among equals."""
    return min(steps, key=lambda fork: (-steps[fork], fork))


def path_steps(steps: Sequence[float]) -> float:
    """How far a round moves a job along one worker's path: ``Σ n_f² / Σ n_f`` steps.

    Step-weighted averaging of forks that did n_f steps advances by the weighted mean of the n_f, while their sum is
    what is counted. One fork: the two are equal.
    """
    total = sum(steps)
    return sum(n * n for n in steps) / total if total > 0 else 0.0


def combine_scalars(scalars: Mapping[int, Mapping[str, Scalar]], steps: Mapping[int, int]) -> dict[str, Scalar]:
    """Optimiser states that are not tensors: ``step`` is the maximum, fractions are averaged, the rest is the
    largest fork's. A state that only some forks have is taken from those."""
    combined: dict[str, Scalar] = {}
    for name in sorted({name for values in scalars.values() for name in values}):
        values = {fork: scalars[fork][name] for fork in sorted(scalars) if name in scalars[fork]}
        combined[name] = _combine_scalar(name, values, {fork: steps[fork] for fork in values})
    return combined


def _combine_scalar(name: str, values: Mapping[int, Scalar], steps: Mapping[int, int]) -> Scalar:
    followed = values[largest(steps)]
    numbers = {f: v for f, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    if len(numbers) < len(values) or isinstance(followed, str | bool):
        return followed
    if rule_for(OPTIMIZER_PREFIX + name, "F32") is Rule.MAXIMUM:
        return max(numbers.values())
    if all(isinstance(v, int) for v in numbers.values()):
        return followed
    return followed + sum(w * (numbers[f] - followed) for f, w in weights(steps).items())
