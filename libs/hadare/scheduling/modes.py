"""How the devices that a job got in a round work together: as forks that are averaged, or as one gang in lockstep.

A pure step after the policy: the policy decides who gets which devices, this decides what is made of them, for jobs
whose ``mode`` is ``gang`` (whenever it can be) or ``auto`` (whichever brings the job to its end sooner). The live
allocator and the simulator both call ``plan_round``.

Both ways are measured in steps of the fastest device alone, since summed steps of forks are worth less than sequential
ones: a gang does ``1 / (b / Σx + exchange)`` updates a second; forks make ``g(k) · max x``, g(k) the job's fork gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hadare.model.jobs import GangSpan
from hadare.model.plans import Decision, ForkPlan, GangMember, JobView, RoundPlan, Snapshot
from hadare.scheduling.batches import balanced, slowest_s
from hadare.scheduling.division import gang_quota
from hadare.scheduling.gain import training_part
from hadare.scheduling.policies.base import Memory, Policy

WORTH = 0.17
"""What the forks beside the fastest add, for each step of theirs, until the job's fork gain is measured:
``g(k) = 1 + WORTH · (Σx / max x - 1)``. From the times to target in docs/explanation/quality.md (five workloads, five
workers of speeds 10 : 6 : 4 : 3 : 1, so Σx / max x = 2.4): 1.24 times as fast as one worker, the geometric mean."""

LINKS: dict[GangSpan, tuple[float, float]] = {"packed": (1e9, 2e-4), "spread": (117e6, 5e-4)}
"""Bytes/s and seconds a message, until a gang of the job has measured them: shared memory, and Gigabit Ethernet."""

HYSTERESIS = 0.1
"""A job in mode auto changes over only for what is better by more than that: each change costs restarts."""

BARREN = 3
"""After so many rounds in a row that brought nothing a job forks until one does: its ranks may not reach each other,
and forks need nobody."""


@dataclass(frozen=True, slots=True)
class Lockstep:
    """A job's devices as one gang: ``members`` and their shares in that order, and what an update takes."""

    members: tuple[GangMember, ...]
    shares: tuple[int, ...]
    left_out: int
    compute_s: float
    exchange_s: float
    measured: bool
    rate: float

    @property
    def devices(self) -> int:
        return len(self.shares)


def plan_round(policy: Policy, snapshot: Snapshot, memory: Memory) -> tuple[RoundPlan, Memory]:
    """The policy's plan, with each job's devices in the mode that the job asks for."""
    plan, memory = policy.plan(snapshot, memory)
    return with_modes(plan, snapshot), memory


def with_modes(plan: RoundPlan, snapshot: Snapshot) -> RoundPlan:
    """The plan with the forks of some jobs joined to gangs; its decisions say for which, and why."""
    asked = {job.job_id: job for job in snapshot.jobs if job.mode != "forks"}
    if not asked:
        return plan
    forks: dict[str, list[ForkPlan]] = {}
    for fork in plan.forks:
        forks.setdefault(fork.job_id, []).append(fork)
    why: dict[str, str] = {}
    for job_id in sorted(asked.keys() & forks.keys()):
        forks[job_id], why[job_id] = _decide(asked[job_id], forks[job_id], snapshot.round_s)
    return replace(
        plan,
        forks=tuple(fork for job_id in sorted(forks) for fork in forks[job_id]),
        decisions=tuple(_told(decision, why) for decision in plan.decisions),
    )


def why_no_gang(workload: str) -> str:
    """Why a workload cannot be split over devices; empty if it can. By the names of Python: ``Class`` or ``function``.

    A script's loop is its own: nobody can take rows out of its batches.
    """
    name = workload.rpartition(":")[2]
    return f"{name} is a script, and only a task's batches can be divided" if name[:1].islower() else ""


def fork_gain(job: JobView, rates: Sequence[float]) -> tuple[float, bool]:
    """g(k) of forks at these rates, and whether it was measured."""
    if job.fork_gain:
        return min(job.fork_gain[min(len(rates), len(job.fork_gain)) - 1], sum(rates) / max(rates)), True
    return 1.0 + WORTH * (sum(rates) / max(rates) - 1.0), False


def exchange_s(job: JobView, ranks: int, span: GangSpan) -> tuple[float, bool]:
    """Seconds of one exchange of gradients, and whether it was measured."""
    if span in job.exchange_s:
        return job.exchange_s[span], True
    return ring_s(job.weights_bytes, ranks, span), False


def ring_s(weights_bytes: int, ranks: int, span: GangSpan) -> float:
    """Seconds of an exchange that goes round in a ring, over links as ``LINKS`` has them."""
    bytes_s, message_s = LINKS[span]
    return 2.0 * (ranks - 1) / ranks * weights_bytes / bytes_s + 2.0 * (ranks - 1) * message_s


