"""Rounds as the gateway shows them: plans in numbers, and the newest ones by job, so that each knows why it waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hadare.model.plans import Decision, ForkPlan
from hadare.model.rounds import RoundHead, RoundPage
from hadare.runtime.bus import Table
from hadare.wire.api_cluster import RoundSummary

_WHOLE_PLANS = 2


@dataclass
class _Plan:
    """The pages of one round and epoch, by job."""

    epoch: int
    pages: dict[int, RoundPage] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)
    forks: dict[str, list[ForkPlan]] = field(default_factory=dict)

    def add(self, page: RoundPage) -> None:
        self.pages[page.page] = page
        for decision in page.decisions:
            self.decisions[decision.job_id] = decision
        for fork in page.forks:
            self.forks.setdefault(fork.job_id, []).append(fork)


class Rounds:
    """Follows the pages of all rounds: numbers of each, and the newest two whole (a plan is stored before its head)."""

    def __init__(self, table: Table[RoundPage]) -> None:
        self._table = table
        self._plans: dict[int, _Plan] = {}
        self._numbers: dict[str, RoundSummary] = {}
        self.caught_up = asyncio.Event()

    async def follow(self) -> None:
        """Runs until it is cancelled."""
        async for change in self._table.watch():
            if change.caught_up:
                self.caught_up.set()
            elif change.entry is None:
                self._numbers.pop(change.name, None)
            else:
                self._numbers[change.name] = in_numbers(change.entry.record)
                self._keep(change.entry.record)

    def decision(self, job_id: str, head: RoundHead | None) -> Decision | None:
        """What the plan that ``head`` names says about a job."""
        plan = self._plan(head)
        return plan.decisions.get(job_id) if plan else None

    def forks(self, job_id: str, head: RoundHead | None) -> list[ForkPlan]:
        """The forks that a job has in the open round."""
        plan = self._plan(head)
        return plan.forks.get(job_id, []) if plan and head and head.state == "open" else []

    def summaries(self) -> list[RoundSummary]:
        """Newest first."""
        by_round: dict[int, list[RoundSummary]] = {}
        for numbers in self._numbers.values():
            by_round.setdefault(numbers.round, []).append(numbers)
        return [_sum(by_round[number]) for number in sorted(by_round, reverse=True)]

    def _plan(self, head: RoundHead | None) -> _Plan | None:
        plan = self._plans.get(head.round) if head else None
        return plan if plan and head and plan.epoch == head.epoch else None

    def _keep(self, page: RoundPage) -> None:
        plan = self._plans.get(page.round)
        if plan is None or plan.epoch < page.epoch or page.page in plan.pages:
            rest = plan.pages.values() if plan and plan.epoch == page.epoch else ()
            plan = self._plans[page.round] = _Plan(page.epoch)
            for other in rest:
                if other.page != page.page:
                    plan.add(other)
        if plan.epoch == page.epoch:
            plan.add(page)
        for old in sorted(self._plans)[:-_WHOLE_PLANS]:
            del self._plans[old]


def in_numbers(page: RoundPage) -> RoundSummary:
    placed = sum(decision.code == "chosen" for decision in page.decisions)
    return RoundSummary(
        round=page.round,
        epoch=page.epoch,
        pages=page.pages,
        forks=len(page.forks),
        placed=placed,
        waiting=len(page.decisions) - placed,
    )


def _sum(pages: list[RoundSummary]) -> RoundSummary:
    """Of a round that was planned again after a change of leader, only the newest epoch counts."""
    epoch = max(page.epoch for page in pages)
    newest = [page for page in pages if page.epoch == epoch]
    return RoundSummary(
        round=newest[0].round,
        epoch=epoch,
        pages=newest[0].pages,
        forks=sum(page.forks for page in newest),
        placed=sum(page.placed for page in newest),
        waiting=sum(page.waiting for page in newest),
    )
