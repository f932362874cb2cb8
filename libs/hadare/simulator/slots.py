"""Which device belongs to whom, by index: what makes a fork warm or cold, and the rows of the Gantt chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hadare.model.leases import Lease
from hadare.model.plans import ForkPlan

Slot = tuple[str, int]
"""(node, device index)."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A fork on its devices. ``cold``: some of them were not its job's in the round before."""

    plan: ForkPlan
    slots: tuple[Slot, ...]
    cold: bool


class Slots:
    """Which job held which device last, as the leases say."""

    def __init__(self) -> None:
        self._holder: dict[Slot, str] = {}

    def bind(self, plans: Sequence[ForkPlan], leases: Sequence[Lease]) -> list[Bound]:
        """The forks that got their leases, with their devices in the order of the ranks."""
        slots: dict[tuple[str, int], list[Slot]] = {}
        for lease in leases:
            slots.setdefault((lease.key.job_id, lease.key.fork), []).extend((lease.node, i) for i in lease.devices)
        granted = [plan for plan in plans if (plan.job_id, plan.fork) in slots]
        bound = [self._bound(plan, tuple(slots[plan.job_id, plan.fork])) for plan in granted]
        self._holder = {slot: each.plan.job_id for each in bound for slot in each.slots}
        return bound

    def forget(self, job_id: str) -> None:
        """The job has ended: its processes are gone."""
        self._holder = {slot: holder for slot, holder in self._holder.items() if holder != job_id}

    def forget_node(self, node: str) -> None:
        """The node has failed: whatever was warm there is not any more."""
        self._holder = {slot: holder for slot, holder in self._holder.items() if slot[0] != node}

    def _bound(self, plan: ForkPlan, slots: tuple[Slot, ...]) -> Bound:
        return Bound(plan, slots, cold=any(self._holder.get(slot) != plan.job_id for slot in slots))
