"""From a plan to leases: which devices by index, from which version, for how long, and the ledger that expects them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hadare.forking.schedule import data_seed, schedule_span
from hadare.machines.binding import CannotMeet, ForkName, Team, Work, bind, team_of
from hadare.machines.cluster import ClusterView
from hadare.model.jobs import LedgerEntry, RankPlace
from hadare.model.leases import Lease, LeaseKey
from hadare.model.plans import Decision, ForkPlan, Gang, GangMember, RoundPlan
from hadare.model.rounds import JobOpening, OpenRequest


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A round's leases, what the tracker is asked to expect, and the plan without what could not be bound."""

    leases: tuple[Lease, ...]
    opening: OpenRequest
    plan: RoundPlan


def dispatch(plan: RoundPlan, cluster: ClusterView, previous: Sequence[Lease], round_s: float) -> Dispatch:
    """Binds forks to devices, preferring those the job had (its process there is warm), and writes their leases."""
    teams, refused = _teams(plan.forks, cluster, previous)
    by_job: dict[str, list[ForkPlan]] = {}
    for fork in plan.forks:
        if (fork.job_id, fork.fork) in teams:
            by_job.setdefault(fork.job_id, []).append(fork)
    leases: list[Lease] = []
    for job_id, forks in sorted(by_job.items()):
        leases += _leases_of(job_id, forks, plan, cluster, teams, round_s)
    bound = replace(
        plan,
        forks=tuple(fork for fork in plan.forks if (fork.job_id, fork.fork) in teams),
        decisions=tuple(_told(decision, refused, by_job) for decision in plan.decisions),
    )
    modes = {decision.job_id: decision.mode for decision in bound.decisions if decision.mode}
    return Dispatch(tuple(leases), opening_of(plan.round, plan.epoch, round_s, leases, modes), bound)


def opening_of(
    round_number: int, epoch: int, round_s: float, leases: Sequence[Lease], modes: Mapping[str, str] | None = None
) -> OpenRequest:
    """What the tracker has to expect of these leases; also how a restarted allocator opens a round again."""
    by_job: dict[str, list[LedgerEntry]] = {}
    bases: dict[str, int] = {}
    for (job_id, _), ranks in sorted(_by_fork(leases).items()):
        by_job.setdefault(job_id, []).append(_fork_entry(ranks))
        bases[job_id] = ranks[0].base_version
    jobs = tuple(
        JobOpening(job_id=job_id, base_version=bases[job_id], forks=tuple(own), mode=(modes or {}).get(job_id, ""))
        for job_id, own in by_job.items()
    )
    return OpenRequest(round=round_number, epoch=epoch, round_s=round_s, jobs=jobs)


def gangs_of(plan: RoundPlan, leases: Sequence[Lease]) -> dict[str, tuple[Gang, ...]]:
    """Where each job runs, by the gangs of its forks that got a lease: what the next plan weighs a move against."""
    leased = {(lease.key.job_id, lease.key.fork) for lease in leases}
    placed: dict[str, list[Gang]] = {}
    for fork in plan.forks:
        if (fork.job_id, fork.fork) in leased:
            placed.setdefault(fork.job_id, []).append(fork.gang)
    return {job_id: tuple(gangs) for job_id, gangs in placed.items()}


def placements(leases: Sequence[Lease]) -> dict[str, tuple[Gang, ...]]:
    """The same after a restart, when only the leases are known."""
    placed: dict[str, list[Gang]] = {}
    for (job_id, _), ranks in sorted(_by_fork(leases).items()):
        counts: dict[tuple[str, str], int] = {}
        for lease in ranks:
            cell = (lease.node, lease.device_type)
            counts[cell] = counts.get(cell, 0) + max(1, len(lease.devices))
        members = (GangMember(node=node, type=kind, count=count) for (node, kind), count in sorted(counts.items()))
        placed.setdefault(job_id, []).append(tuple(members))
    return {job_id: tuple(gangs) for job_id, gangs in placed.items()}


