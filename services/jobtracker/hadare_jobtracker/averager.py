"""The adapter to the weights: fetches base and forks, has them averaged by the torch kernel, and stores the version."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from hadare.forking.outer import AVERAGE, outer_of
from hadare.machines.tracker_events import Candidate, Consolidate, Consolidated, ForkKept
from hadare.model.errors import HadareError
from hadare.model.jobs import ObjectRef
from hadare.runtime.bus import Objects, Subscription
from hadare.training import patches
from hadare.training.patches import PatchError

if TYPE_CHECKING:
    from hadare.training.averaging import Accepted, Consolidation


log = structlog.get_logger("hadare.jobtracker")

MOST_AHEAD_BYTES = 2**28
"""Of results that were fetched before their consolidation, of all jobs: the folder may be in memory."""

# A first result holds an optimiser's states that its base does not: so many times as large it may be, and a bit.
_MOST_GROWTH = 8
_MOST_EXTRA_BYTES = 2**26
# Of what is noted of a version's tensors, and characters of each.
_MOST_NOTES, _MOST_NOTE = 8, 300
# A result's header differs from its base's.
_HEADER_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class _Coming:
    """A result that is being fetched, or was, for the consolidation of its round."""

    task: asyncio.Task[None]
    bytes: int


@dataclass(frozen=True, slots=True)
class _Made:
    """What became of a round's forks, by candidate; ``changes``: a patch that makes the only one of its base."""

    candidates: Mapping[str, tuple[Path, Consolidation]]
    changes: Path | None = None


class Averager(Protocol):
    """Makes a version of a round's forks. Raises ``HadareError`` or ``OSError`` if that could not be done now."""

    async def consolidate(self, task: Consolidate) -> Consolidated: ...

    async def fetch_ahead(self, job_id: str, round_number: int, fork: int, ref: ObjectRef) -> None:
        """Fetches a fork's result while others of its round are still on their way; if it cannot, nothing is lost."""
        ...

    async def expect(self, job_id: str, round_number: int, forks: int, base: ObjectRef) -> None:
        """The round has opened: hears its results while they are stored, where the store can and they are small."""
        ...

    async def forget(self, job_id: str) -> None:
        """The job has ended: drops what is kept for its next version, once none is being made any more."""
        ...


