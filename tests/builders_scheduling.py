"""Builders for scheduling tests: every test states only what matters to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hadare.model.devices import NodeState
from hadare.model.plans import JobView, NodeView, PriceBook, PriceCurve, RoundPlan, Snapshot, Throughput
from hadare.scheduling.pricing import price_book

SPEED = {"V100": 1.0, "P100": 0.7, "T4": 0.43, "K80": 0.27, "T400": 0.08}


def rates(scale: float = 10.0, confidence: float = 1.0, types: Mapping[str, float] = SPEED) -> dict[str, Throughput]:
    """Throughputs in proportion to the types' speeds."""
    return {t: Throughput(steps_per_s=scale * x, confidence=confidence) for t, x in types.items()}


def a_job(job_id: str = "a", **changes: Any) -> JobView:
    fields: dict[str, Any] = {
        "job_id": job_id,
        "arrival_s": 0.0,
        "steps_left": 100_000,
        "total_steps": max(100_000, changes.get("steps_left", 0)),
        "throughput": rates(),
    }
    return JobView(**{**fields, **changes})


def a_node(node: str = "n1", state: NodeState = NodeState.READY, **devices: int) -> NodeView:
    """``a_node("n1", V100=2)``; a V100 if nothing is said."""
    return NodeView(node=node, state=state, devices=devices or {"V100": 1})


FIVE_UNEQUAL = tuple(NodeView(node=f"n{i}", state=NodeState.READY, devices={t: 1}) for i, t in enumerate(SPEED))


def flat_book(nodes: Sequence[NodeView], price: float = 1e-9) -> PriceBook:
    """Every device costs the same, always."""
    curves = tuple(
        PriceCurve(node=n.node, type=t, capacity=c, u_min=price, u_max=price)
        for n in nodes
        for t, c in n.devices.items()
    )
    return PriceBook(round=0, curves=curves)


def a_snapshot(
    jobs: Sequence[JobView],
    nodes: Sequence[NodeView] = FIVE_UNEQUAL,
    prices: PriceBook | None = None,
    now_s: float = 0.0,
    round_s: float = 360.0,
) -> Snapshot:
    """A round at ``now_s``, priced for its jobs unless a book is given."""
    book = prices if prices is not None else price_book(0, nodes, jobs, round_s, now_s=now_s)
    return Snapshot(round=0, epoch=1, now_s=now_s, round_s=round_s, nodes=tuple(nodes), jobs=tuple(jobs), prices=book)


def devices_of(plan: RoundPlan, job_id: str) -> dict[tuple[str, str], int]:
    """Devices by (node, type) that the plan gives a job."""
    held: dict[tuple[str, str], int] = {}
    for member in (m for fork in plan.forks if fork.job_id == job_id for m in fork.gang):
        held[member.node, member.type] = held.get((member.node, member.type), 0) + member.count
    return held
