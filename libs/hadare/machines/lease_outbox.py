"""Which results a node agent still owes the tracker, and when it tells it again. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hadare.machines.lease_commands import Command, Deliver, Forget
from hadare.machines.lease_events import LeaseId
from hadare.machines.lease_state import LeaseLimits
from hadare.model.leases import ForkResult


@dataclass(slots=True)
class _Parcel:
    """A result. ``due`` is None while an attempt is under way; ``settled`` once the tracker has had its say."""

    result: ForkResult
    attempts: int = 0
    due: float | None = None
    settled: bool = False


class Outbox:
    """Delivers every result until the tracker has answered; remembers settled ones for as long as there is room."""

    def __init__(self, limits: LeaseLimits, say: Callable[[Command], None]) -> None:
        self._limits = limits
        self._say = say
        self._parcels: dict[LeaseId, _Parcel] = {}

    def __contains__(self, lease: LeaseId) -> bool:
        return lease in self._parcels

    @property
    def undelivered(self) -> int:
        return sum(not parcel.settled for parcel in self._parcels.values())

    def result(self, lease: LeaseId) -> ForkResult | None:
        parcel = self._parcels.get(lease)
        return parcel.result if parcel else None

    def add(self, lease: LeaseId, result: ForkResult) -> None:
        """A lease's one result; a second one for the same lease is ignored."""
        if lease in self._parcels:
            return
        self._parcels[lease] = _Parcel(result)
        self._send(lease)
        self._make_room()

    def resend(self, lease: LeaseId) -> None:
        """The issuer asks again for what has ended: perhaps the result never arrived."""
        parcel = self._parcels[lease]
        if parcel.settled or parcel.due is not None:
            self._send(lease)

    def answered(self, lease: LeaseId, reason: str) -> None:
        parcel = self._parcels.get(lease)
        if parcel is None or parcel.settled:
            return
        parcel.settled, parcel.due = True, None
        self._say(Forget(lease=lease, reason=reason))

    def failed(self, lease: LeaseId, at: float) -> None:
        parcel = self._parcels.get(lease)
        if parcel is None or parcel.settled or parcel.due is not None:
            return
        doublings = min(parcel.attempts - 1, 16)
        parcel.due = at + min(self._limits.retry_max_s, self._limits.retry_s * 2**doublings)

    def tick(self, at: float) -> None:
        for lease, parcel in self._parcels.items():
            if parcel.due is not None and parcel.due <= at:
                self._send(lease)

    def wake_at(self) -> float | None:
        return min((parcel.due for parcel in self._parcels.values() if parcel.due is not None), default=None)

    def _send(self, lease: LeaseId) -> None:
        parcel = self._parcels[lease]
        parcel.attempts += 1
        parcel.due, parcel.settled = None, False
        self._say(Deliver(lease=lease, result=parcel.result))

    def _make_room(self) -> None:
        """Settled results go first; a tracker that is away for very long costs the oldest results, said aloud."""
        surplus = len(self._parcels) - self._limits.max_kept
        if surplus <= 0:
            return
        oldest = sorted(self._parcels, key=lambda lease: not self._parcels[lease].settled)  # stable: oldest first
        for lease in oldest[:surplus]:
            if not self._parcels.pop(lease).settled:
                self._say(Forget(lease=lease, reason=f"more than {self._limits.max_kept} results are undelivered"))
