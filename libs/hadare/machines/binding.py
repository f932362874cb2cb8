"""Which devices a round's forks get, by index; of a gang all or none, in the order of its ranks, and where they meet.

Rules of this file: a device goes to one fork; a job keeps the devices that it had (its processes there are warm) where
the plan leaves it on that cell; a gang that cannot be bound whole takes nothing, and says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hadare.model.devices import NodeInventory
from hadare.model.leases import GangRank, Lease
from hadare.model.plans import ForkPlan, Throughput
from hadare.scheduling.batches import balanced, equal

LOOPBACK = "127.0.0.1"
"""Where ranks on one node meet, if the node names no address."""

ForkName = tuple[str, int]
"""(job, fork)."""

Holder = tuple[str, int]
"""(node, device index)."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One device of a fork. ``speed``: of its rank, in steps/s, as far as it is known."""

    node: str
    index: int
    type: str
    share: int = 0
    speed: float = 0.0


@dataclass(frozen=True, slots=True)
class Team:
    """A fork's devices in the order of its ranks; of several of them, where they meet."""

    seats: tuple[Seat, ...]
    address: str = ""

    def part(self, rank: int) -> GangRank | None:
        """A lease's part in the gang; none of a fork on one device."""
        if len(self.seats) == 1:
            return None
        return GangRank(rank=rank, shares=tuple(seat.share for seat in self.seats), address=self.address)


@dataclass(frozen=True, slots=True)
class Work:
    """What has to be known of a job to divide its batches: samples of an update, speeds by device type."""

    batch: int
    speeds: Mapping[str, Throughput]
    lockstep: bool = False


class CannotMeet(Exception):
    """The devices are there, but they cannot be a gang; the message says why, for the job's user."""


def bind(forks: Sequence[ForkPlan], inventories: Mapping[str, NodeInventory], previous: Sequence[Lease]) -> Binding:
    """Forks that keep all their devices choose first, then in order of job and fork."""
    binding = Binding(inventories, previous)
    in_order = sorted(forks, key=lambda fork: (fork.job_id, fork.fork))
    for keeping in (True, False):
        for fork in in_order:
            binding.try_to_bind(fork, keeping=keeping)
    return binding


class Binding:
    """The devices of a round as they are given out."""

    def __init__(self, inventories: Mapping[str, NodeInventory], previous: Sequence[Lease]) -> None:
        self._held: dict[str, set[Holder]] = {}
        for lease in previous:
            self._held.setdefault(lease.key.job_id, set()).update((lease.node, index) for index in lease.devices)
        self._free: dict[tuple[str, str], list[int]] = {}
        for node, inventory in inventories.items():
            for device in inventory.devices:
                if device.healthy:
                    self._free.setdefault((node, device.type), []).append(device.index)
        for indices in self._free.values():
            indices.sort()
        self.seats: dict[ForkName, tuple[Seat, ...]] = {}

    def try_to_bind(self, fork: ForkPlan, *, keeping: bool) -> None:
        """All of the fork's devices or none; ``keeping``: only if they are all its job's already."""
        name, own = (fork.job_id, fork.fork), self._held.get(fork.job_id, set())
        if name in self.seats:
            return
        chosen: list[Seat] = []
        for member in fork.gang:
            left = self._free.get((member.node, member.type), [])
            usable = sorted(left, key=lambda index: ((member.node, index) not in own, index))
            if keeping:
                usable = [index for index in usable if (member.node, index) in own]
            if len(usable) < member.count:
                return
            chosen += [Seat(member.node, index, member.type) for index in usable[: member.count]]
        self.seats[name] = tuple(chosen)
        for seat in chosen:
            self._free[seat.node, seat.type].remove(seat.index)


def team_of(fork: ForkPlan, seats: Sequence[Seat], work: Work, inventories: Mapping[str, NodeInventory]) -> Team:
    """The seats, which are in the order of the plan's gang, as ranks. Raises ``CannotMeet``."""
    if len(seats) == 1:
        return Team(tuple(seats))
    shared = _with_shares(fork, seats, work)
    ranks = sorted(shared, key=lambda seat: (-seat.speed, seat.node, seat.index))
    first = _first(ranks, inventories)
    return Team((first, *(seat for seat in ranks if seat is not first)), _address(first, inventories, ranks))


def _with_shares(fork: ForkPlan, seats: Sequence[Seat], work: Work) -> list[Seat]:
    known = [work.speeds[seat.type].steps_per_s if seat.type in work.speeds else 0.0 for seat in seats]
    given = fork.batch_shares
    if len(given) != len(seats) or sum(given) != work.batch or min(given, default=0) < 1:
        given = _shares(known, work)
    return [replace(seat, share=n, speed=x) for seat, n, x in zip(seats, given, known, strict=True)]


def _shares(speeds: Sequence[float], work: Work) -> tuple[int, ...]:
    try:
        even = work.lockstep or min(speeds) <= 0
        return equal(work.batch, len(speeds)) if even else balanced(work.batch, speeds)
    except ValueError as error:
        raise CannotMeet(f"it cannot train on {len(speeds)} devices in lockstep: {error}") from error


def _first(ranks: Sequence[Seat], inventories: Mapping[str, NodeInventory]) -> Seat:
    """The fastest where the others can reach it: any, if all are on one node."""
    spans = len({seat.node for seat in ranks}) > 1
    for seat in ranks:
        inventory = inventories[seat.node]
        if (inventory.gang_address or not spans) and _port(seat, inventory) is not None:
            return seat
    nodes = ", ".join(sorted({seat.node for seat in ranks}))
    if not spans:
        raise CannotMeet(f"node {nodes} names no ports for gangs (HADARE_GANG_PORTS)")
    raise CannotMeet(
        f"its devices on {nodes} cannot meet: none of the nodes names an address and a port for gangs "
        "(HADARE_GANG_ADDRESS, HADARE_GANG_PORTS)"
    )


def _address(first: Seat, inventories: Mapping[str, NodeInventory], ranks: Iterable[Seat]) -> str:
    inventory = inventories[first.node]
    within = all(seat.node == first.node for seat in ranks)
    host = LOOPBACK if within else inventory.gang_address
    return f"{host}:{_port(first, inventory)}"


def _port(seat: Seat, inventory: NodeInventory) -> int | None:
    """The port that belongs to the device: a device has one process at a time, so no two gangs meet there."""
    position = next(n for n, device in enumerate(inventory.devices) if device.index == seat.index)
    return inventory.gang_ports[position] if position < len(inventory.gang_ports) else None
