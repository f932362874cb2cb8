"""How a plan is cut into records that fit into one message each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from hadare.model.leases import Lease
from hadare.model.plans import RoundPlan
from hadare.model.rounds import CellTaken, NodeLeases, RoundPage, Taken

_PAGE = 500
"""Decisions and forks a page: with names of full length a page stays under half a message."""


def pages_of(plan: RoundPlan) -> tuple[RoundPage, ...]:
    """The plan's forks and decisions, a page at a time; at least one page."""
    pages = max(1, -(-len(plan.forks) // _PAGE), -(-len(plan.decisions) // _PAGE))
    return tuple(
        RoundPage(
            round=plan.round,
            epoch=plan.epoch,
            page=page,
            pages=pages,
            forks=tuple(islice(plan.forks, page * _PAGE, (page + 1) * _PAGE)),
            decisions=tuple(islice(plan.decisions, page * _PAGE, (page + 1) * _PAGE)),
        )
        for page in range(pages)
    )


def leases_by_node(round_number: int, epoch: int, leases: Sequence[Lease]) -> tuple[NodeLeases, ...]:
    nodes = sorted({lease.node for lease in leases})
    return tuple(
        NodeLeases(
            node=node,
            round=round_number,
            epoch=epoch,
            leases=tuple(lease for lease in leases if lease.node == node),
        )
        for node in nodes
    )


def taken_by(plan: RoundPlan) -> Taken:
    """Devices that the plan takes of each cell."""
    cells: dict[tuple[str, str], int] = {}
    for fork in plan.forks:
        for member in fork.gang:
            cell = (member.node, member.type)
            cells[cell] = cells.get(cell, 0) + member.count
    return Taken(
        round=plan.round,
        epoch=plan.epoch,
        cells=tuple(CellTaken(node=node, type=kind, taken=taken) for (node, kind), taken in sorted(cells.items())),
    )
