"""Weights that are not trained but told apart: an object says what it was made of, so that a law can check it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from hadare.dst.plane import SimObjects
from hadare.forking.outer import AVERAGE, CANDIDATES
from hadare.machines.tracker_events import Candidate, Consolidate, Consolidated, ForkKept
from hadare.model.jobs import ObjectRef


class ForkWeights(msgspec.Struct, frozen=True, tag="fork"):
    """What a fork made: of which lease and issue, on which base, in how many steps."""

    lease: str
    epoch: int
    base: str
    steps: int


class VersionWeights(msgspec.Struct, frozen=True, tag="version"):
    """A version: ``steps`` of the whole job so far, what it was made of, and ``how`` (a guard's candidate)."""

    job: str
    version: int
    steps: int
    base: str = ""
    parts: tuple[str, ...] = ()
    how: str = AVERAGE


Made = ForkWeights | VersionWeights


def pack(made: Made) -> bytes:
    return msgspec.json.encode(made)


def unpack(data: bytes) -> Made:
    return msgspec.json.decode(data, type=Made)  # type: ignore[arg-type, return-value, unused-ignore]


@dataclass(frozen=True)
class SimAverager:
    """The tracker's averager: reads the base and every fork, accepts all, and stores what it made of them."""

    objects: SimObjects

    async def fetch_ahead(self, job_id: str, round_number: int, fork: int, ref: ObjectRef) -> None:
        """It keeps no files."""

    async def expect(self, job_id: str, round_number: int, forks: int, base: ObjectRef) -> None:
        """There is nothing to hear."""

    async def forget(self, job_id: str) -> None:
        """It keeps nothing."""

    async def consolidate(self, task: Consolidate) -> Consolidated:
        base = unpack(await self.objects.get_bytes(task.base))
        assert isinstance(base, VersionWeights)
        for fork in task.forks:
            await self.objects.get_bytes(fork.object)
        total = sum(fork.steps for fork in task.forks)
        made = VersionWeights(
            job=task.job_id,
            version=task.version,
            steps=base.steps + total,
            base=task.base.name,
            parts=tuple(fork.object.name for fork in task.forks),
        )
        parts = {fork.fork: fork.steps / total for fork in task.forks}
        stored = {
            how: await self.objects.put_bytes(pack(replace(made, how=how)), f"{task.job_id}.v{task.version}")
            for how in (CANDIDATES if task.how.guard else (AVERAGE,))
        }
        return Consolidated(
            at=0.0,
            job_id=task.job_id,
            round=task.round,
            weights=stored[AVERAGE],
            kept=tuple(ForkKept(fork=f, weight=w, delta_norm=1.0, agreement=1.0) for f, w in parts.items()),
            candidates={how: Candidate(weights=ref, parts=parts) for how, ref in stored.items()},
        )
