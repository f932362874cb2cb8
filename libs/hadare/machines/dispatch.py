"""From a plan to leases: which devices by index, from which version, for how long, and the ledger that expects them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hadare.forking.schedule import data_seed, schedule_span
from hadare.machines.cluster import ClusterView
from hadare.model.jobs import LedgerEntry
from hadare.model.leases import Lease, LeaseKey
from hadare.model.plans import ForkPlan, Gang, GangMember, RoundPlan
from hadare.model.rounds import JobOpening, OpenRequest

Holder = tuple[str, int]
"""(node, device index)."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A round's leases, and what the tracker is asked to expect."""

    leases: tuple[Lease, ...]
    opening: OpenRequest


def dispatch(plan: RoundPlan, cluster: ClusterView, previous: Sequence[Lease], round_s: float) -> Dispatch:
    """Binds forks to devices, preferring those the job had (its process there is warm), and writes their leases."""
    by_job: dict[str, list[ForkPlan]] = {}
    for fork in plan.forks:
        by_job.setdefault(fork.job_id, []).append(fork)
    devices = _bind(plan.forks, cluster, previous)
    leases: list[Lease] = []
    for job_id, forks in sorted(by_job.items()):
        leases += _leases_of(job_id, forks, plan, cluster, devices, round_s)
    return Dispatch(tuple(leases), opening_of(plan.round, plan.epoch, round_s, leases))


def opening_of(round_number: int, epoch: int, round_s: float, leases: Sequence[Lease]) -> OpenRequest:
    """What the tracker has to expect of these leases; also how a restarted allocator opens a round again."""
    by_job: dict[str, list[Lease]] = {}
    for lease in leases:
        by_job.setdefault(lease.key.job_id, []).append(lease)
    jobs = tuple(
        JobOpening(job_id=job_id, base_version=own[0].base_version, forks=tuple(_entry(lease) for lease in own))
        for job_id, own in sorted(by_job.items())
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
    """The same after a restart, when only the leases are known: of a gang that spans nodes, its first part."""
    placed: dict[str, list[Gang]] = {}
    for lease in leases:
        member = GangMember(node=lease.node, type=lease.device_type, count=max(1, len(lease.devices)))
        placed.setdefault(lease.key.job_id, []).append((member,))
    return {job_id: tuple(gangs) for job_id, gangs in placed.items()}


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


def _bind(
    forks: Sequence[ForkPlan], cluster: ClusterView, previous: Sequence[Lease]
) -> dict[tuple[str, int], tuple[int, ...]]:
    """(job, fork) -> device indices. Forks that keep their devices choose first."""
    held: dict[str, set[Holder]] = {}
    for lease in previous:
        held.setdefault(lease.key.job_id, set()).update((lease.node, index) for index in lease.devices)
    free: dict[tuple[str, str], list[int]] = {}
    for node, inventory in cluster.inventories.items():
        for device in inventory.devices:
            if device.healthy:
                free.setdefault((node, device.type), []).append(device.index)
    for indices in free.values():
        indices.sort()
    bound: dict[tuple[str, int], tuple[int, ...]] = {}
    in_order = sorted(forks, key=lambda fork: (fork.job_id, fork.fork))
    for keeping in (True, False):
        for fork in in_order:
            if (fork.job_id, fork.fork) in bound:
                continue
            member, own = fork.gang[0], held.get(fork.job_id, set())
            left = free.get((member.node, member.type), [])
            chosen = [index for index in left if not keeping or (member.node, index) in own][: member.count]
            if len(chosen) == member.count:
                free[member.node, member.type] = [index for index in left if index not in chosen]
                bound[fork.job_id, fork.fork] = tuple(chosen)
    return bound


def _leases_of(
    job_id: str,
    forks: Sequence[ForkPlan],
    plan: RoundPlan,
    cluster: ClusterView,
    devices: Mapping[tuple[str, int], tuple[int, ...]],
    round_s: float,
) -> list[Lease]:
    record, progress = cluster.records[job_id], cluster.progress[job_id]
    bound = [fork for fork in forks if (job_id, fork.fork) in devices]
    expected = [min(fork.quota, round(fork.rate * round_s)) for fork in bound]
    start, end = schedule_span(
        steps=progress.steps, path=progress.path, planned=expected or [0], total_steps=progress.total_steps
    )
    stale = progress.metrics_version < progress.version
    evaluate = stale and progress.version > 0 and progress.rounds % record.spec.evaluate_every_rounds == 0
    fastest = max(bound, key=lambda fork: (fork.rate, -fork.fork), default=None)
    return [
        Lease(
            kind="train",
            key=LeaseKey(job_id=job_id, round=plan.round, fork=fork.fork),
            epoch=plan.epoch,
            node=fork.gang[0].node,
            spec=record.spec,
            devices=devices[job_id, fork.fork],
            device_type=fork.gang[0].type,
            base_version=progress.version,
            base=progress.weights,
            quota=fork.quota,
            duration_s=round_s,
            schedule_from=start,
            schedule_to=end,
            data_seed=data_seed(record.spec.seed, plan.round, fork.fork),
            evaluate_base=evaluate and fork is fastest,
            traceparent=record.traceparent,
        )
        for fork in bound
    ]