def lockstep(job: JobView, forks: Sequence[ForkPlan]) -> Lockstep | str:
    """All devices of these forks as one gang, or why they cannot be. Devices that would hold it up are left out."""
    if why := why_no_gang(job.workload):
        return why
    counts: dict[tuple[str, str], int] = {}
    for member in (member for fork in forks for member in fork.gang):
        counts[member.node, member.type] = counts.get((member.node, member.type), 0) + member.count
    cells = [cell for cell, count in sorted(counts.items()) for _ in range(count)]
    if len(cells) < 2:
        return "it has one device"
    speeds = [job.throughput[kind].steps_per_s for _, kind in cells]
    batch = job.batch_size * job.gang
    shares = balanced(batch, speeds, least=0)
    kept = [n for n, share in enumerate(shares) if share]
    if len(kept) < 2:
        return f"its batch of {batch} leaves no sample for a second device"
    taken: dict[tuple[str, str], int] = {}
    for n in kept:
        taken[cells[n]] = taken.get(cells[n], 0) + 1
    span: GangSpan = "packed" if len({node for node, _ in taken}) == 1 else "spread"
    exchange, measured = exchange_s(job, len(kept), span)
    own, x = [shares[n] for n in kept], [speeds[n] for n in kept]
    compute = slowest_s(own, x, job.batch_size)
    warm = sum(fork.rate for fork in forks) / sum(speeds)  # what restarts leave of the round
    return Lockstep(
        members=tuple(GangMember(node=node, type=kind, count=n) for (node, kind), n in taken.items()),
        shares=tuple(own),
        left_out=len(cells) - len(kept),
        compute_s=compute,
        exchange_s=exchange,
        measured=measured,
        rate=job.gang / (compute + exchange) * min(1.0, warm),
    )


def _decide(job: JobView, forks: list[ForkPlan], round_s: float) -> tuple[list[ForkPlan], str]:
    gang = lockstep(job, forks)
    if isinstance(gang, str):
        return forks, f"forks: {gang}"
    if job.barren >= BARREN:
        return forks, f"forks: {job.barren} rounds in a row brought nothing"
    if job.mode == "gang":
        return [_joined(job, forks, gang, round_s)], f"gang: {_of_gang(gang)}"
    rates = [fork.rate for fork in forks]
    gain, known = fork_gain(job, rates)
    worth = gain * max(rates) * (training_part(job.consolidation_cost_s, round_s) if len(rates) > 1 else 1.0)
    numbers = f"{_of_gang(gang)}; {_of_forks(rates, gain, known, worth)}"
    better = gang.rate > worth * _bar(job)
    if better:
        return [_joined(job, forks, gang, round_s)], f"gang: {numbers}"
    return forks, f"forks: {numbers}"


def _bar(job: JobView) -> float:
    """How many times the worth of forks a gang must reach: more while the job forks, less while it is one gang."""
    sizes = [sum(member.count for member in gang) for gang in job.placed]
    if len(sizes) == 1 and sizes[0] > 1:
        return 1.0 / (1.0 + HYSTERESIS)
    return 1.0 + HYSTERESIS if len(sizes) > 1 else 1.0


def _joined(job: JobView, forks: Sequence[ForkPlan], gang: Lockstep, round_s: float) -> ForkPlan:
    sureness = min(job.throughput[member.type].confidence for member in gang.members)
    return ForkPlan(
        job_id=job.job_id,
        fork=0,
        gang=gang.members,
        quota=gang_quota(job.steps_left, gang.rate * round_s, sureness, job.gang),
        rate=gang.rate,
        price=sum(fork.price for fork in forks),
        payoff=sum(fork.payoff for fork in forks),
        filled=all(fork.filled for fork in forks),
        batch_shares=gang.shares,
    )


def _told(decision: Decision, why: dict[str, str]) -> Decision:
    if decision.job_id not in why:
        return decision
    mode = why[decision.job_id]
    return replace(decision, mode=mode, message=f"{decision.message}; {mode}"[:4096])


def _of_gang(gang: Lockstep) -> str:
    took = "measured" if gang.measured else "estimated"
    text = (
        f"{gang.devices} devices in lockstep make {gang.rate:.3g} steps/s, an update in {_ms(gang.compute_s)} and "
        f"{_ms(gang.exchange_s)} ({took}) to exchange gradients"
    )
    if gang.left_out:
        text += f", without {gang.left_out} so slow that a sample would hold up the others"
    return text


def _of_forks(rates: Sequence[float], gain: float, known: bool, worth: float) -> str:
    took = "measured" if known else "assumed"
    return (
        f"as {len(rates)} forks {sum(rates):.3g} steps/s, worth {worth:.3g} of one device's "
        f"(a gain of {gain:.2f} over the fastest, {took})"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
