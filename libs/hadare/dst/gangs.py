"""Gangs of simulated ranks: they begin once all are there, stop after the same update, and end as one if one ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hadare.model.leases import Lease, StopReason

LINE_S = 0.05
"""How long the others take to notice that a rank has gone."""


@dataclass
class Member:
    """One rank: ``rate`` is its own in steps/s, ``left_s`` of its lease; ``finish`` takes the gang's steps."""

    lease: Lease
    node: str
    rate: float
    left_s: float
    met: Callable[[], None]
    finish: Callable[[int, StopReason], None]
    fail: Callable[[str], None]


@dataclass
class _Team:
    members: dict[int, Member] = field(default_factory=dict)
    began_at: float | None = None
    rate: float = 0.0
    timer: asyncio.TimerHandle | None = None


def gang_name(lease: Lease) -> str:
    return f"{replace(lease.key, rank=0)}@{lease.epoch}"


class SimGangs:
    """All gangs of a simulation. ``broken``: when each that lost a rank did so."""

    def __init__(self) -> None:
        self._teams: dict[str, _Team] = {}
        self.broken: dict[str, float] = {}

    def join(self, member: Member) -> None:
        lease = member.lease
        assert lease.gang is not None
        team = self._teams.setdefault(gang_name(lease), _Team())
        team.members[lease.key.rank] = member
        if len(team.members) == lease.gang.world:
            self._begin(gang_name(lease), team)

    def stop(self, lease: Lease) -> bool:
        """A rank was told to stop: all do, after this update. False if they have not met."""
        team = self._teams.get(gang_name(lease))
        if team is None or team.began_at is None:
            return False
        self._finish(gang_name(lease), team, "clock")
        return True

    def leave(self, lease: Lease, why: str) -> None:
        """A rank has ended before its gang."""
        name = gang_name(lease)
        self.broken.setdefault(name, _now())
        team = self._teams.get(name)
        if team is None or team.members.pop(lease.key.rank, None) is None or team.began_at is None:
            return
        if team.timer is not None:
            team.timer.cancel()
        del self._teams[name]
        for member in team.members.values():
            text = f"the gang ended: rank {lease.key.rank} {why}"
            asyncio.get_running_loop().call_later(LINE_S, member.fail, text)

    def cut(self, node: str) -> None:
        """No line to the node's ranks holds."""
        for team in list(self._teams.values()):
            for member in [m for m in team.members.values() if m.node == node and team.began_at is not None]:
                member.fail("the gang ended: the lines are cut")

    def _begin(self, name: str, team: _Team) -> None:
        members = list(team.members.values())
        self.broken.pop(name, None)  # all its agents were started again, and its leases granted once more
        for member in members:
            member.met()
        first = members[0].lease
        assert first.gang is not None
        batch = first.spec.batch_size
        slowest = max(first.gang.shares[m.lease.key.rank] / (m.rate * batch) for m in members)
        team.rate = sum(first.gang.shares) / batch / slowest
        team.began_at = _now()
        by_quota_s, left_s = first.quota / team.rate, min(m.left_s for m in members)
        reason: StopReason = "quota" if by_quota_s < left_s else "clock"
        loop = asyncio.get_running_loop()
        team.timer = loop.call_later(min(by_quota_s, left_s), self._finish, name, team, reason)

    def _finish(self, name: str, team: _Team, reason: StopReason) -> None:
        if self._teams.pop(name, None) is None or team.began_at is None:
            return
        if team.timer is not None:
            team.timer.cancel()
        quota = next(iter(team.members.values())).lease.quota
        done = quota if reason == "quota" else min(quota, int(team.rate * (_now() - team.began_at)))
        for _, member in sorted(team.members.items()):
            member.finish(done, reason)


def _now() -> float:
    return asyncio.get_running_loop().time()
