"""What happens in one simulation: nodes, jobs and faults, all drawn from a seed, and cut down when it fails."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Literal

from hadare.model.jobs import ConsolidationSpec, Desired, GuardSpec, JobRecord, JobSpec, Until
from hadare.scheduling.devices import relative_speed

BASE_RATE = 10.0
"""Steps/s of every job on a V100."""

WORKLOAD = "hadare.training.workloads.digits:Digits"
GUARD = GuardSpec(metric="score", better="higher")
ROUND_S = 6.0
ROUNDS = 12
"""Rounds of work that a scenario's jobs bring, were nothing to fail."""
JOBS = 5
FAULTS = 12
MODES: tuple[Literal["forks", "gang", "auto"], ...] = ("forks", "forks", "gang", "auto")
TYPES = ("V100", "P100", "T4", "K80")
_BROKEN_JOB = 0.15
CONTROL = ("pricing", "tracker", "allocator")


class Kind(StrEnum):
    """A fault. ``who`` is a service or a node unless said otherwise."""

    KILL = "kill"
    """Ends at once, or after ``effects`` more messages and writes; is started again after ``for_s``."""
    KILL_ALL = "kill all"
    FREEZE = "freeze"
    """SIGSTOP, at once or after ``effects``: nothing comes out; it wakes up believing what it believed."""
    PARTITION = "partition"
    """No message reaches it or leaves it, and it reaches no store."""
    LOSS = "loss"
    DOUBLING = "doubling"
    DELAY = "delay"
    """Messages overtake one another by seconds."""
    BUS_DOWN = "bus down"
    FLAKY_STORE = "flaky store"
    """Writes fail, land without an acknowledgement, or land after their writer was told that they failed."""
    LAGGING_WATCH = "lagging watch"
    FORK_CRASH = "fork crash"
    DEVICE_FAULT = "device fault"
    POISON = "poison"
    """Every lease fails on a node, until somebody has mended it and says so."""
    RIVAL = "rival"
    """Another allocator or tracker is started beside the one that runs."""
    DRAIN = "drain"
    PAUSE = "pause"
    """``who`` is a job, as in ``CANCEL``."""
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Seconds on the virtual clock; ``rate`` is the part of messages or writes that it strikes."""

    kind: Kind
    at: float
    for_s: float = 0.0
    who: str = ""
    rate: float = 0.0
    effects: int = 0

    def __str__(self) -> str:
        details = [f"{self.kind} {self.who}".strip(), f"at {self.at:.2f} s"]
        details += [f"for {self.for_s:.2f} s"] if self.for_s else []
        details += [f"rate {self.rate:.2f}"] if self.rate else []
        details += [f"after {self.effects} effects"] if self.effects else []
        return ", ".join(details)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimJob:
    """A job, when it is submitted, when its accuracy reaches what it asks for (a part of its steps; 0: never), and
    whether a guard chooses its versions. A ``broken`` one raises an exception wherever it trains."""

    job_id: str
    at: float
    steps: int
    max_forks: int | None = None
    priority: float = 1.0
    until: float = 0.0
    guard: bool = False
    broken: bool = False
    gang: int = 1
    mode: Literal["forks", "gang", "auto"] = "forks"

    def record(self, desired: Desired = Desired.RUN) -> JobRecord:
        spec = JobSpec(
            workload=WORKLOAD,
            total_steps=self.steps,
            batch_size=32,
            max_forks=self.max_forks,
            gang=self.gang,
            mode=self.mode,
            priority=self.priority,
            until=Until(metric="progress", at_least=self.until) if self.until else None,
            consolidation=ConsolidationSpec(guard=GUARD if self.guard else None),
        )
        return JobRecord(
            job_id=self.job_id,
            name=self.job_id,
            spec=spec,
            desired=desired,
            request_id=f"request-{self.job_id}",
            digest="0" * 64,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that a run depends on: equal scenarios give equal runs, event by event."""

    seed: int
    nodes: dict[str, tuple[str, ...]]
    jobs: tuple[SimJob, ...]
    faults: tuple[Fault, ...]
    replicas: int = 1
    """Allocators and trackers of which one leads, each."""
    policy: str = "hadare"
    round_s: float = ROUND_S

    def with_faults(self, faults: tuple[Fault, ...]) -> Scenario:
        return replace(self, faults=faults)

    @property
    def calm_at(self) -> float:
        """When the last fault is over."""
        return max((fault.at + fault.for_s for fault in self.faults), default=0.0)


