"""The invariants of docs/explanation/faults.md, held against what a run has left. Pure: evidence in, violations out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise

from hadare.bench.chaos.evidence import Evidence
from hadare.bench.chaos.leases import Span, spans
from hadare.bench.chaos.witness import Violation
from hadare.dst import records
from hadare.local.targets import Calibration
from hadare.model.jobs import JobProgress, JobState, VersionManifest

SLACK_S = 4.0
"""Of a lease's end: the allocator's grace, the close of the round, and the report that was the last."""

MARGIN = 4.0
"""Standard deviations by which a model may be worse than one worker's mean: a run trains dozens of them."""

_STALLED_AFTER = 5
_NO_FAILURE = "trouble of the cluster is no failure of the job"
_TOLERANCE_S = 1e-3

Check = Callable[[Evidence], Iterator[Violation]]


def judge(evidence: Evidence, targets: Mapping[str, Calibration]) -> list[Violation]:
    """Every violation, each once."""
    checks: tuple[Check, ...] = (
        every_job_ends,
        promises_are_kept,
        versions_are_their_forks,
        steps_are_those_trained,
        leases_run_once,
        devices_run_one_lease,
        plans_fit_the_cluster,
        old_leaders_are_refused,
        acknowledged_is_counted,
        history_is_whole,
        a_lost_node_costs_one_round,
        nothing_stalls_unnoticed,
    )
    found = [violation for check in checks for violation in check(evidence)]
    found += targets_are_reached(evidence, targets)
    found += [Violation("every version is readable", fault) for fault in evidence.unreadable]
    found += [Violation("nothing is left behind", what) for what in evidence.left]
    return list(dict.fromkeys(found))


def every_job_ends(evidence: Evidence) -> Iterator[Violation]:
    """(1) Completed, failed with a reason of its own, or cancelled."""
    for promise in evidence.promises:
        known = evidence.progress.get(promise.job_id)
        if known is None or not known.state.ended:
            state = known.state if known else "without a record"
            yield Violation("every accepted job ends", f"{promise.name} is {state}: {known.reason if known else ''}")
        elif promise.kind == "poison" and known.state is JobState.FAILED and not (known.reason and known.error):
            yield Violation("a failure has its reason", f"{promise.name}: '{known.reason}', '{known.error}'")


def promises_are_kept(evidence: Evidence) -> Iterator[Violation]:
    """(6) What a user was told is done."""
    for promise in evidence.promises:
        known = evidence.progress.get(promise.job_id)
        if known is None:
            continue
        if "cancel" in promise.acts and known.state not in (JobState.CANCELLED, JobState.COMPLETED):
            yield Violation("users' actions win", f"{promise.name} was cancelled and is {known.state}")
        if "cancel" not in promise.acts and known.state is JobState.CANCELLED:
            yield Violation("users' actions win", f"{promise.name} is cancelled, and nobody asked for it")
        if promise.kind == "poison" and known.state is JobState.COMPLETED:
            yield Violation("users' actions win", f"{promise.name} cannot be trained and is completed")


def versions_are_their_forks(evidence: Evidence) -> Iterator[Violation]:
    """(2) and (4): one chain a job, its steps those of the counted forks, each fork once."""
    poison = {promise.job_id for promise in evidence.promises if promise.kind == "poison"}
    for job, progress in sorted(evidence.progress.items()):
        broken: list[Violation] = []
        records.judge_ended(progress, evidence.manifests, partial(_note, broken))
        yield from (violation for violation in broken if not (job in poison and violation.law == _NO_FAILURE))
        yield from _chain(progress, evidence.manifests)


def _note(broken: list[Violation], law: str, detail: str) -> None:
    broken.append(Violation(law, detail))


def _chain(progress: JobProgress, manifests: Mapping[tuple[str, int], VersionManifest]) -> Iterator[Violation]:
    job, steps, counted = progress.job_id, 0, dict[tuple[int, int], int]()
    for version in range(progress.version + 1):
        manifest = manifests.get((job, version))
        if manifest is None:
            continue
        steps += sum(parent.steps for parent in manifest.parents)
        if manifest.base_version != version - 1 and version > 0:
            yield Violation("versions form one chain", f"{job} version {version} is built on {manifest.base_version}")
        if manifest.steps != steps:
            yield Violation(
                "steps are those of the counted forks", f"{job} version {version} says {manifest.steps}, not {steps}"
            )
        for parent in manifest.parents:
            before = counted.setdefault((parent.round, parent.fork), version)
            if before != version:
                fork = f"{job} round {parent.round} fork {parent.fork}"
                yield Violation("a fork is counted once", f"{fork} is in versions {before} and {version}")
        twice = [key for key, times in Counter((p.round, p.fork) for p in manifest.parents).items() if times > 1]
        if twice:
            yield Violation("a fork is counted once", f"{job} version {version} has {twice} twice")


