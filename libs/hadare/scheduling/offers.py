"""The free devices as one job sees them. Cells that differ in nothing but their name are looked at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from hadare.scheduling.pricing import Occupancy
from hadare.scheduling.share import TIE, Share

NEAR = 0.99
"""Types on which a job gets nearly as many steps per price as on its best one are as good to it."""


class Kind(NamedTuple):
    """What cells of one offer have in common: type, whether the job is ``warm`` there, the next device's price.

    ``others``: every free device holds a process of another job.
    """

    type: int
    warm: bool
    others: bool
    price: float


class Offer(NamedTuple):
    """A kind of cells, the first of them, the rate of all forks with one more there, and what that pays off."""

    kind: Kind
    cell: int
    joint_rate: float
    payoff: float


class Offers:
    """The cells that one job could use, by kind. Right until another job takes something."""

    def __init__(self, share: Share, types: Sequence[int], occupancy: Occupancy, held: list[int]) -> None:
        self._share, self._types, self._occupancy, self._held = share, types, occupancy, held
        self._cells: dict[Kind, list[int]] = {}
        for cell, rate in enumerate(share.rates):
            if rate > 0.0 and occupancy.free[cell] > 0:
                self._cells.setdefault(self._kind(cell), []).append(cell)

    def __iter__(self) -> Iterator[Offer]:
        """Where one more fork would do at least one step of what is left, and help."""
        share = self._share
        if not share.may_have_more():
            return
        known: dict[tuple[int, bool], tuple[float, float] | None] = {}
        for kind, cells in self._cells.items():
            place = kind.type, kind.warm
            if place not in known:
                rate = share.with_one_more(share.rates[cells[0]], kind.warm)
                known[place] = None if rate is None else (rate, share.gains(rate))
            found = known[place]
            if found is not None:
                yield Offer(kind, cells[0], found[0], found[1] - kind.price)

    def take(self, offer: Offer, *, filled: bool) -> None:
        """Grants the job a device of the offer's first cell."""
        cell, kind = offer.cell, offer.kind
        heappop(self._cells[kind])
        if not self._cells[kind]:
            del self._cells[kind]
        if kind.warm:
            self._held[cell] -= 1
        self._occupancy.take(cell)
        self._share.add(cell, kind.price, offer.payoff, filled=filled)
        if self._occupancy.free[cell] > 0:
            heappush(self._cells.setdefault(self._kind(cell), []), cell)

    def _kind(self, cell: int) -> Kind:
        warm = self._share.warm.get(cell, 0)
        others = max(self._held[cell] - warm, 0)
        return Kind(self._types[cell], warm > 0, self._occupancy.free[cell] <= others, self._occupancy.price[cell])


def best_of(offers: Sequence[Offer], bargain: Sequence[float]) -> Offer:
    """The type of the best payoff; of its cells the one where the job is warm, else one that is warm for nobody.

    Equal devices differ only in price, by the order in which the queue took them: no reason to move a process.
    """
    asked = NEAR * max(bargain[offer.kind.type] for offer in offers)
    good = [offer for offer in offers if bargain[offer.kind.type] >= asked]
    best = max(offer.payoff for offer in good)
    near = [offer for offer in good if offer.payoff >= best - TIE * abs(best)]
    first = min(near, key=lambda offer: (not offer.kind.warm, offer.cell))
    same = [offer for offer in good if offer.kind.type == first.kind.type]
    return min(same, key=lambda offer: (not offer.kind.warm, offer.kind.others, -offer.payoff, offer.cell))
