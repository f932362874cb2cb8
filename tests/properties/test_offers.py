"""Cells that differ in nothing but their name are looked at once: the plan is as if each were looked at alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given

from builders_snapshots import snapshots
from hadare.model.plans import Snapshot
from hadare.scheduling import sharing
from hadare.scheduling.offers import Offer, Offers
from hadare.scheduling.policies import policy_of


class EveryCell(Offers):
    """The plain way: an offer for every free cell."""

    def __iter__(self) -> Iterator[Offer]:
        share, occupancy = self._share, self._occupancy
        if not share.may_have_more():
            return
        for cell, rate in enumerate(share.rates):
            kind = self._kind(cell)
            joint_rate = share.with_one_more(rate, kind.warm)
            if rate > 0 and occupancy.free[cell] > 0 and joint_rate is not None:
                yield Offer(kind, cell, joint_rate, share.gains(joint_rate) - kind.price)


@given(snapshots())
def test_looking_at_equal_cells_once_gives_the_same_plan(snapshot: Snapshot) -> None:
    plan = policy_of("hadare").plan(snapshot, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "Offers", EveryCell)
        assert policy_of("hadare").plan(snapshot, {}) == plan