def steps_are_those_trained(evidence: Evidence) -> Iterator[Violation]:
    """(2) A counted fork has the steps that its agent has seen it make.

    An agent that was started again may run a lease a second time; then one of the two counts. What an agent that died
    did not tell (its last events die with it, its result on disk does not) is at most what a device makes in a round.
    """
    runs: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans(evidence.node_events, evidence.lives):
        runs[span.node, span.name].append(span)
    died = {life.program for life in evidence.lives if life.ended is not None}
    most = {node: rate * (evidence.round_s + SLACK_S) for node, rate in _rates(evidence).items()}
    for manifest in evidence.manifests.values():
        for parent in manifest.parents:
            name = f"{manifest.job_id}.{parent.round}.{parent.fork}.{parent.attempt}"
            seen = runs.get((parent.node, name), [])
            told = {span.steps for span in seen if span.steps is not None}
            untold = parent.node in died and (not seen or any(span.steps is None for span in seen))
            if parent.steps not in told and not (untold and parent.steps <= most.get(parent.node, float("inf"))):
                made = sorted(told) or "none"
                yield Violation("steps are those that were trained", f"{name} counts {parent.steps}, made were {made}")


def leases_run_once(evidence: Evidence) -> Iterator[Violation]:
    """(2) A lease runs once in a life of its agent. Another life may run it again: it knows nothing of the first, whose
    result, if there is one, was handed in or is on disk."""
    starts = Counter(
        (span.node, span.device, span.life, span.name) for span in spans(evidence.node_events, evidence.lives)
    )
    for (node, device, _, name), times in starts.items():
        if times > 1:
            yield Violation("a lease runs once", f"{node}:{device} began {name} {times} times in one life")


def devices_run_one_lease(evidence: Evidence) -> Iterator[Violation]:
    """(3) Over time, also across the agent's lives."""
    for one, other in pairwise(spans(evidence.node_events, evidence.lives)):
        if (one.node, one.device) != (other.node, other.device):
            continue
        untold = one.ended is None and one.life >= 0 and evidence.lives[one.life].ended is not None
        if untold and one.life == other.life and one.round < other.round:
            continue  # it was handing back, and its agent died before it could say so
        if other.began < one.over - _TOLERANCE_S:
            yield Violation(
                "a device runs one lease",
                f"{one.node}:{one.device} began {other.name} {one.over - other.began:.3f} s before {one.name} was over",
            )
    for span in spans(evidence.node_events, evidence.lives):
        if span.ended is None and span.life >= 0 and evidence.lives[span.life].ended is None:
            yield Violation("nothing is left behind", f"{span.name} on {span.node} never ended")


def plans_fit_the_cluster(evidence: Evidence) -> Iterator[Violation]:
    """(3) No round has more on a node than the node has."""
    taken: dict[int, Counter[tuple[str, str]]] = defaultdict(Counter)
    for page in evidence.pages:
        for fork in page.forks:
            for member in fork.gang:
                taken[page.round][member.node, member.type] += member.count
    for number, cells in sorted(taken.items()):
        for cell, count in cells.items():
            if count > evidence.devices.get(cell, 0):
                yield Violation("a device is in one lease a round", f"round {number} takes {count} of {cell}")


def old_leaders_are_refused(evidence: Evidence) -> Iterator[Violation]:
    """An agent never goes back to an older epoch, nor to an older round, within its life."""
    for one, other in pairwise(spans(evidence.node_events, evidence.lives)):
        if (one.node, one.device, one.life) != (other.node, other.device, other.life) or one.life < 0:
            continue
        before, after = (evidence.epochs.get((span.name, span.node), 0) for span in (one, other))
        if after and after < before:
            yield Violation(
                "an old leader's lease is refused", f"{one.node} took {other.name} of epoch {after} after {before}"
            )
        if other.round < one.round:
            yield Violation("an old round's lease is refused", f"{one.node} took {other.name} after {one.name}")


