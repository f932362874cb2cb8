"""Gavel: max-min fairness of normalised throughput ("least attained service") by a linear programme, given in rounds.

A gang has one device type, and a job runs on one type a round. Types are served one after another; on each the jobs
with the highest priority that fit are taken, who does not fit is skipped, and jobs without a share come last.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from hadare.model.plans import RoundPlan, Snapshot
from hadare.scheduling.baselines.gangs import TypedGangs, blind_order, held_before
from hadare.scheduling.baselines.gavel_lp import max_min_shares
from hadare.scheduling.baselines.gavel_rounds import Account, priorities, recall, remembered
from hadare.scheduling.baselines.record import typed_plan
from hadare.scheduling.eligibility import Cells, Floats, JobTable, job_table
from hadare.scheduling.policies.base import Memory

MIN_RESET_ROUNDS = 1920 / 360
"""Gavel solves at most once in 1,920 s, with rounds of 360 s."""


@dataclass(frozen=True, slots=True)
class Gavel:
    """``aware``: whether rates by type are known; if not, every type counts the same and types come in no fixed order.

    ``min_reset_rounds``: how long shares are kept although jobs or rates changed; 0 solves at every change.
    """

    name: str = "gavel"
    aware: bool = True
    min_reset_rounds: float = MIN_RESET_ROUNDS

    def plan(self, snapshot: Snapshot, memory: Memory) -> tuple[RoundPlan, Memory]:
        # 1. what there is, and what everybody had so far
        cells = Cells(snapshot.nodes)
        table = job_table(snapshot.jobs, cells.types, snapshot.now_s)
        gangs = TypedGangs(cells, table)
        jobs = [job.job_id for job in table.jobs]
        account = recall(memory, jobs, cells.types, snapshot.now_s, snapshot.round_s / 2)
        # 2. new shares if something changed
        self._update(account, gangs, snapshot)
        # 3. turns by share over time had, type by type
        urgency = priorities(account.shares, account.time_s, account.worker_s, np.where(gangs.usable, table.rates, 0.0))
        turns = _turns(gangs, urgency, account, self._type_order(gangs, snapshot.round))
        # 4. devices: where it was, then the largest first; and what is left
        _place(gangs, _select(gangs, turns), turns)
        # 5. reasons and memory
        order = np.argsort(-urgency.max(axis=1, initial=0.0), kind="stable").tolist()
        plan = typed_plan(self.name, snapshot, gangs, order)
        ran = {fork.job_id: fork.gang[0].type for fork in plan.forks}
        return plan, remembered(account, jobs, cells.types, ran)

    def _update(self, account: Account, gangs: TypedGangs, snapshot: Snapshot) -> None:
        devices = np.array([float(gangs.cells.capacity[group].sum()) for group in gangs.cells.by_type])
        rates = np.where(gangs.usable, gangs.table.rates, 0.0)
        if not self.aware:
            rates = np.where(rates.any(axis=1, keepdims=True), 1.0, 0.0) * np.ones_like(rates)
        problem = _fingerprint(gangs.table, rates, devices)
        due = snapshot.now_s - account.reset_s >= self.min_reset_rounds * snapshot.round_s
        if problem == account.solved_for or (account.solved_for and not due):
            return
        if not rates.any():  # nothing to share: shares of nobody must not stand for the rest of the interval
            return
        solved = max_min_shares(rates, gangs.table.gang, gangs.table.stake.weight, devices)
        account.reset(solved.shares, snapshot.now_s, snapshot.round_s / 2, problem)

    def _type_order(self, gangs: TypedGangs, number: int) -> list[int]:
        """Fastest first, by the jobs' rates relative to their best type; unaware: another order in each round.

        Published: V100, P100, K80. By rates, for an index may put a type first on which a job is slower, and a job
        without a share there would be sent to it.
        """
        if not self.aware:
            return [gangs.cells.types.index(name) for name in blind_order(0, str(number), gangs.cells.types)]
        rates = np.where(gangs.usable, gangs.table.rates, 0.0)
        best = rates.max(axis=1, keepdims=True, initial=0.0)
        relative = np.divide(rates, best, out=np.zeros_like(rates), where=best > 0)
        return [int(column) for column in np.argsort(-relative.sum(axis=0), kind="stable")]


def _fingerprint(table: JobTable, rates: Floats, devices: Floats) -> str:
    """What a programme was solved for. Figures that differ by less than a thousandth are the same."""
    figures = np.concatenate([rates.ravel(), table.gang, table.stake.weight, devices])
    rough = np.rint(1000 * np.log(np.maximum(figures, 1e-30))).astype(np.int64)
    return sha256("/".join(job.job_id for job in table.jobs).encode() + rough.tobytes()).hexdigest()


def _turns(gangs: TypedGangs, urgency: Floats, account: Account, type_order: list[int]) -> list[tuple[int, int]]:
    """Every (row, column) that could be, type by type, the most urgent first; then by deficit, share and id."""
    turns: list[tuple[int, int]] = []
    for column in type_order:
        keys = (account.shares[:, column], account.deficit_s[:, column], urgency[:, column])
        ranked = np.lexsort(tuple(-key for key in keys))
        turns.extend((row, column) for row in ranked[gangs.usable[ranked, column]].tolist())
    return turns


def _select(gangs: TypedGangs, turns: list[tuple[int, int]]) -> dict[int, int]:
    """Who runs on which type: in turn, whoever fits into what is left of the type and has none yet."""
    left = [int(gangs.cells.capacity[group].sum()) for group in gangs.cells.by_type]
    chosen: dict[int, int] = {}
    for row, column in turns:
        if row not in chosen and gangs.table.jobs[row].gang <= left[column]:
            chosen[row] = column
            left[column] -= gangs.table.jobs[row].gang
    return chosen


def _place(gangs: TypedGangs, chosen: dict[int, int], turns: list[tuple[int, int]]) -> None:
    """Old devices first, then large gangs before small ones. Constraints may leave gaps: they go out by turn."""
    jobs = gangs.table.jobs
    for row, column in sorted(chosen.items()):
        old = gangs.free_again(row, held_before(jobs[row].placed))
        if old and int(gangs.cells.type_of[old[0][0]]) == column:
            gangs.take(row, old)
    rest = [(row, column) for row, column in chosen.items() if row not in gangs.placed]
    rest.sort(key=lambda turn: (-jobs[turn[0]].gang, jobs[turn[0]].job_id))
    for row, column in [*rest, *turns]:
        if gangs.nothing_left:
            return
        if row not in gangs.placed and gangs.fits(row, column):
            gangs.take(row, gangs.packed(row, column))
