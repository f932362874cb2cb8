"""What the pricing service decides: one book a revision of a round, the same however often it is asked, and who hears.

It keeps nothing but the newest book. A quote of an older round is answered from the newest; the book says its round.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import assert_never

from hadare.model.plans import GangMember, JobView, NodeView, PriceBook, PriceCurve
from hadare.scheduling.pricing import price_book

MATERIAL_CHANGE = 0.01
"""Relative change of any price that is worth announcing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteAsked:
    """The allocator wants the book of a round. ``now_s`` is the cluster clock of the jobs' arrivals."""

    at: float
    round: int
    now_s: float
    round_s: float
    nodes: tuple[NodeView, ...]
    jobs: tuple[JobView, ...]
    horizon: int | None = None
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a round's plan took of each cell; cells that are not named are empty."""

    at: float
    round: int
    occupancy: tuple[GangMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What was stored before the service (re)started, if anything."""

    at: float
    book: PriceBook | None


@dataclass(frozen=True, slots=True)
class Store:
    """Persist the book before anything that follows."""

    book: PriceBook


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the quote."""

    book: PriceBook


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell whoever watches prices."""

    book: PriceBook


Event = QuoteAsked | Taken | Recovered
Command = Store | Reply | Announce


class PriceMachine:
    """Quotes each revision of a round once and keeps the newest book. After a restart it has the first revision."""

    def __init__(self) -> None:
        self._book: PriceBook | None = None
        self._revision = 0

    @property
    def book(self) -> PriceBook | None:
        """The newest book, if there is one."""
        return self._book

    def handle(self, event: Event) -> list[Command]:
        """Commands in the order in which they are to be carried out."""
        match event:
            case QuoteAsked():
                return self._quote(event)
            case Taken():
                return self._take(event)
            case Recovered():
                if event.book is not None and (self._book is None or event.book.round > self._book.round):
                    self._book = event.book
                return []
            case _:
                assert_never(event)

    def _quote(self, event: QuoteAsked) -> list[Command]:
        if self._book is not None and (event.round, event.revision) <= (self._book.round, self._revision):
            return [Reply(self._book)]
        self._revision = event.revision
        book = price_book(event.round, event.nodes, event.jobs, event.round_s, event.horizon, event.now_s)
        return [*self._keep(book, before=Reply(book))]

    def _take(self, event: Taken) -> list[Command]:
        if self._book is None or event.round != self._book.round:
            return []
        curves = _occupied(self._book.curves, event.occupancy)
        if curves == self._book.curves:
            return []
        return self._keep(replace(self._book, curves=curves))

    def _keep(self, book: PriceBook, before: Reply | None = None) -> list[Command]:
        old, self._book = self._book, book
        commands: list[Command] = [Store(book)]
        if before is not None:
            commands.append(before)
        if old is None or changed_materially(old, book):
            commands.append(Announce(book))
        return commands


def changed_materially(old: PriceBook, new: PriceBook) -> bool:
    """Whether cells came or went, or a price (at what is taken, or a bound) moved by more than ``MATERIAL_CHANGE``."""
    before = {(c.node, c.type): c for c in old.curves}
    after = {(c.node, c.type): c for c in new.curves}
    return before.keys() != after.keys() or any(_moved(before[key], after[key]) for key in after)


def _moved(old: PriceCurve, new: PriceCurve) -> bool:
    pairs = ((old.u_min, new.u_min), (old.u_max, new.u_max), (old.price(old.taken), new.price(new.taken)))
    return any(abs(b - a) > MATERIAL_CHANGE * a for a, b in pairs)


def _occupied(curves: tuple[PriceCurve, ...], occupancy: Iterable[GangMember]) -> tuple[PriceCurve, ...]:
    taken: dict[tuple[str, str], int] = {}
    for member in occupancy:
        key = (member.node, member.type)
        taken[key] = taken.get(key, 0) + member.count
    return tuple(replace(c, taken=min(taken.get((c.node, c.type), 0), c.capacity)) for c in curves)