def draw(seed: int, faults: int = FAULTS) -> Scenario:
    """The scenario of a seed: 3 to 5 nodes, 5 jobs, work for more than 15 rounds, and as many faults as asked for."""
    random = Random(seed)
    nodes = {
        f"n{number}": tuple(random.choice(TYPES) for _ in range(random.choice((1, 1, 2))))
        for number in range(1, random.randint(3, 5) + 1)
    }
    capacity = sum(BASE_RATE * relative_speed(kind) * ROUND_S for types in nodes.values() for kind in types)
    jobs = _jobs(random, capacity * ROUNDS)
    if random.random() < _BROKEN_JOB:
        at = random.uniform(0.0, 60.0)
        jobs += (SimJob(job_id="job-broken", at=at, steps=100, max_forks=random.choice((None, 1, 2)), broken=True),)
    end_s = 1.3 * ROUNDS * ROUND_S
    struck = tuple(_fault(random, nodes, jobs, end_s) for _ in range(faults))
    replicas = random.choice((1, 2, 2, 3))
    ordered = tuple(sorted(struck, key=lambda fault: fault.at))
    policy = random.choice(("hadare", "hadare", "hadar"))
    return Scenario(seed=seed, nodes=nodes, jobs=jobs, faults=ordered, replicas=replicas, policy=policy)


def _jobs(random: Random, work: float) -> tuple[SimJob, ...]:
    weights = [random.uniform(0.4, 1.6) for _ in range(JOBS)]
    guards = Random(f"guards {work}")  # of its own: what else is drawn stays as it was
    gangs = Random(f"gangs {work}")
    return tuple(
        SimJob(
            job_id=f"job-{number}",
            at=random.choice((0.5, 1.0, random.uniform(0.0, 60.0))),
            steps=max(1, round(work * weight / sum(weights))),
            max_forks=random.choice((None, None, 1, 2)),
            priority=random.choice((1.0, 1.0, 4.0)),
            until=random.choice((0.0, 0.0, 0.0, 0.7)),
            guard=guards.random() < 1 / 3,
            gang=gangs.choice((1, 1, 2, 3)),
            mode=gangs.choice(MODES),
        )
        for number, weight in enumerate(weights, start=1)
    )


_WEIGHTS: dict[Kind, int] = {
    Kind.KILL: 8,
    Kind.KILL_ALL: 1,
    Kind.FREEZE: 4,
    Kind.PARTITION: 4,
    Kind.LOSS: 2,
    Kind.DOUBLING: 2,
    Kind.DELAY: 3,
    Kind.BUS_DOWN: 1,
    Kind.FLAKY_STORE: 3,
    Kind.LAGGING_WATCH: 2,
    Kind.FORK_CRASH: 2,
    Kind.DEVICE_FAULT: 1,
    Kind.POISON: 2,
    Kind.RIVAL: 2,
    Kind.DRAIN: 1,
    Kind.PAUSE: 1,
    Kind.CANCEL: 1,
}


def _fault(random: Random, nodes: dict[str, tuple[str, ...]], jobs: tuple[SimJob, ...], end_s: float) -> Fault:
    kind = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    fault = Fault(kind=kind, at=random.uniform(1.0, end_s), for_s=random.choice((1.5, 4.0, 8.0, 15.0, 30.0)))
    anyone = random.choice((*CONTROL, *CONTROL, *nodes))
    match kind:
        case Kind.KILL:
            return replace(fault, who=anyone, effects=random.randint(0, 12), for_s=min(fault.for_s, 8.0))
        case Kind.FREEZE:
            return replace(fault, who=anyone, effects=random.randint(0, 12))
        case Kind.PARTITION:
            return replace(fault, who=anyone)
        case Kind.FORK_CRASH | Kind.DEVICE_FAULT | Kind.DRAIN:
            return replace(fault, who=random.choice(sorted(nodes)))
        case Kind.POISON:
            # One node a scenario: were all of them poisonous, the jobs would be right to give up.
            return replace(fault, who=min(nodes), for_s=random.choice((20.0, 40.0, 80.0)))
        case Kind.RIVAL:
            return replace(fault, who=random.choice(("allocator", "tracker")), for_s=0.0)
        case Kind.PAUSE | Kind.CANCEL:
            job = random.choice(jobs)
            return replace(fault, who=job.job_id, at=max(fault.at, job.at + 0.5))
        case Kind.LOSS | Kind.DOUBLING | Kind.DELAY | Kind.FLAKY_STORE:
            return replace(fault, rate=random.choice((0.05, 0.2, 0.5)))
        case _:
            return replace(fault, for_s=min(fault.for_s, 15.0))