class WeightsAverager:
    """The real one: a folder for each consolidation, the arithmetic in a thread, each job's newest version at hand."""

    def __init__(self, objects: Objects, work_dir: Path, at_once: int = 1) -> None:
        self._objects = objects
        self._work_dir = work_dir
        self._slots = asyncio.Semaphore(at_once)
        self._at_work: dict[str, asyncio.Lock] = {}
        self._coming: dict[str, dict[Path, _Coming]] = {}
        self._tidying: dict[str, asyncio.Task[None]] = {}
        self._expected: dict[str, Subscription] = {}
        shutil.rmtree(work_dir, ignore_errors=True)
        work_dir.mkdir(parents=True, exist_ok=True)

    async def consolidate(self, task: Consolidate) -> Consolidated:
        folder = self._work_dir / task.job_id
        round_folder = folder / str(task.round)
        async with self._at_work.setdefault(task.job_id, asyncio.Lock()), self._slots:
            await self.tidied(task.job_id)
            await asyncio.to_thread(_only_folder, round_folder)
            # If it fails, what was fetched stays for the next attempt.
            made = await self._consolidate(task, folder, round_folder)
            self._tidying[task.job_id] = asyncio.create_task(self._tidy(task.job_id, round_folder))
            return made

    async def tidied(self, job_id: str) -> None:
        """Waits until nothing is left of the job's last consolidation, which is not waited for by its forks."""
        tidying = self._tidying.pop(job_id, None)
        if tidying is not None:
            await tidying

    async def _tidy(self, job_id: str, round_folder: Path) -> None:
        await self._expect_no_more(job_id)
        await self._drop_coming(job_id)
        await asyncio.to_thread(shutil.rmtree, round_folder, ignore_errors=True)

    async def expect(self, job_id: str, round_number: int, forks: int, base: ObjectRef) -> None:
        await self._expect_no_more(job_id)
        folder, most = self._work_dir / job_id / str(round_number), forks * (base.bytes + _HEADER_BYTES)
        try:
            expected = await self._objects.expect(f"{job_id}.{round_number}", folder, most)
        except (HadareError, OSError) as error:
            log.info("results are read when they are stored", job_id=job_id, reason=str(error))
            return
        self._expected[job_id] = expected

    async def _expect_no_more(self, job_id: str) -> None:
        expected = self._expected.pop(job_id, None)
        if expected is not None:
            await expected.stop()

    async def fetch_ahead(self, job_id: str, round_number: int, fork: int, ref: ObjectRef) -> None:
        path = _fork_path(self._work_dir / job_id / str(round_number), fork, ref)
        held = sum(one.bytes for files in self._coming.values() for one in files.values())
        if path in self._coming.get(job_id, {}) or held + ref.bytes > MOST_AHEAD_BYTES:
            return
        try:
            await self._come(job_id, path, ref)
        except (HadareError, OSError) as error:
            log.info("a result was not fetched ahead", job_id=job_id, fork=fork, reason=str(error))

    def _come(self, job_id: str, path: Path, ref: ObjectRef) -> asyncio.Task[None]:
        """The one fetch of a result, whoever wants it first; another if that has failed."""
        coming = self._coming.setdefault(job_id, {})
        if path not in coming or _has_failed(coming[path].task):
            coming[path] = _Coming(asyncio.create_task(self._fetch(ref, path)), ref.bytes)
        return coming[path].task

    async def warm_up(self) -> None:
        """Imports torch ahead of the first round's end, which would otherwise wait for it."""
        await asyncio.to_thread(import_module, "hadare.training.averaging")

    async def forget(self, job_id: str) -> None:
        async with self._at_work.setdefault(job_id, asyncio.Lock()):
            await self.tidied(job_id)
            await self._expect_no_more(job_id)
            await self._drop_coming(job_id)
            await asyncio.to_thread(shutil.rmtree, self._work_dir / job_id, ignore_errors=True)
        self._at_work.pop(job_id, None)

    async def _consolidate(self, task: Consolidate, folder: Path, round_folder: Path) -> Consolidated:
        base = await self._base(task.base, folder)
        paths = [_fork_path(round_folder, fork.fork, fork.object) for fork in task.forks]
        await asyncio.gather(
            *(self._come(task.job_id, path, fork.object) for fork, path in zip(task.forks, paths, strict=True))
        )
        made = await asyncio.to_thread(_make, task, base, paths, round_folder)
        done = made.candidates[AVERAGE][1]
        candidates = await self._store(task, made.candidates, folder) if done.accepted else {}
        return Consolidated(
            at=0.0,
            job_id=task.job_id,
            round=task.round,
            weights=candidates[AVERAGE].weights if candidates else None,
            kept=tuple(_kept(fork) for fork in done.accepted),
            rejected=done.rejected,
            candidates=candidates,
            changes=await self._store_changes(task, made.changes) if made.changes else None,
            notes=_told(task, done.notes),
        )

    async def _drop_coming(self, job_id: str) -> None:
        """What was fetched ahead is read, or of no use; what of it is still under way as well."""
        tasks = [one.task for one in self._coming.pop(job_id, {}).values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _base(self, ref: ObjectRef, folder: Path) -> Path:
        """The base's file: usually the version that was made here a round ago."""
        path = folder / f"{ref.sha256}.safetensors"
        await self._fetch(ref, path)
        return path

    async def _fetch(self, ref: ObjectRef, path: Path) -> None:
        """Not again what this process has fetched, or made, already: it is there only if it was whole."""
        if not await asyncio.to_thread(_is_there, path):
            await self._objects.get(ref, path)

    async def _store_changes(self, task: Consolidate, patch: Path) -> ObjectRef | None:
        """Nodes that hold the base need no more than this. Without it they fetch the version, which is whole."""
        try:
            return await self._objects.put(patch, f"{version_label(task)}.changes")
        except HadareError as error:
            log.info("a version's changes were not stored", job_id=task.job_id, reason=str(error))
            return None

    async def _store(
        self, task: Consolidate, made: Mapping[str, tuple[Path, Consolidation]], folder: Path
    ) -> dict[str, Candidate]:
        """Whichever of them becomes the version, it is here when the next one is made."""
        stored = {}
        for name, (path, what) in made.items():
            ref = await self._objects.put(path, version_label(task))
            stored[name] = Candidate(weights=ref, parts={fork.fork: fork.weight for fork in what.accepted})
        places = [(made[name][0], folder / f"{one.weights.sha256}.safetensors") for name, one in stored.items()]
        await asyncio.to_thread(_keep_only, places)
        return stored


def version_label(task: Consolidate) -> str:
    return f"{task.job_id}.v{task.version}"


def _make(task: Consolidate, base: Path, paths: Sequence[Path], folder: Path) -> _Made:
    """Everything between the results on disk and the versions on disk, in one visit of a thread."""
    from hadare.training.averaging import (
        ForkFile,
        Options,
        consolidate,
        consolidate_candidates,
    )  # torch, on first use

    _make_whole(paths, base, task.base.sha256)
    files = [
        ForkFile(fork=fork.fork, path=path, steps=fork.steps, attempt=fork.attempt, sha256=fork.object.sha256)
        for fork, path in zip(task.forks, paths, strict=True)
    ]
    options = Options(
        outer=outer_of(task.how),
        ema_half_life=task.how.ema_half_life,
        max_norm_ratio=task.how.max_norm_ratio,
        base_sha256=task.base.sha256,
    )
    if task.how.guard is not None:
        return _Made(consolidate_candidates(base, files, folder, options))
    out = folder / "version.safetensors"
    done = consolidate(base, files, out, options)
    return _Made({AVERAGE: (out, done)}, _changes(out, base, task.base.sha256) if done.accepted else None)


def _told(task: Consolidate, notes: Sequence[str]) -> tuple[str, ...]:
    """The first of them, and how many more there are."""
    if notes:
        log.warning("tensors without a mean", job_id=task.job_id, version=task.version, notes=list(notes[:_MOST_NOTES]))
    more = [f"… and {len(notes) - _MOST_NOTES} more"] if len(notes) > _MOST_NOTES else []
    return (*(note[:_MOST_NOTE] for note in notes[:_MOST_NOTES]), *more)


def _kept(fork: Accepted) -> ForkKept:
    return ForkKept(
        fork=fork.fork,
        weight=fork.weight,
        delta_norm=fork.delta_norm,
        agreement=fork.agreement,
        transport_error=fork.transport_error,
    )


def _changes(version: Path, base: Path, base_sha256: str) -> Path | None:
    """A patch that makes the version of its base, if it would be much smaller than the version."""
    out = version.with_name("changes")
    return out if patches.make(version, base, out, base_sha256=base_sha256) else None


def _make_whole(paths: Sequence[Path], base: Path, base_sha256: str) -> None:
    """Results that came as patches of the base. One that makes nothing stays what it is, and is rejected as such."""
    most = _MOST_GROWTH * base.stat().st_size + _MOST_EXTRA_BYTES
    for path in paths:
        try:
            if patches.header_of(path) is not None:
                patches.apply(path, base, path, base_sha256=base_sha256, most_bytes=most)
        except PatchError as error:
            log.warning("a result makes no file", file=path.name, reason=str(error))


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _is_there(path: Path) -> bool:
    """Else there is a folder for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.exists()


def _fork_path(round_folder: Path, fork: int, ref: ObjectRef) -> Path:
    return round_folder / f"fork-{fork}.{ref.sha256}.safetensors"


def _keep_only(new: Sequence[tuple[Path, Path]]) -> None:
    """Moves each file to its place and removes the older versions there."""
    for old in new[0][1].parent.glob("*.safetensors"):
        old.unlink(missing_ok=True)
    for path, place in new:
        path.replace(place)


def _only_folder(folder: Path) -> None:
    """Makes the folder of a round, and removes those of earlier rounds that were given up."""
    folder.mkdir(parents=True, exist_ok=True)
    for other in folder.parent.iterdir():
        if other.is_dir() and other != folder:
            shutil.rmtree(other, ignore_errors=True)
