"""HadarE: every job is forked over all devices that it can use, each fork a copy on one device.

A job's gang size is not used here: forks take the place of its ranks. ``max_forks`` bounds them.

A queue is draining when no job has come for a quarter of the time that all that is left will take. The next one is then
hardly expected before the end, and what idles at the end is devices: an hour of the last finish counts as much as an
hour of the completion times of as many jobs as there are devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from hadare.model.plans import ForkPlan, GangMember, RoundPlan, Snapshot
from hadare.scheduling.decisions import Outcome, conclude
from hadare.scheduling.division import quotas, slack
from hadare.scheduling.duals import completion_duals
from hadare.scheduling.eligibility import Cells, JobTable, in_order, job_table
from hadare.scheduling.policies.base import PATIENCE_ROUNDS, Memory, ahead_of, backlog, overdue, remember
from hadare.scheduling.pricing import Curves, Occupancy
from hadare.scheduling.share import Share
from hadare.scheduling.sharing import Line, Sharing

DRAINING = 0.25
"""A queue is draining when no job has come for so much of the time that all that is left will take."""

_NEWEST = "newest"


@dataclass(frozen=True, slots=True)
class Hadare:
    """``patience``: rounds after which a waiting job has its turn before others. ``utility``: of all jobs."""

    name: str = "hadare"
    patience: int = PATIENCE_ROUNDS
    utility: str | None = None

    def plan(self, snapshot: Snapshot, memory: Memory) -> tuple[RoundPlan, Memory]:
        # 1. what there is, and what it costs
        cells = Cells(snapshot.nodes)
        curves = Curves(cells, snapshot.prices)
        table = job_table(snapshot.jobs, cells.types, snapshot.now_s, int(cells.capacity.sum()), self.utility)
        # 2. who comes first
        newest = max([float(memory.get(_NEWEST, -inf)), *(job.arrival_s for job in snapshot.jobs)], default=-inf)
        line = least_work_first(table, cells, _last(table, cells, snapshot.now_s - newest))
        sharing = Sharing(
            table, cells, Occupancy(cells, curves), snapshot.round_s, line, may_end_early=snapshot.may_end_early
        )
        turn = overdue(table, sharing.usable_devices(), [1] * len(table.jobs), memory, self.patience)
        # 3. who gets which devices, by price and then what is left
        sharing.serve(turn.rows)
        # 4. how many steps each fork may do, and why everyone got what he got
        shares = [sharing.shares[row] for row in line.order if row in sharing.shares]
        forks = tuple(fork for share in shares for fork in _forks(share, cells))
        outcome = Outcome(
            snapshot=snapshot,
            cells=cells,
            order=[table.jobs[row].job_id for row in line.order],
            forks=forks,
            refused=frozenset(share.job.job_id for share in shares if share.refused),
        )
        ahead = ahead_of(table, cells, line.order, snapshot.round_s)
        memory = remember(memory, turn.credit, snapshot.jobs, {fork.job_id for fork in forks}, ahead)
        if isfinite(newest):
            memory[_NEWEST] = newest
        return conclude(self.name, outcome), memory


def least_work_first(table: JobTable, cells: Cells, last: float = 0.0) -> Line:
    """Rows by price-weighted work left, ``(min_r p_r · s/x_r + p_best · restart) / urgency``; ties by id.

    The prices p are the duals of the mean completion time: an hour on a scarce type is more than one on a plentiful
    type. The urgency is the job's utility's, for most the priority weight. A job that holds no devices counts its
    restart as work: it pre-empts only if it gains more than that.
    """
    if not table.jobs or not table.types:
        return Line(list(range(len(table.jobs))), np.full(len(table.jobs), np.inf), np.ones(len(table.types)))
    restart = np.array([0.0 if job.placed else job.restart_cost_s for job in table.jobs])
    seconds = np.full_like(table.rates, np.inf)
    np.divide(table.steps[:, None], table.rates, out=seconds, where=table.rates > 0)
    prices = completion_duals(seconds, cells.of_type.tolist())
    work = (seconds * prices).min(axis=1) + restart * prices[table.rates.argmax(axis=1)]
    work = np.divide(work, table.urgencies(), out=np.full_like(work, np.inf), where=table.urgencies() > 0)
    return Line(in_order(work, work), work, prices, last)


def _last(table: JobTable, cells: Cells, since_last_s: float) -> float:
    """As how many jobs the last finish counts, when the last job came so long ago."""
    draining = since_last_s >= DRAINING * float(backlog(table, cells).sum())
    return float(cells.capacity.sum()) if draining else 0.0


def _forks(share: Share, cells: Cells) -> Sequence[ForkPlan]:
    grants = sorted(share.grants, key=lambda grant: (cells.keys[grant.cell], -grant.payoff))
    types = [cells.keys[grant.cell][1] for grant in grants]
    bounds = quotas(
        share.job.steps_left,
        [grant.expected_steps for grant in grants],
        [slack(share.job.throughput[t].confidence) for t in types],
    )
    return [
        ForkPlan(
            job_id=share.job.job_id,
            fork=fork,
            gang=(GangMember(node=cells.keys[grant.cell][0], type=cells.keys[grant.cell][1], count=1),),
            quota=quota,
            rate=grant.rate,
            price=grant.price,
            payoff=grant.payoff,
            filled=grant.filled,
        )
        for fork, (grant, quota) in enumerate(zip(grants, bounds, strict=True))
    ]