def acknowledged_is_counted(evidence: Evidence) -> Iterator[Violation]:
    """(6) A result that was answered as counted is in a version, unless its job was cancelled."""
    counted = counted_leases(evidence)
    cancelled = {job for job, known in evidence.progress.items() if known.state is JobState.CANCELLED}
    for name, result in sorted(evidence.acknowledged.items()):
        if result.object is not None and result.key.job_id not in cancelled and name not in counted:
            yield Violation("what was acknowledged is counted", f"{name}: {result.steps} steps are gone")


def counted_leases(evidence: Evidence) -> set[str]:
    """The leases whose results went into a version."""
    return {
        f"{manifest.job_id}.{parent.round}.{parent.fork}.{parent.attempt}"
        for manifest in evidence.manifests.values()
        for parent in manifest.parents
    }


def history_is_whole(evidence: Evidence) -> Iterator[Violation]:
    """The stream of events tells each version once, and each job's end once."""
    told: dict[str, Counter[int]] = defaultdict(Counter)
    ends: Counter[str] = Counter()
    for stored in evidence.job_events:
        if stored.event.what == "consolidated":
            told[stored.event.id][int(stored.event.data["version"])] += 1
        ends[stored.event.id] += stored.event.what in ("completed", "failed", "cancelled")
    for job, known in sorted(evidence.progress.items()):
        wrong = [version for version in range(1, known.version + 1) if told[job][version] != 1]
        if wrong:
            times = {version: told[job][version] for version in wrong}
            yield Violation("history tells each version once", f"{job}: {times}")
        if known.state.ended and ends[job] != 1:
            yield Violation("history tells each end once", f"{job} ended {ends[job]} times")


def lost_to_node_deaths(evidence: Evidence) -> dict[int, list[Span]]:
    """By life of an agent that died: the leases that died with it and count nothing."""
    counted = counted_leases(evidence)
    lost: dict[int, list[Span]] = defaultdict(list)
    for span in spans(evidence.node_events, evidence.lives):
        if span.ended is None and span.life >= 0 and span.name not in counted:
            lost[span.life].append(span)
    return lost


def a_lost_node_costs_one_round(evidence: Evidence) -> Iterator[Violation]:
    """An agent's death costs its part of one round: as many steps as its devices make in that time."""
    rates = _rates(evidence)
    for life, lost in lost_to_node_deaths(evidence).items():
        node = evidence.lives[life].program
        steps = sum(evidence.reported.get(span.name, ("", 0))[1] for span in lost)
        bound = rates.get(node, 0.0) * (evidence.round_s + SLACK_S) * len({span.device for span in lost})
        if rates.get(node) and steps > bound:
            names = ", ".join(span.name for span in lost)
            yield Violation("a lost node costs its part of one round", f"{node}: {steps} steps of {names}")


def _rates(evidence: Evidence) -> dict[str, float]:
    """Steps/s of a device of each node, by its fastest job."""
    rates: dict[str, float] = defaultdict(float)
    for span in spans(evidence.node_events, evidence.lives):
        rates[span.node] = max(rates[span.node], span.rate)
    return dict(rates)


def nothing_stalls_unnoticed(evidence: Evidence) -> Iterator[Violation]:
    """A job that gets nowhere for five rounds says so."""
    barren: Counter[str] = Counter()
    for stored in evidence.job_events:
        job, what = stored.event.id, stored.event.what
        barren[job] = 0 if what in ("consolidated", "stalled") else barren[job] + (what == "round_lost")
        if barren[job] > 2 * _STALLED_AFTER:
            yield Violation("no job stalls unnoticed", f"{job} lost {barren[job]} rounds in a row and no event says so")


def targets_are_reached(evidence: Evidence, targets: Mapping[str, Calibration]) -> Iterator[Violation]:
    """The models are as good as one worker's, faults or not: what ``weights export --best`` hands out, that is."""
    for promise in evidence.promises:
        known, target = evidence.progress.get(promise.job_id), targets.get(promise.kind)
        if known is None or target is None or known.state is not JobState.COMPLETED:
            continue
        if known.total_steps < target.steps:
            continue  # a shorter job than the one that was calibrated
        offered = [known.metrics.get(name) for name in (target.metric, f"ema.{target.metric}")]
        best = max if target.better == "higher" else min
        value = best((value for value in offered if value is not None), default=None)
        worst = target.mean + (-MARGIN if target.better == "higher" else MARGIN) * target.deviation
        reached = value is not None and (value >= worst if target.better == "higher" else value <= worst)
        if not reached:
            yield Violation("models reach their targets", f"{promise.name}: {target.metric} {value}, not {worst:.4f}")
