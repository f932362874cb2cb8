"""The leases of the running round as the allocator looks after them: granted, sent again, withdrawn, ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hadare.machines import round_events as ev
from hadare.machines.round_grants import Grants
from hadare.machines.round_orders import Orders
from hadare.machines.round_phases import RoundSettings
from hadare.model.devices import NodeStatus
from hadare.model.jobs import JobProgress
from hadare.model.leases import Lease
from hadare.model.rounds import CloseRequest

Progress = Mapping[str, JobProgress]
"""By job, as the tracker has stored it."""


class Leasing:
    """What agents are told, and the tracker, of forks that nobody need wait for. ``running``: while the round is."""

    def __init__(self, settings: RoundSettings) -> None:
        self._epoch = settings.epoch
        self._retry_s = settings.retry_s
        self._grants = Grants()
        self._orders = Orders(settings.epoch, settings.retry_s)
        self._round = 0
        self.running = False

    @property
    def withdrawn(self) -> dict[str, str]:
        return self._grants.withdrawn

    def begin(self, round_number: int, leases: Iterable[Lease], at: float) -> None:
        self._round, self.running = round_number, True
        self._grants = Grants(leases, at, self._retry_s)

    def answered(self, event: ev.Granted, progress: Progress) -> list[ev.RoundCommand]:
        if not self.running or event.key.round != self._round:
            return []
        lease = {"lease": str(event.key), "reason": event.reason}
        if not event.reached:
            self._grants.unanswered(event.key, event.at)
            return [ev.Warn(what="a lease was not answered", data=lease)]
        refused = self._grants.answered(
            event.key, accepted=event.accepted, incarnation=event.incarnation, reason=event.reason
        )
        ending = self.end_gangs(event.at)
        if not refused:
            return ending
        return [ev.Warn(what="a lease was not taken", data=lease), *ending, *self.withdraw(progress, event.at)]

    def restarted(self, node: str, before: str, progress: Progress, at: float) -> list[ev.RoundCommand]:
        """The node's agent has been started again; its life ``before`` is over."""
        self._grants.restarted(node, before)
        return [*self.end_gangs(at), *self.withdraw(progress, at)]

    def look_at(self, progress: JobProgress | None, at: float) -> list[ev.RoundCommand]:
        """A job's progress has changed: perhaps the tracker has given up a gang."""
        if progress is not None:
            self._grants.look_at(progress)
        return self.end_gangs(at)

    def ended(self, event: ev.LeasesEnded) -> None:
        self._orders.answered(event.leases, event.at, reached=event.reached)

    def look_after(self, progress: Progress, statuses: Mapping[str, NodeStatus], at: float) -> list[ev.RoundCommand]:
        """While the round runs: grants that were not answered, and forks that nobody need wait for."""
        if not self.running:
            return []
        self._grants.look_at_nodes(statuses)
        again = self._grants.due(at)
        granting = [ev.GrantLeases(leases=again)] if again else []
        return [*granting, *self.end_gangs(at), *self.withdraw(progress, at)]

    def end_gangs(self, at: float) -> list[ev.RoundCommand]:
        """Gangs that have lost a rank end at once, wherever their other ranks are."""
        self._orders.add(self._grants.to_end(), at)
        return [*self._orders.due(at)]

    def withdraw(self, progress: Progress, at: float) -> list[ev.RoundCommand]:
        dead = self._grants.to_withdraw(progress, at) if self.running else {}
        if not dead:
            return []
        request = CloseRequest(round=self._round, epoch=self._epoch, withdrawn=dead, only_withdrawn=True)
        return [ev.AskClose(request=request)]
