"""Hadar's plan of a round of any size: dual prices decompose it, and local repair mends what they leave undone.

Each job's best response to the prices, the dearest bids first; then jobs that were left out are put in place of others
that are worth less, and jobs move to better gangs, until nothing helps or the effort is spent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from hadare.scheduling.holding import Counts, Devices, Holding
from hadare.scheduling.placement import Candidate, where
from hadare.scheduling.planning import Choice

EFFORT = 400
"""Exchanges that are tried."""
TRIED = 4
"""Gangs of a job for which others are asked to leave."""
ASKED = 8
"""Jobs of a type that may be asked to leave for another: those that are worth least."""

WORTHWHILE = 1e-9
NEARLY = 1e-3
"""A plan that is so near to the bound is not worth mending."""


class Repair:
    """A plan being made: ``chosen`` by row. ``candidates`` are by row, best first; ``order``: who is served first."""

    def __init__(
        self,
        candidates: Mapping[int, Sequence[Candidate]],
        order: Sequence[int],
        base: Holding,
        duals: Sequence[float],
        bound: float = inf,
    ) -> None:
        self._candidates = candidates
        self._order = order
        self._duals = duals
        self._bound = bound
        self.holding = base
        self.chosen: dict[int, Choice] = {}
        self._effort = EFFORT
        self._gap = inf

    def run(self) -> None:
        """Build a plan and improve it."""
        for row in self._order:
            self.respond(row)
        self.insert_all()
        for _ in range(4):
            value = self.value()
            self._gap = self._bound - value
            if self._gap <= NEARLY * abs(value):
                break
            better = self._exchange_all()
            better = self._move_all() or better
            better = self.insert_all() or better
            if not better or self._effort <= 0:
                break
        self.drop_losers()

    def put(self, row: int, choice: Choice) -> None:
        self.chosen[row] = choice
        self.holding.take(choice[0].counts, choice[1])

    def remove(self, row: int) -> Choice:
        choice = self.chosen.pop(row)
        self.holding.take(choice[0].counts, choice[1], -1)
        return choice

    def value(self) -> float:
        return sum(choice[0].worth for choice in self.chosen.values()) - self.holding.cost()

    def insert_all(self) -> bool:
        better = False
        for row in self._order:
            if row not in self.chosen:
                if not self.holding.free():
                    break
                better = self.insert(row) or better
        return better

    def insert(self, row: int) -> bool:
        """The job's best gang from what is free, if it pays off."""
        found = self.best(row)
        if found is None or found[1] <= 0:
            return False
        self.put(row, found[0])
        return True

    def respond(self, row: int) -> None:
        """The job's best response to the dual prices, if it is not worth less than they ask."""
        for candidate in self._candidates[row]:
            if self._reduced(candidate) < -WORTHWHILE * candidate.worth:
                return
            places = where(candidate, self.holding)
            if places:
                self.put(row, (candidate, places[0]))
                return

    def best(self, row: int) -> tuple[Choice, float] | None:
        """The job's gang of the best payoff from what is free, whatever that is."""
        best: tuple[Choice, float] | None = None
        for candidate in self._candidates[row]:
            for devices in where(candidate, self.holding):
                payoff = candidate.worth - self.holding.price(candidate.counts, devices)
                if best is None or payoff > best[1] + WORTHWHILE * abs(best[1]):
                    best = ((candidate, devices), payoff)
        return best

    def drop_losers(self) -> None:
        """Take out whoever costs more than it is worth."""
        again = True
        while again:
            again = False
            cost = self.holding.cost()
            for row in sorted(self.chosen, key=lambda row: (self.chosen[row][0].worth, row)):
                choice = self.remove(row)
                saved = cost - self.holding.cost()
                if saved >= choice[0].worth:
                    again = True
                    cost -= saved
                else:
                    self.put(row, choice)

    def _move_all(self) -> bool:
        """Each job's best response to what the others leave it."""
        better = False
        for row in sorted(self.chosen):
            if self._effort <= 0:
                break
            self._effort -= 1
            old = self.remove(row)
            had = old[0].worth - self.holding.price(*_of(old))
            found = self.best(row)
            if found is not None and found[1] > had + WORTHWHILE * abs(had):
                self.put(row, found[0])
                better = True
            else:
                self.put(row, old)
        return better

    def _exchange_all(self) -> bool:
        better = False
        for row in self._order:
            if row in self.chosen:
                continue
            if self._effort <= 0:
                break
            better = self._exchange(row) or better
        return better

    def _exchange(self, row: int) -> bool:
        """Put the job in place of others, if all that becomes of it is worth more."""
        for candidate in self._candidates[row][:TRIED]:
            if self._reduced(candidate) < -self._gap:
                return False
            leaving = self._who_leaves(candidate)
            if leaving is None:
                continue
            if self._reduced(candidate) - sum(self._reduced(self.chosen[other][0]) for other in leaving) < -self._gap:
                continue
            self._effort -= 1
            before = self.value()
            old = {other: self.remove(other) for other in leaving}
            places = where(candidate, self.holding)
            if places:
                self.put(row, (candidate, places[0]))
                self._reinsert(leaving)
                if self.value() > before + WORTHWHILE * abs(before):
                    return True
                for other in [row, *leaving]:
                    if other in self.chosen:
                        self.remove(other)
            for other, choice in old.items():
                self.put(other, choice)
        return False

    def _reduced(self, candidate: Candidate) -> float:
        """Worth less dual prices. Whoever departs from the best response by more than the gap is in no better plan."""
        return candidate.worth - sum([self._duals[r] * n for r, n in enumerate(candidate.counts) if n])

    def _reinsert(self, rows: Sequence[int]) -> None:
        for row in rows:
            self.insert(row)

    def _who_leaves(self, candidate: Candidate) -> list[int] | None:
        """Jobs to take out so that the gang fits, worth as little as possible; None if that is no use."""
        leaving: set[int] = set()
        for r, count in enumerate(candidate.counts):
            short = count - (self.holding.market.of_type[r] - self.holding.totals[r]) if count else 0
            short -= sum(self.chosen[row][0].counts[r] for row in leaving)
            if short > 0:
                more = self._cheapest_leavers(r, short, leaving)
                if more is None:
                    return None
                leaving.update(more)
        if sum(self.chosen[row][0].worth for row in leaving) > 2.0 * candidate.worth:
            return None
        if candidate.places and not leaving and not where(candidate, self.holding):
            return self._blockers(candidate.places)
        return sorted(leaving)

    def _cheapest_leavers(self, r: int, short: int, leaving: set[int]) -> tuple[int, ...] | None:
        """The least worth of jobs that hold ``short`` devices of the type between them."""
        holders = sorted(
            (choice[0].worth / choice[0].counts[r], row)
            for row, choice in self.chosen.items()
            if choice[0].counts[r] and row not in leaving
        )[: ASKED + short]
        best: list[tuple[float, tuple[int, ...]] | None] = [(0.0, ()), *([None] * short)]
        for _, row in holders:
            gang = self.chosen[row][0]
            for have in reversed(range(short)):
                known = best[have]
                if known is None:
                    continue
                reached = min(short, have + gang.counts[r])
                with_it = (known[0] + gang.worth, (*known[1], row))
                there = best[reached]
                if there is None or with_it < there:
                    best[reached] = with_it
        found = best[short]
        return None if found is None else found[1]

    def _blockers(self, places: Sequence[Devices]) -> list[int] | None:
        """Jobs on given cells that leave the gang no place: those of the place where they are worth least."""
        best: tuple[float, list[int]] | None = None
        for devices in places:
            cells = {cell for cell, _ in devices}
            there = [row for row, (_, held) in self.chosen.items() if any(cell in cells for cell, _ in held)]
            worth = sum(self.chosen[row][0].worth for row in there)
            if there and (best is None or (worth, there) < best):
                best = (worth, there)
        return None if best is None else sorted(best[1])


def _of(choice: Choice) -> tuple[Counts, Devices]:
    return choice[0].counts, choice[1]
