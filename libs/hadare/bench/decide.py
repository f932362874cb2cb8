"""How long a decision takes, how the time grows with the jobs, and how near a plan is to the optimum of its round."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

import numpy as np

from hadare.bench.rounds import large_round, small_round
from hadare.model.devices import NodeState
from hadare.model.plans import RoundPlan, Snapshot
from hadare.scheduling.optimum import Yardstick
from hadare.scheduling.policies import policy_of

NODES, PER_NODE, TYPES = 15, 4, 3
GROWTH = (256, 1024, 4096, 16_384)
TIMED = (512, 2048)
POLICIES = ("hadar", "hadare")
PEER = "gavel"
HUGE = (20_000, 1000, 8, 8)
"""Jobs, nodes, types, devices of a node."""
LARGE = (64, 128, 256, 512)
LARGE_LIMIT_S, LARGE_GAP = 30.0, 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Decision time of a policy on a round of that size: medians of the wall clock and of the process's CPU time."""

    policy: str
    jobs: int
    devices: int
    types: int
    median_ms: float
    cpu_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """V(plan)/V* over random rounds. ``infeasible``: plans that take more than there is, or half a gang."""

    instances: int
    mean_ratio: float
    worst_ratio: float
    infeasible: int
    greedy_mean_ratio: float
    greedy_worst_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AtScale:
    """V(plan) over HiGHS' upper bound on 60 devices."""

    jobs: int
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """All that ``hadare bench decide`` measures. ``growth_exponent`` is the larger of the two policies'."""

    cases: tuple[Case, ...]
    growth_exponent: float
    growth: dict[str, float]
    times_faster_than_gavel: dict[str, dict[int, float]]
    peak_memory_mb: float
    quality: Quality
    quality_forks: Quality
    quality_at_scale: tuple[AtScale, ...] = field(default=())


def measure(instances: int, repeat: int, *, said: Callable[[str], None], huge: bool = True) -> Decisions:
    """Everything. ``said`` hears what is being measured."""
    cases = list(_cases(repeat, huge, said))
    usual = [case for case in cases if case.devices == NODES * PER_NODE]
    growth = {name: growth_exponent([case for case in usual if case.policy == name]) for name in POLICIES}
    said(f"plan quality on {instances} random rounds")
    return Decisions(
        cases=tuple(cases),
        growth_exponent=max(growth.values()),
        growth=growth,
        times_faster_than_gavel=_faster(cases),
        peak_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        quality=quality(range(instances)),
        quality_forks=quality(range(instances), forks=True),
        quality_at_scale=tuple(at_scale(jobs) for jobs in (LARGE if huge else LARGE[:1])),
    )


def decision_time(policy: str, snapshot: Snapshot, repeat: int) -> Case:
    """Median time of one ``plan`` on the snapshot; nothing is kept from one to the next."""
    decide, wall, cpu = policy_of(policy), [], []
    for _ in range(repeat):
        wall_at, cpu_at = time.perf_counter(), time.process_time()
        decide.plan(snapshot, {})
        wall.append(time.perf_counter() - wall_at)
        cpu.append(time.process_time() - cpu_at)
    return Case(
        policy=policy,
        jobs=len(snapshot.jobs),
        devices=sum(sum(n.devices.values()) for n in snapshot.nodes),
        types=len({t for n in snapshot.nodes for t in n.devices}),
        median_ms=1e3 * median(wall),
        cpu_ms=1e3 * median(cpu),
    )


def growth_exponent(cases: Sequence[Case]) -> float:
    """The b of time = a · jobs^b that fits the cases best, by their CPU time."""
    sized = [(case.jobs, case.cpu_ms) for case in cases]
    slope, _ = np.polyfit(np.log([jobs for jobs, _ in sized]), np.log([ms for _, ms in sized]), 1)
    return float(slope)


def quality(seeds: Iterable[int], *, forks: bool = False) -> Quality:
    """Plan quality of ``hadar`` (with ``forks``: ``hadare``, against all sets of devices) on small rounds.

    Rounds in which nothing is worth placing are left out.
    """
    ratios, greedy, infeasible = [], [], 0
    for seed in seeds:
        snapshot = small_round(seed)
        yard = Yardstick(snapshot, forks=forks)
        best = yard.optimum().value
        if best <= 0:
            continue
        plan, _ = policy_of("hadare" if forks else "hadar").plan(snapshot, {})
        infeasible += not feasible(snapshot, plan, whole=not forks)
        ratios.append(yard.value(plan) / best)
        greedy.append(Yardstick(snapshot).greedy() / best)
    return Quality(
        instances=len(ratios),
        mean_ratio=mean(ratios),
        worst_ratio=min(ratios),
        infeasible=infeasible,
        greedy_mean_ratio=mean(greedy),
        greedy_worst_ratio=min(greedy),
    )


def at_scale(jobs: int) -> AtScale:
    """The mean ratio to HiGHS' upper bound over a round of narrow gangs and one of wide ones."""
    ratios = []
    for seed, wide in ((0, False), (1, True)):
        snapshot = large_round(jobs, NODES, TYPES, PER_NODE, seed, wide)
        yard = Yardstick(snapshot)
        plan, _ = policy_of("hadar").plan(snapshot, {})
        ratios.append(yard.value(plan) / yard.optimum(time_limit_s=LARGE_LIMIT_S, gap=LARGE_GAP).bound)
    return AtScale(jobs=jobs, ratio=mean(ratios))


def feasible(snapshot: Snapshot, plan: RoundPlan, *, whole: bool) -> bool:
    """Whether no cell of a ready node holds more than it has and (``whole``) each placed job has its full gang."""
    taken: Counter[tuple[str, str]] = Counter()
    held: Counter[str] = Counter()
    for fork in plan.forks:
        for member in fork.gang:
            taken[member.node, member.type] += member.count
            held[fork.job_id] += member.count
    ready = {n.node: n.devices for n in snapshot.nodes if n.state is NodeState.READY}
    gangs = {job.job_id: job.gang for job in snapshot.jobs}
    room = all(ready.get(node, {}).get(name, 0) >= count for (node, name), count in taken.items())
    return room and (not whole or all(gangs[job] == count for job, count in held.items()))


def _cases(repeat: int, huge: bool, said: Callable[[str], None]) -> Iterable[Case]:
    for jobs in sorted({*GROWTH, *TIMED}):
        snapshot = large_round(jobs, NODES, TYPES, PER_NODE)
        for name in (*POLICIES, PEER) if jobs in TIMED else POLICIES:
            said(f"{name}: {jobs} jobs on {NODES * PER_NODE} devices")
            yield decision_time(name, snapshot, repeat)
    if huge:
        jobs, nodes, types, per_node = HUGE
        snapshot = large_round(jobs, nodes, types, per_node)
        for name in POLICIES:
            said(f"{name}: {jobs} jobs on {nodes * per_node} devices")
            yield decision_time(name, snapshot, min(repeat, 3))


def _faster(cases: Sequence[Case]) -> dict[str, dict[int, float]]:
    peer = {case.jobs: case.cpu_ms for case in cases if case.policy == PEER}
    return {
        name: {c.jobs: peer[c.jobs] / c.cpu_ms for c in cases if c.policy == name and c.jobs in peer}
        for name in POLICIES
    }
