"""The allocator's rounds: price, place, store, open, grant, close. Events in, commands out; the clock is an input.

The way of a round, each phase waiting for one answer:

    idle -> planning -> storing -> opening -> running -> closing -> settling -> idle

Rules of this file: nothing is granted that is not stored; a new round begins only when the last one is closed; an
answer that belongs to another round or phase is ignored. A round is over when progress, the tracker's record, shows
that every job of it is closed, so the next one never begins from an old version. A round found open after a restart
is taken up again: its ledger is opened and its leases are granted once more; where they are known, nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from hadare.machines import round_events as ev
from hadare.machines.cluster import ClusterView, note
from hadare.machines.dispatch import dispatch, gangs_of, opening_of, placements
from hadare.machines.nodes import NodeMachine, NodeTimes
from hadare.machines.round_leasing import Leasing
from hadare.machines.round_length import length_of
from hadare.machines.round_pages import leases_by_node, pages_of, taken_by
from hadare.machines.round_phases import Pace, Phase, RoundSettings
from hadare.machines.round_planning import Planning, Wish
from hadare.model.devices import NodeState, NodeStatus
from hadare.model.events import Event
from hadare.model.leases import Lease
from hadare.model.plans import Gang, PriceBook, RoundPlan
from hadare.model.rounds import AllocatorMemory, CloseRequest, OpenRequest, RoundHead
from hadare.scheduling.policies import default_utility, policy_of


class RoundMachine:
    """All rounds of a cluster, one after another."""

    def __init__(self, settings: RoundSettings, times: NodeTimes | None = None) -> None:
        self._settings = settings
        self.cluster = ClusterView(settings.costs)
        self.nodes = NodeMachine(times)
        utility = settings.utility or default_utility(policy_of(settings.policy))
        self._planning = Planning(settings, utility, self.cluster, self.nodes)
        self.phase = Phase.IDLE
        self._head = RoundHead(
            round=0,
            epoch=settings.epoch,
            state="closed",
            clock_s=0.0,
            round_s=settings.round_s,
            policy=settings.policy,
        )
        self._memory = AllocatorMemory(round=0)
        self._leases: tuple[Lease, ...] = ()
        self._opening = OpenRequest(round=0, epoch=settings.epoch, round_s=settings.round_s, jobs=())
        self._placed: dict[str, tuple[Gang, ...]] = {}
        """Where each job was placed last, by its whole gangs."""
        self._clock_start = 0.0
        self._wake_at = 0.0
        self._changed = True
        self._leasing = Leasing(settings)
        self._unclosed: set[str] = set()
        """Jobs of the running round whose new version has not been seen yet."""
        self._pace = Pace(settings)
        self._tidy_at = 0.0

    def recover(
        self,
        head: RoundHead | None,
        memory: AllocatorMemory | None,
        leases: Iterable[Lease],
        book: PriceBook | None,
        at: float,
        statuses: Iterable[NodeStatus] = (),
    ) -> list[ev.RoundCommand]:
        """The machine as it was. An open round is taken up where it stands."""
        self.nodes.recover(statuses)
        self._clock_start = at
        self._planning.book = book
        if head is None:
            return []
        self._clock_start = at - head.clock_s
        self._head = head
        self._memory = memory or self._memory
        if self._memory.policy not in ("", self._settings.policy):
            self._memory = replace(self._memory, policy="", memory={})
        self._leases = tuple(lease for lease in leases if (lease.key.round, lease.epoch) == (head.round, head.epoch))
        self._placed = placements(self._leases)
        self._opening = opening_of(head.round, head.epoch, head.round_s, self._leases)
        if head.state == "closed" or not self._leases:
            self._head = replace(head, state="closed")
            return []
        self.phase = Phase.OPENING
        self._wake_at = at
        return []

    def handle(self, event: ev.RoundEvent) -> list[ev.RoundCommand]:
        """The only door."""
        match event:
            case ev.JobSeen() | ev.ProgressSeen() | ev.NodeRegistered() | ev.NodeWished() | ev.NodeHeard():
                return self._see(event)
            case ev.Quoted():
                return self._planning.quoted(event)
            case ev.QuoteFailed():
                return self._quote_failed(event)
            case ev.Planned():
                self._planning.planned(event)
                return self._place(event.at)
            case ev.RoundStored():
                return self._stored(event)
            case ev.Opened():
                return self._opened(event)
            case ev.OpenFailed():
                return self._retry(event.round, Phase.OPENING, event.at, "the tracker could not be asked", event.reason)
            case ev.Granted():
                return self._leasing.answered(event, self.cluster.progress)
            case ev.LeasesEnded():
                self._leasing.ended(event)
                return []
            case ev.Closed():
                return self._closed(event)
            case ev.CloseFailed():
                return self._retry(event.round, Phase.CLOSING, event.at, "the round could not be closed", event.reason)
            case ev.Ticked():
                return [*self._refresh_nodes(event.at), *self._tick(event.at)]
            case _:
                assert_never(event)

    def clock_s(self, at: float) -> float:
        """The cluster clock: seconds of allocator life, carried on over restarts."""
        return at - self._clock_start

    # --- what the cluster is like ---

    def _see(
        self, event: ev.JobSeen | ev.ProgressSeen | ev.NodeRegistered | ev.NodeWished | ev.NodeHeard
    ) -> list[ev.RoundCommand]:
        match event:
            case ev.JobSeen():
                note(self.cluster.records, event.job_id, event.record)
            case ev.ProgressSeen():
                known = self.cluster.progress.get(event.job_id)
                if event.progress and known and event.progress.version > known.version:
                    self._pace.version_made()
                note(self.cluster.progress, event.job_id, event.progress)
                self.nodes.heed(event.progress)
                self._changed = True
                leasing = self._leasing.look_at(event.progress, event.at)
                return [*leasing, *self._settle(event.job_id, event.at), *self._foresee(event.at)]
            case ev.NodeRegistered():
                return self._node_registered(event)
            case ev.NodeWished():
                self.nodes.wished(event.node, event.wish, next_round=self._head.round + 1)
            case ev.NodeHeard():
                self.nodes.heard(event.heartbeat, event.at)
                return []
        self._changed = True
        return []

    def _node_registered(self, event: ev.NodeRegistered) -> list[ev.RoundCommand]:
        self._changed = True
        known = self.cluster.inventories.get(event.node)
        note(self.cluster.inventories, event.node, event.inventory)
        if event.inventory is None:
            self.nodes.removed(event.node)
            return [ev.ForgetNode(node=event.node)]
        self.nodes.registered(event.inventory, event.at)
        if known is None or known.incarnation == event.inventory.incarnation:
            return []
        return self._leasing.restarted(event.node, known.incarnation, self.cluster.progress, event.at)

    def _refresh_nodes(self, at: float) -> list[ev.RoundCommand]:
        self.nodes.judge_conduct(self.cluster.progress.values())
        changed = self.nodes.refresh(at)
        self._changed |= bool(changed)
        return [command for status in changed for command in ev.tell_status(status, self._settings.epoch, at)]

    def _settle(self, job_id: str, at: float) -> list[ev.RoundCommand]:
        """Notes that a job's round is closed; the last one ends the round."""
        if job_id not in self._unclosed or not self.cluster.is_closed(job_id, self._head.round):
            return []
        self._unclosed.discard(job_id)
        running = self.phase in (Phase.RUNNING, Phase.CLOSING, Phase.SETTLING)
        return self._finish(at) if running and not self._unclosed else []

    # --- the phases ---

    def _tick(self, at: float) -> list[ev.RoundCommand]:
        return [*self._leasing.end_gangs(at), *self._go_on(at)]

    def _go_on(self, at: float) -> list[ev.RoundCommand]:
        if at < self._wake_at:
            return self._leasing.look_after(self.cluster.progress, self.nodes.statuses, at)
        match self.phase:
            case Phase.IDLE:
                return self._begin(at)
            case Phase.OPENING:
                self._wake_at = at + 60.0
                return [ev.AskOpen(request=self._opening)]
            case Phase.RUNNING | Phase.CLOSING:
                return self._close(at)
            case Phase.SETTLING:
                late = [ev.Warn(what="a round goes on without jobs whose version is not ready", data=self._name())]
                return [*late, *self._finish(at)]
            case Phase.PLANNING | Phase.STORING:
                return []
            case _:
                assert_never(self.phase)

    def _begin(self, at: float) -> list[ev.RoundCommand]:
        """Starts a round if it could place something, or if the reasons why it cannot have changed."""
        active = self.cluster.active()
        if not active or not (self._placeable() or self._changed):
            return self._tidy(at)
        self._changed = False
        self.phase = Phase.PLANNING
        self._head = replace(self._head, round=self._head.round + 1, epoch=self._settings.epoch)
        wish = self._wish(at)
        self._memory = replace(self._memory, arrivals=wish.arrivals)
        return [*self._planning.want(wish), *self._place(at)]

    def _wish(self, at: float, *, ahead: bool = False) -> Wish:
        now, known = self.clock_s(at), self._memory.arrivals
        arrivals = {job_id: known.get(job_id, now) for job_id in self.cluster.active()}
        return Wish(self._head.round + ahead, now, arrivals, self._placed, self._memory.memory, ahead)

    def _foresee(self, at: float) -> list[ev.RoundCommand]:
        """Prices and plans the next round while the versions of this one are made."""
        running = self.phase in (Phase.RUNNING, Phase.CLOSING, Phase.SETTLING)
        if not running or not self._unclosed or self._planning.asked_for(self._head.round + 1):
            return []
        if not all(self.cluster.is_being_made(job_id, self._head.round) for job_id in self._unclosed):
            return []
        return self._planning.want(self._wish(at, ahead=True))

    def _tidy(self, at: float) -> list[ev.RoundCommand]:
        """Asks for the end of past rounds in which a job is still open: no later round may ever come to do so."""
        left = [job_id for job_id, known in self.cluster.progress.items() if known.open is not None]
        if not left or at < self._tidy_at:
            return []
        self._tidy_at = at + self._settings.tidy_s
        return [ev.AskClose(request=CloseRequest(round=self._head.round, epoch=self._settings.epoch))]

    def _placeable(self) -> bool:
        ready = any(status.state is NodeState.READY for status in self.nodes.statuses.values())
        return ready and self.cluster.placeable()

    def _quote_failed(self, event: ev.QuoteFailed) -> list[ev.RoundCommand]:
        commands = self._planning.quote_failed(event)
        if commands is not None:
            return commands
        if self.phase is not Phase.PLANNING:
            return []
        self.phase = Phase.IDLE
        self._head = replace(self._head, round=self._head.round - 1)
        self._changed = True
        self._wake_at = event.at + self._settings.retry_s
        return [ev.Warn(what="no prices yet, the round waits", data={"reason": event.reason})]

    def _place(self, at: float) -> list[ev.RoundCommand]:
        """Goes on with the round's plan as soon as there is one that counts."""
        if self.phase is not Phase.PLANNING:
            return []
        made = self._planning.made_for(self._wish(at))
        return self._store(made, at) if isinstance(made, ev.Planned) else made

    def _store(self, made: ev.Planned, at: float) -> list[ev.RoundCommand]:
        plan, settings = made.plan, self._settings
        plan = self._still_possible(plan)
        length = length_of(plan, self.cluster.progress, settings)
        bound = dispatch(plan, self.cluster, self._leases, length)
        plan, self._leases, self._opening = bound.plan, bound.leases, bound.opening
        self._placed = gangs_of(plan, self._leases)
        pages = pages_of(plan)
        self._head = RoundHead(
            round=plan.round,
            epoch=plan.epoch,
            state="open" if self._leases else "closed",
            clock_s=self.clock_s(at),
            round_s=length,
            policy=settings.policy,
            forks=len(plan.forks),
            waiting=sum(decision.code != "chosen" for decision in plan.decisions),
            pages=len(pages),
        )
        self._memory = replace(self._memory, round=plan.round, policy=settings.policy, memory=made.memory)
        self.phase = Phase.STORING
        return [
            ev.StoreRound(
                head=self._head,
                leases=leases_by_node(plan.round, plan.epoch, self._leases),
                pages=pages,
                memory=self._memory,
                forget_round=plan.round - settings.keep_rounds,
            ),
            self._record("planned", forks=len(plan.forks), waiting=self._head.waiting, policy=plan.policy),
            ev.TellTaken(taken=taken_by(plan)),
        ]

    def _still_possible(self, plan: RoundPlan) -> RoundPlan:
        """Without the forks of jobs and nodes that have gone while the plan was made."""
        active = set(self.cluster.active())
        ready = {name for name, status in self.nodes.statuses.items() if status.state is NodeState.READY}
        forks = tuple(f for f in plan.forks if f.job_id in active and all(member.node in ready for member in f.gang))
        return replace(plan, forks=forks)

    def _stored(self, event: ev.RoundStored) -> list[ev.RoundCommand]:
        if self.phase is not Phase.STORING or event.round != self._head.round:
            return []
        if not self._leases:
            self.phase = Phase.IDLE
            self._wake_at = event.at + self._settings.retry_s
            return []
        self.phase = Phase.OPENING
        self._wake_at = event.at
        return self._tick(event.at)

    def _opened(self, event: ev.Opened) -> list[ev.RoundCommand]:
        if self.phase is not Phase.OPENING or event.answer.round != self._head.round:
            return []
        accepted = set(event.answer.accepted)
        granted = tuple(lease for lease in self._leases if lease.key.job_id in accepted)
        self._leasing.begin(self._head.round, granted, event.at)
        self._unclosed = {job_id for job_id in accepted if not self.cluster.is_closed(job_id, self._head.round)}
        refusals = ev.tell_refused(event.answer)
        if not granted:
            self._changed = True
            return [*refusals, *self._finish(event.at, self._settings.retry_s)]
        self.phase = Phase.RUNNING
        self._wake_at = event.at + self._head.round_s + self._settings.grace_s
        return [*refusals, ev.GrantLeases(leases=granted)]

    def _close(self, at: float) -> list[ev.RoundCommand]:
        self.phase = Phase.CLOSING
        self._leasing.running = False
        self._wake_at = at + 60.0
        withdrawn = self._leasing.withdrawn
        request = CloseRequest(round=self._head.round, epoch=self._settings.epoch, withdrawn=withdrawn)
        return [ev.AskClose(request=request)]

    def _closed(self, event: ev.Closed) -> list[ev.RoundCommand]:
        if self.phase is not Phase.CLOSING or event.answer.round != self._head.round:
            return []
        missing: list[ev.RoundCommand] = []
        if event.answer.missing:
            missing.append(ev.Warn(what="forks did not report", data={"forks": list(event.answer.missing)}))
        self.phase = Phase.SETTLING
        self._wake_at = event.at + self._settings.settle_s
        return missing

    def _finish(self, at: float, pause_s: float = 0.0) -> list[ev.RoundCommand]:
        self.phase = Phase.IDLE
        self._leasing.running = False
        self._wake_at = at + max(pause_s, self._pace.round_ended())
        self._changed = True
        self._head = replace(self._head, state="closed", clock_s=self.clock_s(at))
        ended: list[ev.RoundCommand] = [ev.StoreHead(head=self._head), self._record("closed")]
        going_on = self._tick(at)
        if self.phase is Phase.IDLE:
            self._planning.drop()  # the next round does not follow at once
        return [*ended, *going_on]

    def _retry(self, round_number: int, phase: Phase, at: float, what: str, reason: str) -> list[ev.RoundCommand]:
        if self.phase is not phase or round_number != self._head.round:
            return []
        self._wake_at = at + self._settings.retry_s
        return [ev.Warn(what=what, data={**self._name(), "reason": reason})]

    def _record(self, what: str, **data: object) -> ev.Record:
        event = Event(kind="round", id=str(self._head.round), what=what, data=dict(data))
        return ev.Record(event=event, message_id=f"round.{self._head.round}.{self._head.epoch}.{what}")

    def _name(self) -> dict[str, object]:
        return {"round": self._head.round, "epoch": self._head.epoch}
