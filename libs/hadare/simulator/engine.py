"""The engine: feeds the round machine with events on a virtual clock and carries out what it wants.

It decides nothing. Placement, prices, leases and when a round begins come from the machines that the allocator and the
pricing service run; what a round brought is counted here (``book.py``), by the rules of the ledger, because in a
simulation every result arrives exactly once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from math import inf

from hadare.machines import prices
from hadare.machines.nodes import NodeTimes
from hadare.machines.round_events import (
    AskClose,
    AskOpen,
    AskPrices,
    Closed,
    GrantLeases,
    JobSeen,
    MakePlan,
    Opened,
    Planned,
    ProgressSeen,
    Quoted,
    RoundCommand,
    RoundEvent,
    RoundStored,
    StoreRound,
    TellTaken,
    Ticked,
)
from hadare.machines.round_phases import Phase, RoundSettings
from hadare.machines.rounds import RoundMachine
from hadare.model.leases import Lease
from hadare.model.plans import GangMember, RoundPlan
from hadare.model.rounds import CloseAnswer, OpenAnswer
from hadare.scheduling.modes import plan_round
from hadare.scheduling.policies import Policy, policy_of
from hadare.simulator.book import Book
from hadare.simulator.calendar import Calendar
from hadare.simulator.jobs import SimJob, record_of
from hadare.simulator.observer import Observer
from hadare.simulator.record import Outcome
from hadare.simulator.settings import Settings, SimNode
from hadare.simulator.slots import Bound, Slots
from hadare.simulator.world import Brought, Fork, World

PlanSeen = Callable[[RoundPlan], None]
Progress = Callable[[float, int], None]

STEADY = frozenset({"hadare", "hadar"})
"""Policies whose plan may be kept for some rounds (``Settings.hold``): they do not share devices by taking turns."""

FORKING = frozenset({"hadare"})
"""Policies that fork a job over single devices; all others place one gang a job."""


_RETRY_S = 1.0


def forks_jobs(policy: str) -> bool:
    """Whether the policy's forks run on one device each, at one-device rates."""
    return bool(getattr(policy_of(policy), "forks_jobs", policy in FORKING))


def _seeded(policy: Policy, seed: int) -> Policy:
    """A policy that draws lots (the baselines that are blind to types) draws them anew for each seed."""
    if not is_dataclass(policy) or not any(each.name == "seed" for each in fields(policy)):
        return policy
    seeded: Policy = replace(policy, seed=seed)
    return seeded


