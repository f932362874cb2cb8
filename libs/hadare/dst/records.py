"""Laws about the state of record alone: what is stored now, and what was stored before.

They hold in every cluster, simulated or real, and bear an observer who misses some writes of a record: each compares
two states, whatever lay between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hadare.model.jobs import JobProgress, JobState, VersionManifest
from hadare.model.rounds import NodeLeases, RoundHead

Broken = Callable[[str, str], None]
"""Told the law and what broke it."""

_ONLY_UP = ("steps", "version", "closed_round", "rounds", "metrics_version", "samples", "updates")


def judge_progress(old: JobProgress | None, new: JobProgress, broken: Broken) -> None:
    """A job's progress at two moments."""
    job = new.job_id
    if old is None:
        return
    if old.state.ended and new.state is not old.state:
        broken("an end is final", f"{job} went from {old.state} to {new.state}")
    for name in _ONLY_UP:
        if getattr(new, name) < getattr(old, name):
            broken("progress never goes back", f"{name} of {job}: {getattr(old, name)} to {getattr(new, name)}")
    if new.open is not None and new.open.round <= new.closed_round:
        broken("a closed round stays closed", f"{job} has round {new.open.round} open again")
    if new.version == old.version and (new.steps, new.weights) != (old.steps, old.weights):
        broken("steps and version change together", f"{job} has {new.steps} steps, had {old.steps}")


def judge_head(old: RoundHead | None, new: RoundHead, broken: Broken) -> None:
    """The newest round at two moments."""
    if old is not None and (new.epoch, new.round) < (old.epoch, old.round):
        broken("an old leader writes nothing", f"round {new.round}.{new.epoch} after {old.round}.{old.epoch}")
    if old is not None and new.round < old.round:
        broken("rounds only go up", f"{new.round} after {old.round}")


def judge_leases(old: NodeLeases | None, new: NodeLeases, broken: Broken) -> None:
    """What a node was granted, at two moments."""
    if old is not None and (new.epoch, new.round) < (old.epoch, old.round):
        broken("an old leader writes nothing", f"leases of {new.node}: {new.round}.{new.epoch}")
    held = [device for lease in new.leases for device in lease.devices]
    if len(held) != len(set(held)):
        broken("a device is in one lease a round", f"{new.node} round {new.round}: {held}")


def judge_ended(
    progress: JobProgress,
    manifests: Mapping[tuple[str, int], VersionManifest],
    broken: Broken,
    *,
    hopeless: bool = False,
) -> None:
    """A job once all has come to rest: its end, and the chain of its versions. ``hopeless``: it fails everywhere."""
    job = progress.job_id
    if progress.open is not None:
        broken("an end is final", f"{job} is {progress.state} with round {progress.open.round} open")
    if hopeless and progress.state is JobState.COMPLETED:
        broken("a job that fails everywhere fails", f"{job}: {progress.reason}")
    if progress.state is JobState.FAILED and not hopeless:
        broken("trouble of the cluster is no failure of the job", f"{job}: {progress.reason}")
    versions = [manifests.get((job, version)) for version in range(progress.version + 1)]
    if any(manifest is None for manifest in versions):
        broken("versions form one chain", f"{job} has gaps: {[m and m.version for m in versions]}")
        return
    total = sum(parent.steps for manifest in versions if manifest for parent in manifest.parents)
    if total != progress.steps:
        broken("steps are those of the counted forks", f"{job} has {progress.steps}, its forks {total}")


def wanted_objects(
    progress: Mapping[str, JobProgress], manifests: Mapping[tuple[str, int], VersionManifest], keep_versions: int
) -> set[str]:
    """The objects of the versions that every job keeps; in a cluster at rest there are no others."""
    return {
        manifest.weights.name
        for (job, version), manifest in manifests.items()
        if job in progress and progress[job].version - keep_versions < version <= progress[job].version
    }
