"""YARN's capacity scheduler as the papers use it: first come, first served, whole gangs, and nobody is pre-empted.

The first in line that does not fit blocks everybody behind it. Types are tried in an order that is blind to speed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from hadare.model.plans import Gang, GangMember, JobView, RoundPlan, Snapshot
from hadare.scheduling.baselines.gangs import Devices, TypedGangs, blind_order
from hadare.scheduling.baselines.record import typed_plan
from hadare.scheduling.baselines.yarn import NodeGaps
from hadare.scheduling.eligibility import Cells, job_table
from hadare.scheduling.policies.base import Memory

_HELD = "held"


@dataclass(frozen=True, slots=True)
class YarnCs:
    """``seed`` shuffles the order in which each job tries the types."""

    name: str = "yarn-cs"
    seed: int = 0

    def plan(self, snapshot: Snapshot, memory: Memory) -> tuple[RoundPlan, Memory]:
        # 1. those who started keep what they hold
        cells = Cells(snapshot.nodes)
        table = job_table(snapshot.jobs, cells.types, snapshot.now_s)
        gangs = TypedGangs(cells, table)
        held = _held(memory)
        order = sorted(range(len(table.jobs)), key=lambda row: (table.jobs[row].arrival_s, table.jobs[row].job_id))
        for row in order:
            devices = gangs.free_again(row, held.get(table.jobs[row].job_id, ()))
            if devices:
                gangs.take(row, devices)
        kept = _reserve(gangs, (job for job in snapshot.jobs if _pausing(job)), held)
        # 2. the others in line, until one does not fit
        behind = self._start(gangs, order)
        # 3. reasons and memory
        plan = typed_plan(self.name, snapshot, gangs, order, behind)
        kept |= {fork.job_id: fork.gang for fork in plan.forks}
        return plan, {_HELD: {job: [asdict(member) for member in gang] for job, gang in sorted(kept.items())}}

    def _start(self, gangs: TypedGangs, order: list[int]) -> dict[int, str]:
        """Start jobs in order; the rows that stand behind the first that does not fit, with that job's id."""
        line = [row for row in order if row not in gangs.placed and gangs.usable[row].any()]
        for position, row in enumerate(line):
            devices = self._find(gangs, row)
            if not devices:
                return dict.fromkeys(line[position + 1 :], gangs.table.jobs[row].job_id)
            gangs.take(row, devices)
        return {}

    def _find(self, gangs: TypedGangs, row: int) -> Devices:
        job, types = gangs.table.jobs[row], gangs.table.types
        for column in (types.index(name) for name in blind_order(self.seed, job.job_id, types)):
            if not gangs.fits(row, column):
                continue
            allowed = gangs.allowed(row, column)
            found = NodeGaps(gangs.cells.capacity[allowed].tolist(), gangs.free[allowed].tolist()).find(job.gang)
            if found:
                return tuple(sorted((int(allowed[node]), count) for node, count in found))
        return ()


def _pausing(job: JobView) -> bool:
    """A started job that cannot go on in this round, for a reason that is not the user's wish, keeps its devices."""
    return bool(job.unready) and not job.unready.startswith("paused") and job.steps_left > 0


def _reserve(gangs: TypedGangs, jobs: Iterable[JobView], held: dict[str, Gang]) -> dict[str, Gang]:
    reserved: dict[str, Gang] = {}
    for job in sorted(jobs, key=lambda job: job.job_id):
        members = [(gangs.cells.index.get((m.node, m.type)), m.count) for m in held.get(job.job_id, ())]
        devices = [(cell, count) for cell, count in members if cell is not None and count <= gangs.free[cell]]
        if members and len(devices) == len(members):
            gangs.hold(tuple(devices))
            reserved[job.job_id] = held[job.job_id]
    return reserved


def _held(memory: Memory) -> dict[str, Gang]:
    return {job: tuple(GangMember(**fields) for fields in gang) for job, gang in memory.get(_HELD, {}).items()}
