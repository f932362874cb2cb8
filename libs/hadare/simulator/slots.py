"""Which device belongs to whom, by index: what makes a fork warm or cold, and the rows of the Gantt chart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hadare.model.leases import Lease
from hadare.model.plans import ForkPlan
from hadare.simulator.settings import SimNode

Slot = tuple[str, int]
"""(node, device index)."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A fork on its devices. ``cold``: some of them were not its job's in the round before."""

    plan: ForkPlan
    slots: tuple[Slot, ...]
    cold: bool


class Slots:
    """All devices. The leases say where a fork's first part is; further parts of a gang keep what the job had."""

    def __init__(self, nodes: Iterable[SimNode]) -> None:
        self._of: dict[tuple[str, str], list[Slot]] = {}
        for node in nodes:
            for device in node.inventory().devices:
                slot = (node.name, device.index)
                self._of.setdefault((node.name, device.type), []).append(slot)
        self._holder: dict[Slot, str] = {}

    def bind(self, plans: Sequence[ForkPlan], leases: Sequence[Lease]) -> list[Bound]:
        """The forks that got a lease, with their devices."""
        leased = {(lease.key.job_id, lease.key.fork): lease for lease in leases}
        granted = [plan for plan in plans if (plan.job_id, plan.fork) in leased]
        taken: dict[Slot, str] = {}
        for plan in granted:
            lease = leased[plan.job_id, plan.fork]
            for index in lease.devices:
                taken[lease.node, index] = plan.job_id
        bound = [self._bind(plan, leased[plan.job_id, plan.fork], taken) for plan in granted]
        self._holder = taken
        return bound

    def forget(self, job_id: str) -> None:
        """The job has ended: its processes are gone."""
        self._holder = {slot: holder for slot, holder in self._holder.items() if holder != job_id}

    def forget_node(self, node: str) -> None:
        """The node has failed: whatever was warm there is not any more."""
        self._holder = {slot: holder for slot, holder in self._holder.items() if slot[0] != node}

    def _bind(self, plan: ForkPlan, lease: Lease, taken: dict[Slot, str]) -> Bound:
        slots = [(lease.node, index) for index in lease.devices]
        for member in plan.gang[1:]:
            free = [slot for slot in self._of.get((member.node, member.type), ()) if slot not in taken]
            free.sort(key=lambda slot: (self._holder.get(slot) != plan.job_id, slot))
            for slot in free[: member.count]:
                taken[slot] = plan.job_id
                slots.append(slot)
        cold = any(self._holder.get(slot) != plan.job_id for slot in slots)
        return Bound(plan, tuple(slots), cold)
