"""Rounds to measure policies on: random ones, small enough for the exact optimum, and large ones of a given size."""

from __future__ import annotations

import random

from hadare.model.devices import NodeState
from hadare.model.jobs import Constraints
from hadare.model.plans import Gang, GangMember, JobView, NodeView, Snapshot, Throughput
from hadare.scheduling.pricing import price_book
from hadare.scheduling.utility import utility_names

ROUND_S = 360.0
NOW_S = 50_000.0
TYPES = ("V100", "P100", "K80", "T4", "A100", "H100", "L4", "RTX-3090")
_SPEED = (1.0, 0.6, 0.2, 0.4, 1.6, 2.5, 0.7, 1.1)
MOST_JOBS, MOST_DEVICES, MOST_TYPES = 8, 16, 3


def small_round(seed: int) -> Snapshot:
    """At most 8 jobs × 16 devices × 3 types, with all that makes a round hard: gangs, places, restarts, constraints."""
    r = random.Random(seed)
    nodes = _small_nodes(r)
    utility = r.choice(["throughput", "throughput", *utility_names()])
    jobs = [_small_job(r, f"j{i}", nodes, utility) for i in range(r.randint(3, MOST_JOBS))]
    return _snapshot(nodes, jobs)


def large_round(jobs: int, nodes: int, types: int, per_node: int, seed: int = 0, wide: bool = False) -> Snapshot:
    """A round of that size; every node has ``per_node`` devices of one type. ``wide``: gangs of up to 8."""
    r = random.Random(seed)
    names = TYPES[:types]
    views = [
        NodeView(node=f"n{i:04}", state=NodeState.READY, devices={names[i % types]: per_node}) for i in range(nodes)
    ]
    gangs = (1, 2, 2, 4, 4, 8) if wide else (1, 1, 1, 1, 2, 4)
    return _snapshot(views, [_large_job(r, f"j{i:05}", names, gangs) for i in range(jobs)])


def _snapshot(nodes: list[NodeView], jobs: list[JobView]) -> Snapshot:
    book = price_book(0, nodes, jobs, ROUND_S, now_s=NOW_S)
    return Snapshot(round=0, epoch=1, now_s=NOW_S, round_s=ROUND_S, nodes=tuple(nodes), jobs=tuple(jobs), prices=book)


def _small_nodes(r: random.Random) -> list[NodeView]:
    left = r.randint(4, MOST_DEVICES)
    nodes: list[NodeView] = []
    while left > 0:
        devices: dict[str, int] = {}
        for device_type in r.sample(TYPES[:MOST_TYPES], 1 if r.random() < 0.75 else 2):
            count = min(left, r.choice([1, 1, 2, 2, 4, 4, 8]))
            if count:
                devices[device_type] = count
                left -= count
        labels = r.choice([{}, {}, {"zone": "b"}])
        nodes.append(NodeView(node=f"n{len(nodes)}", state=NodeState.READY, devices=devices, labels=labels))
    return nodes


def _small_job(r: random.Random, job_id: str, nodes: list[NodeView], utility: str) -> JobView:
    total = int(10 ** r.uniform(3, 7))
    scale = 10 ** r.uniform(-1, 2.5)
    usual = [Constraints()] * 6
    return JobView(
        job_id=job_id,
        arrival_s=r.uniform(0, NOW_S),
        steps_left=max(1, int(total * r.uniform(0.02, 1))),
        total_steps=total,
        throughput={
            name: Throughput(steps_per_s=scale * speed * r.choice([1.0, r.uniform(0.1, 1.5)]), confidence=1.0)
            for name, speed in zip(TYPES[:MOST_TYPES], _SPEED, strict=False)
            if r.random() < 0.92
        },
        gang=r.choice([1, 1, 2, 2, 3, 4, 4, 6, 8]),
        spread_factor=r.choice([1.0, 0.9, 0.7, 0.4]),
        batching=r.choice(["balanced", "balanced", "lockstep"]),
        priority=r.choice([1.0, 1.0, 1.0, 2.0, 5.0]),
        utility=utility,
        deadline_s=r.choice([None, 2 * NOW_S]),
        restart_cost_s=r.choice([0.0, 20.0, 60.0]),
        placed=(_somewhere(r, nodes),) if r.random() < 0.2 else (),
        constraints=r.choice([*usual, Constraints(labels={"zone": "b"}), Constraints(min_memory_gb=14)]),
    )


def _somewhere(r: random.Random, nodes: list[NodeView]) -> Gang:
    node = r.choice(nodes)
    device_type = r.choice(sorted(node.devices))
    return (GangMember(node=node.node, type=device_type, count=r.randint(1, node.devices[device_type])),)


def _large_job(r: random.Random, job_id: str, types: tuple[str, ...], gangs: tuple[int, ...]) -> JobView:
    total, scale = int(10 ** r.uniform(4, 7)), 10 ** r.uniform(0, 2)
    return JobView(
        job_id=job_id,
        arrival_s=r.uniform(0, NOW_S),
        steps_left=max(1, int(total * r.uniform(0.05, 1))),
        total_steps=total,
        throughput={
            name: Throughput(steps_per_s=scale * speed * r.uniform(0.4, 1.4), confidence=1.0)
            for name, speed in zip(types, _SPEED, strict=False)
        },
        gang=r.choice(gangs),
        spread_factor=r.choice([1.0, 0.9, 0.7]),
        restart_cost_s=20.0,
    )
