"""What became of the leases of the running round: granted to which life of an agent, refused, or not heard of yet.

Rules of this file: no answer is no refusal, the grant is sent again with the time that is left; what was refused, or
was granted to an agent that has been started again since, is withdrawn: its fork is dead, and nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from hadare.model.jobs import JobProgress
from hadare.model.leases import Lease, LeaseKey


@dataclass(slots=True)
class _Grant:
    lease: Lease
    sent_at: float
    resend_at: float | None = None
    incarnation: str = ""
    withdrawn: str = ""


class Grants:
    """The leases of one round, from its opening on. ``retry_s``: the pause before a grant is sent again."""

    def __init__(self, leases: Iterable[Lease] = (), at: float = 0.0, retry_s: float = 1.0) -> None:
        self._began_at = at
        self._retry_s = retry_s
        self._ask_at = at
        self._grants = {str(lease.key): _Grant(lease, at) for lease in leases}

    def answered(self, key: LeaseKey, *, accepted: bool, incarnation: str, reason: str) -> bool:
        """True if that is a refusal, and news."""
        grant = self._grants.get(str(key))
        if grant is None or grant.withdrawn:
            return False
        grant.resend_at = None
        if accepted:
            grant.incarnation = incarnation
            return False
        grant.withdrawn = f"not granted: {reason or 'refused'}"
        return True

    def unanswered(self, key: LeaseKey, at: float) -> None:
        """Its agent could not be reached, or its answer was lost: it may run, or it may not."""
        grant = self._grants.get(str(key))
        if grant is not None and not grant.withdrawn and not grant.incarnation:
            grant.resend_at = at + self._retry_s

    def restarted(self, node: str, before: str) -> None:
        """The node's agent has been started again: what its life ``before`` was granted has died with it."""
        for grant in self._grants.values():
            if grant.lease.node == node and grant.incarnation and grant.incarnation == before:
                grant.withdrawn = grant.withdrawn or "its node agent was started again"

    def due(self, at: float) -> tuple[Lease, ...]:
        """Leases to be sent again, for what is left of the round."""
        again = []
        for grant in self._grants.values():
            left_s = grant.lease.duration_s - (at - self._began_at)
            if grant.resend_at is None or at < grant.resend_at or grant.withdrawn or left_s <= 0:
                continue
            grant.resend_at = None
            again.append(replace(grant.lease, duration_s=left_s))
        return tuple(again)

    @property
    def withdrawn(self) -> dict[str, str]:
        """Why, by lease."""
        return {name: grant.withdrawn for name, grant in self._grants.items() if grant.withdrawn}

    def to_withdraw(self, progress: Mapping[str, JobProgress], at: float) -> dict[str, str]:
        """Withdrawn leases that the ledgers still wait for; asked of the tracker at most once in ``retry_s``."""
        if at < self._ask_at:
            return {}
        waiting = {
            name: grant.withdrawn
            for name, grant in self._grants.items()
            if grant.withdrawn and _is_expected(progress.get(grant.lease.key.job_id), grant.lease.key)
        }
        if waiting:
            self._ask_at = at + self._retry_s
        return waiting


def _is_expected(progress: JobProgress | None, key: LeaseKey) -> bool:
    if progress is None or progress.open is None or progress.open.round != key.round:
        return False
    return any(entry.fork == key.fork and entry.outcome == "expected" for entry in progress.open.forks)
