"""Which faults strike, when, and for how long: drawn from a seed, the same every time."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

AT_ONCE = 0.0


class Kind(StrEnum):
    """What can be done to a cluster."""

    KILL_ALLOCATOR = "kill allocator"
    KILL_TRACKER = "kill tracker"
    KILL_PRICING = "kill pricing"
    KILL_GATEWAY = "kill gateway"
    KILL_AGENT = "kill agent"
    KILL_FORK = "kill fork"
    KILL_NATS = "kill nats"
    KILL_ALL = "kill everything at once"
    FREEZE_SERVICE = "freeze service"
    FREEZE_AGENT = "freeze agent"
    FREEZE_NATS = "freeze nats"
    CUT_NODE = "cut a node off"
    STALL_NODE = "stall a node's link"
    SLOW_NODE = "slow a node's link"
    CUT_LEADER = "cut a leader off"
    DOUBLE = "double messages"
    LATE = "results come late"
    REPLAY = "replay old messages"
    JUMP_CLOCK = "jump a wall clock"
    DISK_FULL_AGENT = "agent's disk full"
    DISK_FULL_TRACKER = "tracker's disk full"
    DISK_FULL_STORE = "store's disk full"


@dataclass(frozen=True, slots=True)
class Odds:
    """How often a kind is drawn, and how many seconds it lasts."""

    weight: float
    shortest_s: float = AT_ONCE
    longest_s: float = AT_ONCE


ODDS = {
    Kind.KILL_ALLOCATOR: Odds(7),
    Kind.KILL_TRACKER: Odds(6),
    Kind.KILL_PRICING: Odds(5),
    Kind.KILL_GATEWAY: Odds(5),
    Kind.KILL_AGENT: Odds(7),
    Kind.KILL_FORK: Odds(8),
    Kind.KILL_NATS: Odds(4),
    Kind.KILL_ALL: Odds(0.5),
    Kind.FREEZE_SERVICE: Odds(6, 3.5, 6.0),
    Kind.FREEZE_AGENT: Odds(6, 5.0, 8.0),
    Kind.FREEZE_NATS: Odds(3, 1.0, 4.0),
    Kind.CUT_NODE: Odds(8, 2.0, 14.0),
    Kind.STALL_NODE: Odds(6, 3.0, 8.0),
    Kind.SLOW_NODE: Odds(6, 5.0, 10.0),
    Kind.CUT_LEADER: Odds(5, 3.0, 6.0),
    Kind.DOUBLE: Odds(8, 4.0, 8.0),
    Kind.LATE: Odds(8, 4.0, 9.0),
    Kind.REPLAY: Odds(10),
    Kind.JUMP_CLOCK: Odds(8, 3.0, 12.0),
    Kind.DISK_FULL_AGENT: Odds(5, 3.0, 7.0),
    Kind.DISK_FULL_TRACKER: Odds(3, 3.0, 7.0),
    Kind.DISK_FULL_STORE: Odds(2, 2.0, 5.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. ``draw`` in [0, 1) chooses among what it can hit; ``leader``: of replicas, the one that acts."""

    number: int
    kind: Kind
    at_s: float
    for_s: float
    draw: float
    leader: bool


def draw_faults(seed: int, count: int, seconds: float, kinds: tuple[Kind, ...] = tuple(Kind)) -> tuple[Fault, ...]:
    """``count`` faults over ``seconds``, every kind as often as its odds say, the first ones each of another kind."""
    rng = random.Random(seed)
    dealt = list(kinds)
    rng.shuffle(dealt)
    dealt = dealt[:count]
    weights = [ODDS[kind].weight for kind in kinds]
    dealt += rng.choices(kinds, weights, k=count - len(dealt))
    rng.shuffle(dealt)
    spacing = seconds / max(1, count)
    return tuple(
        Fault(
            number=number,
            kind=kind,
            at_s=round((number + rng.random()) * spacing, 3),
            for_s=round(rng.uniform(ODDS[kind].shortest_s, ODDS[kind].longest_s), 3),
            draw=rng.random(),
            leader=rng.random() < 0.7,
        )
        for number, kind in enumerate(dealt)
    )
