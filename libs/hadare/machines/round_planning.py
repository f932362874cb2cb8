"""The prices and the plan of a round, asked for one after the other, and where it can be before the round's time.

While the versions of a round are made, it is known what the next one can count on if no fork is rejected
(``ledger.foreseen``). So that round is priced and planned meanwhile. The plan counts only if it was made of what is
there when its time comes, but for the clock; else the round is priced and planned anew, under its next revision.

Rules of this file: an answer that belongs to another round or revision is ignored; one question is out at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from hadare.machines import round_events as ev
from hadare.machines.cluster import ClusterView
from hadare.machines.nodes import NodeMachine
from hadare.machines.round_phases import RoundSettings
from hadare.model.plans import Gang, PriceBook, Snapshot
from hadare.model.rounds import QuoteRequest


@dataclass(frozen=True, slots=True)
class Wish:
    """A plan that is wanted. ``now_s`` and ``arrivals`` are on the cluster clock; ``memory`` is the policy's own.

    ``ahead``: the round before has not ended yet.
    """

    round: int
    now_s: float
    arrivals: dict[str, float]
    placed: Mapping[str, tuple[Gang, ...]]
    memory: dict[str, Any]
    ahead: bool = False


class _Stage(StrEnum):
    NOTHING = "nothing"
    PRICING = "pricing"
    PLACING = "placing"
    PLANNED = "planned"


class Planning:
    """What is asked for one round at a time. ``book``: the last prices that were heard."""

    def __init__(self, settings: RoundSettings, utility: str, cluster: ClusterView, nodes: NodeMachine) -> None:
        self._settings = settings
        self._utility = utility
        self._cluster = cluster
        self._nodes = nodes
        self._stage = _Stage.NOTHING
        self._wish = Wish(0, 0.0, {}, {}, {})
        self._revision = 0
        self._snapshot: Snapshot | None = None
        self._made: ev.Planned | None = None
        self.book: PriceBook | None = None

    def asked_for(self, round_number: int) -> bool:
        """Whether anything was asked for the round, even if it came to nothing."""
        return self._wish.round == round_number

    def want(self, wish: Wish) -> list[ev.RoundCommand]:
        """Begins, or goes on with what was asked ahead for the same round."""
        if not (self._wish.ahead and self._wish.round == wish.round) or self._stage is _Stage.NOTHING:
            return self._ask(wish)
        if self._stage is _Stage.PRICING:
            self._wish = wish  # it is planned as it is now
        return []

    def drop(self) -> None:
        """What is under way is of no use any more."""
        self._stage = _Stage.NOTHING

    def quoted(self, event: ev.Quoted) -> list[ev.RoundCommand]:
        if not self._expects(_Stage.PRICING, event.round, event.revision):
            return []
        self.book = event.book
        return self._place()

    def quote_failed(self, event: ev.QuoteFailed) -> list[ev.RoundCommand] | None:
        """None if nothing can be planned, because there have never been prices."""
        if not self._expects(_Stage.PRICING, event.round, event.revision):
            return []
        if self.book is None:
            self.drop()
            return None
        stale = ev.Warn(what="pricing did not answer; the last prices are used", data={"reason": event.reason})
        return [stale, *self._place()]

    def planned(self, event: ev.Planned) -> None:
        if self._expects(_Stage.PLACING, event.plan.round, event.revision):
            self._stage, self._made = _Stage.PLANNED, event

    def made_for(self, wish: Wish) -> ev.Planned | list[ev.RoundCommand]:
        """The plan, once it is made and counts; else what has to be asked for it, nothing if that is under way."""
        if self._stage is not _Stage.PLANNED or self._made is None:
            return []
        if self._wish.ahead and not self._as_foreseen(wish):
            return self._ask(wish)
        self.drop()
        return self._made

    def _ask(self, wish: Wish) -> list[ev.RoundCommand]:
        self._revision = self._revision + 1 if self.asked_for(wish.round) else 0
        self._wish, self._stage = wish, _Stage.PRICING
        return [
            ev.AskPrices(
                request=QuoteRequest(
                    round=wish.round,
                    epoch=self._settings.epoch,
                    round_s=self._settings.round_s,
                    now_s=wish.now_s,
                    arrivals=wish.arrivals,
                    utility=self._utility,
                    revision=self._revision,
                )
            )
        ]

    def _place(self) -> list[ev.RoundCommand]:
        self._stage, self._snapshot = _Stage.PLACING, self._seen(self._wish)
        memory, revision = self._wish.memory, self._revision
        return [ev.MakePlan(policy=self._settings.policy, snapshot=self._snapshot, memory=memory, revision=revision)]

    def _seen(self, wish: Wish) -> Snapshot:
        """The cluster as a policy sees it for the round: as it is, or as it is foreseen."""
        assert self.book is not None
        self._cluster.round = wish.round
        return Snapshot(
            round=wish.round,
            epoch=self._settings.epoch,
            now_s=wish.now_s,
            round_s=self._settings.round_s,
            nodes=self._cluster.nodes(self._nodes.statuses),
            jobs=self._cluster.jobs(wish.arrivals, wish.placed, self._utility, foreseen=wish.ahead),
            prices=self.book,
            may_end_early=self._settings.boundary_s is not None,
        )

    def _as_foreseen(self, wish: Wish) -> bool:
        assert self._snapshot is not None
        now = self._seen(wish)
        return replace(self._snapshot, now_s=now.now_s) == now and self._wish.memory is wish.memory

    def _expects(self, stage: _Stage, round_number: int, revision: int) -> bool:
        return self._stage is stage and (self._wish.round, self._revision) == (round_number, revision)
