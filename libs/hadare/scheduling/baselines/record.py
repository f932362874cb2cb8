"""A baseline's decision record: the common one, with what is different where gangs are of one type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hadare.model.plans import Decision, ForkPlan, RoundPlan, Snapshot
from hadare.scheduling.baselines.gangs import TypedGangs
from hadare.scheduling.decisions import Outcome, conclude


def typed_plan(
    policy: str,
    snapshot: Snapshot,
    gangs: TypedGangs,
    order: Sequence[int],
    behind: Mapping[int, str] | None = None,
) -> RoundPlan:
    """The plan of a round, with a decision for every job.

    ``order`` are the rows as they were served; ``behind`` maps a row to the job that blocks the queue before it.
    """
    jobs = gangs.table.jobs
    forks: tuple[ForkPlan, ...] = gangs.forks(snapshot.round_s)
    outcome = Outcome(
        snapshot=snapshot,
        cells=gangs.cells,
        order=[jobs[row].job_id for row in order],
        forks=forks,
        refused=frozenset(),
        devices_needed={job.job_id: job.gang for job in jobs},
    )
    plan = conclude(policy, outcome)
    never = {jobs[row].job_id: row for row in range(len(jobs)) if not gangs.usable[row].any()}
    waits = {jobs[row].job_id: head for row, head in (behind or {}).items()}
    return replace(plan, decisions=tuple(_told(decision, gangs, never, waits) for decision in plan.decisions))


def _told(decision: Decision, gangs: TypedGangs, never: Mapping[str, int], waits: Mapping[str, str]) -> Decision:
    if decision.code != "waiting_for_capacity":
        return decision
    if decision.job_id in never:
        row = never[decision.job_id]
        most = int(gangs.most_devices[row].max(initial=0))
        message = f"it asks for {gangs.table.jobs[row].gang} devices of one type, and of none that it can use are there"
        return replace(
            decision,
            code="fits_nowhere",
            message=f"{message} more than {most}",
            blockers=(),
            remedy="ask for a smaller gang, add nodes, or use a policy that mixes types",
        )
    if decision.job_id in waits:
        head = waits[decision.job_id]
        return replace(
            decision,
            message=f"{head} is first in line and does not fit yet; nobody passes it",
            blockers=(head,),
            remedy="it is served once those before it have started",
        )
    return decision
