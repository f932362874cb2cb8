"""What became of the leases of the running round: granted to which life of an agent, refused, or not heard of yet.

Rules of this file: no answer is no refusal, the grant is sent again with the time that is left; what was refused, or
was granted to an agent that has been started again since, is withdrawn: its fork is dead, and nobody waits for it.
One rank of a gang that is refused, failed or lost withdraws the whole fork, and the others' leases are to be ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from hadare.model.devices import NodeState, NodeStatus
from hadare.model.jobs import JobProgress, LedgerEntry
from hadare.model.leases import Lease, LeaseKey


@dataclass(slots=True)
class _Grant:
    """``gone``: the lease itself cannot be running, so there is nothing to end."""

    lease: Lease
    resend_at: float | None = None
    incarnation: str = ""
    withdrawn: str = ""
    gone: bool = False

    @property
    def is_gang(self) -> bool:
        return self.lease.gang is not None


class Grants:
    """The leases of one round, from its opening on. ``retry_s``: the pause before a grant is sent again."""

    def __init__(self, leases: Iterable[Lease] = (), at: float = 0.0, retry_s: float = 1.0) -> None:
        self._began_at = at
        self._retry_s = retry_s
        self._ask_at = at
        self._grants = {str(lease.key): _Grant(lease) for lease in leases}
        self._ending: list[tuple[Lease, str]] = []
        self._gangs: dict[str, dict[int, list[_Grant]]] = {}
        """By job and fork, the grants of a gang, rank 0's first."""
        for grant in sorted(self._grants.values(), key=lambda grant: grant.lease.key.rank):
            if grant.is_gang:
                key = grant.lease.key
                self._gangs.setdefault(key.job_id, {}).setdefault(key.fork, []).append(grant)

    def answered(self, key: LeaseKey, *, accepted: bool, incarnation: str, reason: str) -> bool:
        """True if that is a refusal, and news."""
        grant = self._grants.get(str(key))
        if grant is None or (grant.withdrawn and not grant.is_gang):
            return False
        grant.resend_at = None
        if accepted:
            grant.incarnation = incarnation
            return False
        grant.gone = True
        news = not grant.withdrawn
        self._withdraw(grant, f"not granted: {reason or 'refused'}")
        return news

    def unanswered(self, key: LeaseKey, at: float) -> None:
        """Its agent could not be reached, or its answer was lost: it may run, or it may not."""
        grant = self._grants.get(str(key))
        if grant is not None and not grant.withdrawn and not grant.incarnation:
            grant.resend_at = at + self._retry_s

    def restarted(self, node: str, before: str) -> None:
        """The node's agent has been started again: what its life ``before`` was granted has died with it."""
        for grant in self._grants.values():
            if grant.lease.node == node and grant.incarnation and grant.incarnation == before:
                grant.gone = True
                self._withdraw(grant, "its node agent was started again")

    def look_at_nodes(self, statuses: Mapping[str, NodeStatus]) -> None:
        """A silent node may still report a fork on one device. A gang is over with its rank, or was never whole."""
        for grant in (grant for forks in self._gangs.values() for team in forks.values() for grant in team):
            status = statuses.get(grant.lease.node)
            if status is None or status.state is NodeState.LOST:
                self._withdraw(grant, "its node is lost")
            elif status.state is NodeState.SUSPECT and not grant.incarnation:
                self._withdraw(grant, f"its node has not answered: {status.reason}")

    def look_at(self, progress: JobProgress) -> None:
        """A gang that the tracker has given up, since a rank has failed, is over everywhere."""
        for team in self._gangs.get(progress.job_id, {}).values():
            why = "" if team[0].withdrawn else _given_up(progress, team[0].lease.key)
            if why:
                self._end(team, why)

    def to_end(self) -> list[tuple[Lease, str]]:
        """Leases of gangs that are to be ended, with the reason; each is said once."""
        ending, self._ending = self._ending, []
        return ending

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
        """Why, by the lease that the ledger knows: of a gang, rank 0's."""
        return {name: grant.withdrawn for name, grant in self._expected() if grant.withdrawn}

    def to_withdraw(self, progress: Mapping[str, JobProgress], at: float) -> dict[str, str]:
        """Withdrawn leases that the ledgers still wait for; asked of the tracker at most once in ``retry_s``."""
        if at < self._ask_at:
            return {}
        waiting = {
            name: grant.withdrawn
            for name, grant in self._expected()
            if grant.withdrawn and _is_expected(progress.get(grant.lease.key.job_id), grant.lease.key)
        }
        if waiting:
            self._ask_at = at + self._retry_s
        return waiting

    def _expected(self) -> list[tuple[str, _Grant]]:
        return [(name, grant) for name, grant in self._grants.items() if grant.lease.key.rank == 0]

    def _withdraw(self, grant: _Grant, reason: str) -> None:
        if grant.withdrawn:
            return
        if grant.is_gang:
            key = grant.lease.key
            self._end(
                self._gangs[key.job_id][key.fork],
                f"rank {key.rank} on {grant.lease.node} ({grant.lease.device_type}): {reason}",
            )
        grant.withdrawn = grant.withdrawn or reason

    def _end(self, team: Iterable[_Grant], reason: str) -> None:
        for grant in team:
            grant.withdrawn = grant.withdrawn or reason
            grant.resend_at = None
            if not grant.gone:
                self._ending.append((grant.lease, reason))


def _given_up(progress: JobProgress, key: LeaseKey) -> str:
    """Why the ledger expects nothing of the fork any more; empty if it does, or has got it."""
    if progress.open is None or progress.open.round != key.round:
        return "its round is lost" if progress.closed_round == key.round and not progress.round_steps else ""
    entry = _entry(progress, key)
    return entry.reason or "its fork is given up" if entry is not None and entry.outcome == "missing" else ""


def _entry(progress: JobProgress, key: LeaseKey) -> LedgerEntry | None:
    return next((entry for entry in (progress.open.forks if progress.open else ()) if entry.fork == key.fork), None)


def _is_expected(progress: JobProgress | None, key: LeaseKey) -> bool:
    if progress is None or progress.open is None or progress.open.round != key.round:
        return False
    return any(entry.fork == key.fork and entry.outcome == "expected" for entry in progress.open.forks)
