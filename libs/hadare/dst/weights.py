"""Weights that are not trained but told apart: an object says what it was made of, so that a law can check it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from hadare.dst.plane import SimObjects
from hadare.machines.tracker_events import Consolidate, Consolidated, ForkKept


class ForkWeights(msgspec.Struct, frozen=True, tag="fork"):
    """What a fork made: of which lease and issue, on which base, in how many steps."""

    lease: str
    epoch: int
    base: str
    steps: int


class VersionWeights(msgspec.Struct, frozen=True, tag="version"):
    """A version: ``steps`` of the whole job so far, and the objects that it was made of."""

    job: str
    version: int
    steps: int
    base: str = ""
    parts: tuple[str, ...] = ()


Made = ForkWeights | VersionWeights


def pack(made: Made) -> bytes:
    return msgspec.json.encode(made)


def unpack(data: bytes) -> Made:
    return msgspec.json.decode(data, type=Made)  # type: ignore[arg-type, return-value, unused-ignore]


@dataclass(frozen=True)
class SimAverager:
    """The tracker's averager: reads the base and every fork, accepts all, and stores what it made of them."""

    objects: SimObjects

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
        weights = await self.objects.put_bytes(pack(made), f"{task.job_id}.v{task.version}")
        kept = tuple(
            ForkKept(fork=fork.fork, weight=fork.steps / total, delta_norm=1.0, agreement=1.0) for fork in task.forks
        )
        return Consolidated(at=0.0, job_id=task.job_id, round=task.round, weights=weights, kept=kept)