class Simulation:
    """One policy on one trace. Use: ``run()``, once."""

    def __init__(
        self,
        jobs: Iterable[SimJob],
        nodes: Sequence[SimNode],
        policy: str,
        settings: Settings,
        seen: PlanSeen | None = None,
    ) -> None:
        self._settings = settings
        self._policy = _seeded(policy_of(policy), settings.seed)
        self._forking = forks_jobs(policy)
        self._jobs = sorted(jobs, key=lambda job: (job.arrival_s, job.job_id))
        self._world = World(self._jobs, self._forking, settings)
        self._book = Book(self._world, settings)
        self._slots = Slots()
        self._calendar = Calendar(self._jobs, nodes, settings.events)
        self._observer = Observer(policy, self._jobs, nodes, self._forking, settings)
        self._seen = seen
        length = settings.length_s
        self._machine = RoundMachine(
            RoundSettings(
                epoch=1,
                round_s=length,
                policy=policy,
                utility=settings.utility,
                grace_s=settings.grace_s,
                settle_s=0.0,
                retry_s=_RETRY_S,
                boundary_s=settings.early_s if self._policy.name in STEADY else None,
                exact=True,
            ),
            NodeTimes(),
        )
        self._pricing = prices.PriceMachine()
        self._now = 0.0
        self._plan = RoundPlan(round=0, epoch=1)
        self._forks: list[tuple[Bound, Fork]] = []
        self._idle = 0
        self._length = length

    def run(self, progress: Progress | None = None) -> Outcome:
        """Until every job is done, or nothing can go on."""
        began = time.perf_counter()
        outcome = self._observer.outcome
        self._live_through(0.0)
        self._send(Ticked(at=0.0))
        while self._book.unfinished or self._calendar.jobs_to_come:
            if progress is not None:
                progress(self._now, self._book.finished)
            if self._settings.most_rounds is not None and outcome.rounds >= self._settings.most_rounds:
                break
            if self._forks:
                self._idle = 0
                self._finish_round()
            elif not self._wait():
                break
        outcome.stuck = tuple(self._book.unfinished)
        outcome.ended_s = self._now
        outcome.wall_s = time.perf_counter() - began
        return outcome

    # --- time ---

    def _live_through(self, until: float) -> None:
        """All that happens outside of rounds up to a moment: jobs arrive, nodes come, fail and are drained."""
        for event in self._calendar.until(until):
            if isinstance(event, SimJob):
                self._arrive(event)
            else:
                self._send(event)
        for node in self._calendar.just_failed():
            self._slots.forget_node(node)
        for beat in self._calendar.heartbeats(until):
            self._send(beat)
        self._now = until

    def _arrive(self, job: SimJob) -> None:
        record = record_of(job, self._forking)
        progress = self._book.arrive(job)
        self._send(JobSeen(at=job.arrival_s, job_id=job.job_id, record=record))
        self._send(ProgressSeen(at=job.arrival_s, job_id=job.job_id, progress=progress))

    def _wait(self) -> bool:
        """Nothing runs: on to the next event, or soon, and ever less so. False if nothing will ever happen."""
        next_event = self._calendar.next_after(self._now)
        self._idle += 1
        if next_event == inf and self._idle > self._settings.idle_rounds:
            return False
        pause = min(self._settings.length_s, _RETRY_S * 2.0 ** min(self._idle - 1, 20))
        later = self._now + pause if self._book.unfinished else inf
        self._live_through(min(next_event, later))
        self._send(Ticked(at=self._now))
        return True

    def _finish_round(self) -> None:
        """The forks train; then each job's progress is told at its time, and the last one begins the next round."""
        forks, began = self._forks, self._now
        self._forks = []
        rounds = self._held(forks, began) if self._settings.hold > 1 else 1
        if rounds > 1:
            forks = [(bound, fork.over(rounds)) for bound, fork in forks]
        limit = began + rounds * self._length
        by_job: dict[str, list[Fork]] = {}
        for _, fork in forks:
            by_job.setdefault(fork.plan.job_id, []).append(fork)
        end = self._cut_short(by_job, began, limit) if self._settings.event_driven else limit
        fails = self._calendar.failures(began, end)
        brought: dict[str, list[Brought]] = {
            job_id: self._world.train(own, end, fails) for job_id, own in by_job.items()
        }
        self._observer.trained(forks, brought, began)
        self._close(brought, end)

    def _held(self, forks: Sequence[tuple[Bound, Fork]], began: float) -> int:
        """For how many rounds the plan is kept: while no job comes near its end, none arrives and no node changes."""
        length, costs = self._length, self._settings.costs
        if (
            length < self._settings.length_s
            or not costs.none
            or self._settings.event_driven
            or self._policy.name not in STEADY
        ):
            return 1
        rounds = min(float(self._settings.hold), (self._calendar.next_after(began) - began) // length)
        rates: dict[str, float] = {}
        for _, fork in forks:
            rates[fork.plan.job_id] = rates.get(fork.plan.job_id, 0.0) + fork.rate
        for job_id, rate in rates.items():
            rounds = min(rounds, self._book.left(job_id) // (rate * length + 1.0) - 1)
        return max(1, int(rounds))

    def _cut_short(self, by_job: dict[str, list[Fork]], began: float, limit: float) -> float:
        """Event-driven: the first end of a job, arrival, or change of a node ends the round for everybody."""
        done = min(
            (
                max(fork.quota_s for fork in own)
                for job_id, own in by_job.items()
                if sum(fork.plan.quota for fork in own) >= self._book.left(job_id)
            ),
            default=inf,
        )
        return max(began + 1e-6, min(limit, done, self._calendar.next_after(began)))

    def _close(self, brought: dict[str, list[Brought]], end: float) -> None:
        ready: list[tuple[float, str]] = []
        missing: list[str] = []
        for job_id, own in brought.items():
            if any(each.lost for each in own):
                missing.append(job_id)
                continue
            over = max(each.ended_s for each in own)
            ready.append((over + self._world.consolidation_s(job_id, [each.fork.plan for each in own]), job_id))
        last = max((at for at, _ in ready), default=end) + self._settings.costs.boundary_s
        closed_s = max(last, end + self._settings.grace_s) if missing else last
        ready.sort()
        final = None if missing else ready[-1][1]
        for at, job_id in ready:
            if job_id != final:
                self._tell(job_id, brought[job_id], at)
        if final is not None:
            at = ready[-1][0]
            self._count(final, brought[final], at)
            self._live_through(last)
            self._send(Ticked(at=last))  # the allocator's clock ticks all the time: states of nodes are never stale
            self._publish(final, last)
            return
        self._live_through(closed_s)
        self._send(Ticked(at=closed_s))
        for job_id in sorted(missing):
            self._tell(job_id, brought[job_id], closed_s)

    def _tell(self, job_id: str, brought: Sequence[Brought], at: float) -> None:
        self._count(job_id, brought, at)
        self._publish(job_id, at)

    def _count(self, job_id: str, brought: Sequence[Brought], at: float) -> None:
        if self._book.count(job_id, self._plan.round, brought):
            self._observer.finished(job_id, at)
            self._slots.forget(job_id)

    def _publish(self, job_id: str, at: float) -> None:
        progress = self._book.progress(job_id)
        self._send(ProgressSeen(at=at, job_id=job_id, progress=progress))
        if progress.state.ended and self._settings.oracle:
            # Its user deletes it at once. Where rates are measured it stays: others learn from what it has measured.
            self._send(JobSeen(at=at, job_id=job_id, record=None))
            self._send(ProgressSeen(at=at, job_id=job_id, progress=None))

    # --- what the machine wants ---

    def _send(self, event: RoundEvent) -> None:
        for command in self._machine.handle(event):
            self._perform(command)

    def _perform(self, command: RoundCommand) -> None:
        match command:
            case AskPrices():
                self._quote(command)
            case MakePlan():
                self._make_plan(command)
            case StoreRound():
                self._plan = replace(self._plan, forks=tuple(fork for page in command.pages for fork in page.forks))
                self._send(RoundStored(at=self._now, round=command.head.round))
            case AskOpen():
                jobs = tuple(opening.job_id for opening in command.request.jobs)
                self._send(Opened(at=self._now, answer=OpenAnswer(round=command.request.round, accepted=jobs)))
            case GrantLeases():
                self._start(command.leases)
            case AskClose():
                self._send(Closed(at=self._now, answer=CloseAnswer(round=command.request.round)))
            case TellTaken():
                cells = command.taken.cells
                occupancy = tuple(GangMember(node=c.node, type=c.type, count=c.taken) for c in cells if c.taken)
                self._pricing.handle(prices.Taken(at=self._now, round=command.taken.round, occupancy=occupancy))
            case _:
                pass  # stored states, history and warnings: nobody here reads them

    def _quote(self, command: AskPrices) -> None:
        request, cluster = command.request, self._machine.cluster
        event = prices.QuoteAsked(
            at=self._now,
            round=request.round,
            now_s=request.now_s,
            round_s=request.round_s,
            nodes=cluster.nodes(self._machine.nodes.statuses),
            jobs=cluster.bidders(request.arrivals, request.utility),
            revision=request.revision,
        )
        for answer in self._pricing.handle(event):
            if isinstance(answer, prices.Reply):
                self._send(Quoted(at=self._now, round=request.round, book=answer.book, revision=request.revision))

    def _make_plan(self, command: MakePlan) -> None:
        snapshot = self._book.with_costs(command.snapshot)
        began = time.perf_counter()
        plan, memory = plan_round(self._policy, snapshot, command.memory)
        self._observer.planned(snapshot, plan, (time.perf_counter() - began) * 1000)
        self._plan = plan
        if self._seen is not None:
            self._seen(plan)
        self._send(Planned(at=self._now, plan=plan, memory=memory, revision=command.revision))

    def _start(self, leases: Sequence[Lease]) -> None:
        bound = self._slots.bind(self._plan.forks, leases)
        self._length = max((lease.duration_s for lease in leases), default=self._settings.length_s)
        counts: dict[str, int] = {}
        for each in bound:
            counts[each.plan.job_id] = counts.get(each.plan.job_id, 0) + 1
        self._forks = [
            (each, self._world.start(each.plan, self._now, each.cold, counts[each.plan.job_id])) for each in bound
        ]
        assert self._machine.phase is Phase.RUNNING
