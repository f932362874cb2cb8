"""Divides a job's steps over its forks: the quotas of a round.

A quota binds only when the job has less left than the round can hold; otherwise it is a generous upper bound and the
clock ends the fork. Rates are estimates, so the bound leaves room for them to be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor

SLACK = 1.5
"""How much more than expected a well-measured fork may do in a round; without any measurement ``SLACK_COLD``."""
SLACK_COLD = 4.0


def slack(confidence: float) -> float:
    """Upper bound on a fork's steps over its expected steps, by the confidence (0 to 1) of its rate."""
    return SLACK_COLD + (SLACK - SLACK_COLD) * min(max(confidence, 0.0), 1.0)


def quotas(steps_left: int, expected: Sequence[float], slacks: Sequence[float]) -> tuple[int, ...]:
    """Steps that each fork may do at most; their sum never exceeds ``steps_left``.

    ``expected`` are the steps that each fork can do in the round. If the generous bounds fit into what is left, they
    are the quotas. Otherwise what is left is shared in proportion to ``expected``, so that the forks end together.
    With fewer steps than forks, the slowest forks get none.
    """
    bounds = [max(1, ceil(steps * room)) for steps, room in zip(expected, slacks, strict=True)]
    if sum(bounds) <= steps_left:
        return tuple(bounds)
    return share(steps_left, expected)


def gang_quota(steps_left: int, expected: float, confidence: float, ranks: int) -> int:
    """Steps that a gang of ``ranks`` may do: whole updates, of a step a rank, until what is left is less than one.

    The last update of a job may be of fewer steps than ranks: ranks beyond the quota then sit it out.
    """
    (quota,) = quotas(steps_left, [expected], [slack(confidence)])
    return quota if quota == steps_left else min(steps_left, -(-quota // ranks) * ranks)


def share(steps: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers that add up to ``steps``, in proportion to ``weights``, at least one each while there are enough.

    What rounding leaves over goes where there is most room below the weight: with weights that say what a fork can do
    in the round, none is asked for a step more than that if it can be avoided. Ties go to the earlier fork.
    """
    fastest = sorted(range(len(weights)), key=lambda i: (-weights[i], i))[: max(steps, 0)]
    parts = [0] * len(weights)
    if not fastest:
        return tuple(parts)
    total = sum(weights[i] for i in fastest)
    ideal = {i: steps * weights[i] / total if total > 0 else steps / len(fastest) for i in fastest}
    for i in fastest:
        parts[i] = max(1, floor(ideal[i]))
    _settle(parts, steps, ideal, weights)
    return tuple(parts)


def _settle(parts: list[int], steps: int, ideal: dict[int, float], weights: Sequence[float]) -> None:
    """Take back what the minimum of one step gave too much, from the largest; then hand out what rounding left."""
    excess = sum(parts) - steps
    for i in sorted(ideal, key=lambda i: (-parts[i], i)):
        back = min(max(excess, 0), parts[i] - 1)
        parts[i] -= back
        excess -= back
    left = steps - sum(parts)
    by_room = sorted(ideal, key=lambda i: (parts[i] + 1 > weights[i], parts[i] - ideal[i], i))
    for rank, i in enumerate(by_room):
        parts[i] += left // len(by_room) + (1 if rank < left % len(by_room) else 0)