def _by_fork(leases: Iterable[Lease]) -> dict[ForkName, list[Lease]]:
    """The leases of every fork, in the order of its ranks."""
    forks: dict[ForkName, list[Lease]] = {}
    for lease in sorted(leases, key=lambda lease: lease.key.rank):
        forks.setdefault((lease.key.job_id, lease.key.fork), []).append(lease)
    return forks


def _fork_entry(ranks: Sequence[Lease]) -> LedgerEntry:
    """One entry a fork: its steps and weights are rank 0's."""
    if len(ranks) == 1:
        return _entry(ranks[0])
    others = tuple(RankPlace(node=lease.node, device_type=lease.device_type) for lease in ranks[1:])
    return replace(_entry(ranks[0]), ranks=len(ranks), others=others)


def _entry(lease: Lease) -> LedgerEntry:
    return LedgerEntry(
        fork=lease.key.fork,
        attempt=lease.key.attempt,
        node=lease.node,
        device_type=lease.device_type,
        ranks=max(1, len(lease.devices)),
        devices=lease.devices,
        quota=lease.quota,
    )


def _teams(
    forks: Sequence[ForkPlan], cluster: ClusterView, previous: Sequence[Lease]
) -> tuple[dict[ForkName, Team], dict[str, str]]:
    """The devices of the forks that can be carried out, and why a job's others cannot."""
    binding = bind(forks, cluster.inventories, previous)
    teams: dict[ForkName, Team] = {}
    refused: dict[str, str] = {}
    for fork in forks:
        seats = binding.seats.get((fork.job_id, fork.fork))
        if seats is None:
            refused[fork.job_id] = "a device that was planned for it has gone"
            continue
        try:
            teams[fork.job_id, fork.fork] = team_of(fork, seats, _work(fork.job_id, cluster), cluster.inventories)
        except CannotMeet as fault:
            refused[fork.job_id] = str(fault)
    return teams, refused


def _work(job_id: str, cluster: ClusterView) -> Work:
    view = cluster.view(job_id)
    return Work(view.batch_size * view.gang, view.throughput, lockstep=view.batching == "lockstep")


def _told(decision: Decision, refused: Mapping[str, str], placed: Mapping[str, object]) -> Decision:
    """The decision, if the job got nothing of what was planned for it."""
    if decision.job_id not in refused or decision.job_id in placed:
        return decision
    return replace(decision, code="not_ready", message=refused[decision.job_id], price=0.0, payoff=0.0)


def _leases_of(
    job_id: str,
    forks: Sequence[ForkPlan],
    plan: RoundPlan,
    cluster: ClusterView,
    teams: Mapping[ForkName, Team],
    round_s: float,
) -> list[Lease]:
    record, progress = cluster.records[job_id], cluster.progress[job_id]
    expected = [min(fork.quota, round(fork.rate * round_s)) for fork in forks]
    start, end = schedule_span(
        steps=progress.steps, path=progress.path, planned=expected or [0], total_steps=progress.total_steps
    )
    stale = progress.metrics_version < progress.version
    evaluate = stale and progress.version > 0 and progress.rounds % record.spec.evaluate_every_rounds == 0
    fastest = max(forks, key=lambda fork: (fork.rate, -fork.fork), default=None)
    return [
        Lease(
            kind="train",
            key=LeaseKey(job_id=job_id, round=plan.round, fork=fork.fork, rank=rank),
            epoch=plan.epoch,
            node=seat.node,
            spec=record.spec,
            devices=(seat.index,),
            device_type=seat.type,
            base_version=progress.version,
            base=progress.weights,
            quota=fork.quota,
            duration_s=round_s,
            schedule_from=start,
            schedule_to=end,
            data_seed=data_seed(record.spec.seed, plan.round, fork.fork),
            evaluate_base=evaluate and fork is fastest and rank == 0,
            gang=teams[job_id, fork.fork].part(rank),
            traceparent=record.traceparent,
        )
        for fork in forks
        for rank, seat in enumerate(teams[job_id, fork.fork].seats)
    ]
