"""How jobs fare on nodes: who is to blame when a fork fails, a job that fails everywhere or a node that fails everyone.

A job that failed on a node tries others first, so it is not given up for what one node does. A node is accused when
several jobs failed on it, and nothing worked there since, while those same jobs worked elsewhere at the time or later
(some of them may not have got another node yet). A job that fails everywhere accuses nobody; nor does one that fails
to evaluate: that it trains elsewhere does not show that it can be evaluated there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hadare.model.jobs import JobProgress, Trial
from hadare.model.leases import FailureKind, ForkResult

BLAMED: frozenset[FailureKind] = frozenset({"exception", "killed", "hung", "not_finite", "device"})
"""Failures that may be the node's fault as well as the job's. What a node lacks for one job is another matter."""

WITNESSES = 3
"""So many jobs take a node out. One or two may be unlucky."""

_PROVEN = 2
"""So many of them have shown since that they work elsewhere."""

_ROUNDS = 2
"""In so many rounds at least: what strikes all forks of a node at once, once, is an accident."""

_MOST_TRIALS = 64
_LONGEST_PAUSE = 8


def tried(trials: Mapping[str, Trial], result: ForkResult) -> dict[str, Trial]:
    """The trials with a fork's result among them. What says nothing of the node changes nothing."""
    known, now = trials.get(result.node, Trial(round=0)), result.key.round
    if result.failure is not None:
        if result.failure.kind not in BLAMED or result.failure.node_specific:
            return dict(trials)
        trial = Trial(
            round=now,
            failed=known.failed + 1,
            first=known.first if known.failed else now,
            version=result.base_version,
            hardware=result.failure.kind == "device",
            accident=result.failure.kind == "killed",
            evaluating=result.kind == "evaluate",
        )
    elif result.steps:
        trial = Trial(round=now)
    else:
        return dict(trials)
    if result.node in trials and known.round == now and not known.failed:
        trial = known  # of two forks of a round on one node one worked: so does the node
    newest = sorted({**trials, result.node: trial}.items(), key=lambda item: (-item[1].round, item[1].failed, item[0]))
    return dict(newest[:_MOST_TRIALS])


def failed_on(progress: JobProgress) -> list[str]:
    """The nodes on which the job failed when it was last there."""
    return sorted(node for node, trial in progress.trials.items() if trial.failed)


def failing_on(progress: JobProgress) -> list[str]:
    """The nodes on which the job itself has failed since its last version came, in the row that counts."""
    own = {node: trial for node, trial in progress.trials.items() if not (trial.hardware or trial.accident)}
    return [node for node in failed_on(progress) if node in own and own[node].version == progress.version]


def shunned(progress: JobProgress | None, next_round: int, nodes: Collection[str]) -> dict[str, str]:
    """Nodes that the job keeps away from for now, and why: the longer, the more often it failed there in a row.

    None, if none of ``nodes`` would be left.
    """
    if progress is None:
        return {}
    avoided = {
        node: f"the job failed there in round {trial.round}, and tries other nodes first"
        for node, trial in progress.trials.items()
        if trial.failed and next_round <= trial.round + min(2 ** (trial.failed - 1), _LONGEST_PAUSE)
    }
    if not avoided or all(node in avoided or node in progress.excluded for node in nodes):
        return {}
    return avoided


def accused(progress: Iterable[JobProgress], trusted_from: Mapping[str, int], out: Collection[str]) -> dict[str, str]:
    """Nodes that are to be taken out, each with the reason. ``out``: those that are out already."""
    jobs = [job for job in progress if job.trials]
    worked: dict[str, int] = {}
    for job in jobs:
        for node, trial in job.trials.items():
            if not trial.failed:
                worked[node] = max(trial.round, worked.get(node, 0))
    suspects = sorted({node for job in jobs for node in failed_on(job)} - set(out))
    found = {}
    for node in suspects:
        since = max(trusted_from.get(node, 0), worked.get(node, -1) + 1)
        heard = {job.name: job for job in jobs if _failed_there(job, node, since)}
        works = {name: _works_elsewhere(job, node, out) for name, job in heard.items()}
        witnesses = [job for name, job in heard.items() if works[name] is not False]
        rounds = {at for job in witnesses for at in (job.trials[node].first, job.trials[node].round) if at >= since}
        proven = sum(works[job.name] is True for job in witnesses)
        if len(witnesses) >= WITNESSES and proven >= _PROVEN and len(rounds) >= _ROUNDS:
            names = ", ".join(sorted(job.name for job in witnesses)[:WITNESSES])
            found[node] = (
                f"{len(witnesses)} jobs failed on it since round {min(rounds)} ({names}), "
                "which did not fail elsewhere, and nothing worked; look at it, then `hadare undrain` it"
            )
    return found


def _failed_there(job: JobProgress, node: str, since: int) -> bool:
    trial = job.trials.get(node)
    return trial is not None and trial.failed > 0 and trial.round >= since and not trial.evaluating


def _works_elsewhere(job: JobProgress, node: str, out: Collection[str]) -> bool | None:
    """Whether the job works on as many others as it fails on since it failed on the node. None: it was on no other."""
    failed_at = job.trials[node].round
    others = {name: trial for name, trial in job.trials.items() if name != node and name not in out}
    works = sum(not trial.failed and trial.round >= failed_at for trial in others.values())
    fails = sum(trial.failed > 0 for trial in others.values())
    return works >= max(1, fails) if works or fails else None
