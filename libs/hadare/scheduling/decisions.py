"""The decision record: for every job what was chosen, or why not, who is before it, and what would change that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hadare.model.plans import Decision, ForkPlan, JobView, ReasonCode, RoundPlan, Snapshot
from hadare.scheduling.eligibility import Cells

MOST_BLOCKERS = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy knows when it explains itself.

    ``order`` are the placeable jobs' ids, first served first; ``refused`` those that a price kept out;
    ``devices_needed`` the devices that a job must have at once, if more than one.
    """

    snapshot: Snapshot
    cells: Cells
    order: Sequence[str]
    forks: Sequence[ForkPlan]
    refused: frozenset[str]
    devices_needed: Mapping[str, int] = field(default_factory=dict)


def conclude(policy: str, outcome: Outcome) -> RoundPlan:
    """The plan of a round: its forks, sorted, and a decision for every job."""
    return RoundPlan(
        round=outcome.snapshot.round,
        epoch=outcome.snapshot.epoch,
        policy=policy,
        forks=tuple(sorted(outcome.forks, key=lambda fork: (fork.job_id, fork.fork))),
        decisions=explain(outcome),
    )


def explain(outcome: Outcome) -> tuple[Decision, ...]:
    """One decision for every job of the snapshot, sorted by job."""
    return _Record(outcome).decisions()


class _Record:
    def __init__(self, outcome: Outcome) -> None:
        self._o = outcome
        self._position = {job: i + 1 for i, job in enumerate(outcome.order)}
        self._forks: dict[str, list[ForkPlan]] = {}
        self._holders: dict[str, list[str]] = {}
        for fork in outcome.forks:
            self._forks.setdefault(fork.job_id, []).append(fork)
        for job in sorted(self._forks, key=lambda job: (self._position.get(job, 0), job)):
            for device_type in {member.type for fork in self._forks[job] for member in fork.gang}:
                self._holders.setdefault(device_type, []).append(job)
        self._blockers_of: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._kinds: dict[tuple[int, tuple[str, ...]], int] = {}
        self._reasons: dict[object, _Reason] = {}

    def decisions(self) -> tuple[Decision, ...]:
        return tuple(self._decide(job) for job in sorted(self._o.snapshot.jobs, key=lambda job: job.job_id))

    def _decide(self, job: JobView) -> Decision:
        if job.job_id in self._forks:
            return self._chosen(job, self._forks[job.job_id])
        if job.unready or job.steps_left == 0:
            return _idle(job)
        if not self._o.cells.keys:
            return self._no(job, _Reason("no_nodes", "no node is ready", "start a node agent, or undrain a node"))
        able = _able(job, self._o.cells.types)
        refused, needed = job.job_id in self._o.refused, self._o.devices_needed.get(job.job_id, 1)
        key = (id(self._o.cells.mask(job)), able, refused, needed)
        if key not in self._reasons:
            self._reasons[key] = self._misfit(job, able, needed) or self._waits(able, refused)
        return self._no(job, self._reasons[key])

    def _waits(self, able: tuple[str, ...], refused: bool) -> _Reason:
        """Why a job that would fit is not placed."""
        blockers = self._blockers(able)
        message = f"the devices that it can use are taken by {len(blockers)} job{'s' * (len(blockers) != 1)} before it"
        if not refused:
            return _Reason("waiting_for_capacity", message, _NEXT, blockers[:MOST_BLOCKERS])
        if not blockers:
            return _Reason("price_too_high", _PRICE, "raise its priority, or wait until prices fall")
        return _Reason("price_too_high", f"{_PRICE}; {message}", _NEXT, blockers[:MOST_BLOCKERS])

    def _chosen(self, job: JobView, forks: Sequence[ForkPlan]) -> Decision:
        devices = sum(member.count for fork in forks for member in fork.gang)
        filled = sum(fork.filled for fork in forks)
        message = f"{len(forks)} fork{'s' * (len(forks) != 1)} on {devices} device{'s' * (devices != 1)}"
        return Decision(
            job_id=job.job_id,
            code="chosen",
            message=message + (f", {filled} of them on devices that were left over" if filled else ""),
            position=self._position.get(job.job_id, 0),
            price=sum(fork.price for fork in forks),
            payoff=sum(fork.payoff for fork in forks),
        )

    def _misfit(self, job: JobView, able: tuple[str, ...], needed: int) -> _Reason | None:
        """Reasons that no other job's end would change."""
        cells = self._o.cells
        devices = self._usable_devices(job, able)
        if devices < 0:
            reasons = sorted({f"{n}: {cells.why_not(job, n, t)}" for n, t in cells.keys})[:MOST_BLOCKERS]
            remedy = "relax the job's constraints, or add a node that meets them"
            if job.excluded_types:
                remedy = "add devices of another type, or submit it anew with less to hold in memory"
            message = "every node is excluded: " + "; ".join(reasons)
            return _Reason("excluded_by_constraint", message[:_LONGEST], remedy)
        if devices == 0:
            message = f"it cannot run on the device types of the nodes that it may use (here: {', '.join(cells.types)})"
            return _Reason("fits_nowhere", message, "add a node of a type that it can run on")
        if needed > devices:
            message = f"it asks for {needed} devices at once, and the ready nodes have {devices} that it can use"
            return _Reason("fits_nowhere", message, "ask for a smaller gang, or add nodes")
        return None

    def _usable_devices(self, job: JobView, able: tuple[str, ...]) -> int:
        """Devices that the job can use when the cluster is empty; -1 if its constraints leave it no cell at all."""
        allowed = self._o.cells.mask(job)
        key = (id(allowed), able)  # masks are kept, and shared by all jobs of equal constraints
        if key not in self._kinds:
            usable = (
                int(c)
                for c, ok, (_, t) in zip(self._o.cells.capacity, allowed, self._o.cells.keys, strict=True)
                if ok and t in able
            )
            self._kinds[key] = sum(usable) if allowed.any() else -1
        return self._kinds[key]

    def _blockers(self, types: tuple[str, ...]) -> tuple[str, ...]:
        if types not in self._blockers_of:
            found = {holder for t in types for holder in self._holders.get(t, ())}
            self._blockers_of[types] = tuple(sorted(found, key=lambda job_id: (self._position.get(job_id, 0), job_id)))
        return self._blockers_of[types]

    def _no(self, job: JobView, reason: _Reason) -> Decision:
        return Decision(
            job_id=job.job_id,
            code=reason.code,
            message=reason.message,
            position=self._position.get(job.job_id, 0),
            blockers=reason.blockers,
            remedy=reason.remedy,
        )


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why jobs of one kind are not placed."""

    code: ReasonCode
    message: str
    remedy: str
    blockers: tuple[str, ...] = ()


_LONGEST = 4096
_NEXT = "it is served once they end, when it has waited longest, or when nodes join"
_PRICE = "at today's prices it is worth less than the devices it would hold"


def _able(job: JobView, types: Sequence[str]) -> tuple[str, ...]:
    known = job.throughput
    return tuple([t for t in types if t in known and known[t].steps_per_s > 0])


def _idle(job: JobView) -> Decision:
    if job.unready.startswith("paused"):
        return Decision(job_id=job.job_id, code="paused", message=job.unready, remedy="resume it")
    return Decision(job_id=job.job_id, code="not_ready", message=job.unready or "it has no steps left to do")
