"""Orders to end leases before their time: sent until they are answered, or until the lease has ended by itself.

They outlive their round: a rank that waits for a gang that will never meet holds a device that the next round needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hadare.machines.round_events import EndLeases
from hadare.model.leases import Lease, Revoke

_PATIENCE_S = 6.0
"""Longer than an order is waited for; one whose answer never came back is sent again after it."""


@dataclass(slots=True)
class _Order:
    lease: Lease
    reason: str
    send_at: float
    until: float
    tries: int = 0


class Orders:
    """The orders of an allocator of this epoch that are not carried out yet."""

    def __init__(self, epoch: int, retry_s: float) -> None:
        self._epoch = epoch
        self._retry_s = retry_s
        self._open: dict[str, _Order] = {}

    def add(self, leases: Iterable[tuple[Lease, str]], at: float) -> None:
        for lease, reason in leases:
            until = at + lease.duration_s
            self._open.setdefault(str(lease.key), _Order(lease, reason, at, until))

    def answered(self, leases: Iterable[str], at: float, *, reached: bool) -> None:
        """The node has ended them, or could not be asked."""
        for name in leases:
            if reached:
                self._open.pop(name, None)
            elif name in self._open:
                order = self._open[name]
                order.send_at = at + min(_PATIENCE_S, self._retry_s * 2.0 ** (order.tries - 1))

    def due(self, at: float) -> list[EndLeases]:
        """What is to be sent now, one order for a node and job."""
        self._open = {name: order for name, order in self._open.items() if at < order.until}
        sent: dict[tuple[str, str], list[str]] = {}
        reasons: dict[tuple[str, str], str] = {}
        for name, order in self._open.items():
            if order.send_at <= at:
                order.send_at, order.tries = at + _PATIENCE_S, order.tries + 1
                where = (order.lease.node, order.lease.key.job_id)
                sent.setdefault(where, []).append(name)
                reasons.setdefault(where, order.reason)
        return [
            EndLeases(
                node=node,
                order=Revoke(job_id=job_id, reason=reasons[node, job_id], leases=tuple(names), epoch=self._epoch),
            )
            for (node, job_id), names in sorted(sent.items())
        ]
