"""What a gang over five unequal devices reaches: its speed against theirs, its gradient, and how soon it ends as one.

What the numbers mean and which were found: docs/explanation/gangs.md.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from hadare.bench.gang_processes import Gang, Work, a_gang
from hadare.forking.consolidation import MODEL_PREFIX
from hadare.training.forkclient import ForkServer
from hadare.training.gang import Alone
from hadare.training.granted import Grant
from hadare.training.protocol import ForkSpec
from hadare.training.tensorfile import Reader
from hadare.training.trainer import Trainer

SPEEDS = (10, 6, 4, 3, 1)
BATCH = 4 * sum(SPEEDS)
_WORKLOAD = "hadare.training.workloads.digits:Digits"
# One update of plain descent with rate 1: what the parameters lose is the gradient.
_DESCENT = {"lr": 1.0, "momentum": 0.0, "batch_norm": False}
_BALANCED, _EQUAL = "balanced, {ms} ms", "equal batches"
_UPDATES = 40
_SLOW_UPDATES = 12

Said = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Samples per second of a gang. ``reached`` is its part of what its devices do alone, one beside the other.

    ``update_ms`` and ``exchange_ms``: the mean time of an update, and what of it went to the exchange of gradients.
    """

    gang: str
    shares: tuple[int, ...]
    samples_per_s: float
    devices_samples_per_s: float
    reached: float
    update_ms: float
    exchange_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GangCost:
    """``reached``: of the sum of the devices, balanced with updates of 100 ms; ``reached_equal``: with equal batches.

    ``gradient_difference``: the largest of any parameter, relative to the largest gradient, from one device's.

    ``killed_s``: from the kill of a rank until every other has ended, of each rank in turn.
    """

    speeds: tuple[Speed, ...]
    reached: float
    reached_equal: float
    gradient_difference: float
    killed_s: tuple[float, ...]
    killed_s_median: float
    killed_s_max: float
    cores: int
    load: float


def measure(said: Said = lambda _: None) -> GangCost:
    """About a minute and a half, most of it emulated time."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="hadare-") as folder:
        return asyncio.run(_measure(Path(folder), said))


async def _measure(folder: Path, said: Said) -> GangCost:
    load = os.getloadavg()[0]
    server = await ForkServer.start([_WORKLOAD.partition(":")[0]])
    try:
        speeds = await _speeds(server, folder, said)
        difference = await _gradient_difference(server, folder)
        said(f"gradient differs by {difference:.1e} of the largest")
        killed = await _killed(server, folder, said)
    finally:
        await server.close()
    return GangCost(
        speeds=tuple(speeds),
        reached=next(speed.reached for speed in speeds if speed.gang == _BALANCED.format(ms=100)),
        reached_equal=next(speed.reached for speed in speeds if speed.gang == _EQUAL),
        gradient_difference=difference,
        killed_s=killed,
        killed_s_median=statistics.median(killed),
        killed_s_max=max(killed),
        cores=len(os.sched_getaffinity(0)),
        load=load,
    )


async def _speeds(server: ForkServer, folder: Path, said: Said) -> list[Speed]:
    """Balanced gangs whose updates take longer and longer, one of five whole batches, and one of equal batches."""
    spec, found = _spec(), []
    base = _base(spec, folder)
    equal = (BATCH // 5 + 1, *[BATCH // 5] * 3, BATCH - 4 * (BATCH // 5) - 1)
    balanced = tuple(BATCH // sum(SPEEDS) * speed for speed in SPEEDS)
    cases = [(_BALANCED.format(ms=ms), balanced, ms / 1e3, _UPDATES) for ms in (25, 50, 100, 200)]
    cases.append(("balanced, a batch a rank", tuple(5 * share for share in balanced), 0.1, _SLOW_UPDATES))
    cases.append((_EQUAL, equal, 0.1, _SLOW_UPDATES))
    async with a_gang(server, spec, len(SPEEDS)) as gang:
        await gang.train(Work(base=base, out=folder / "warm", shares=balanced, quota=5))
        for name, shares, batch_s, updates in cases:
            found.append(await _speed(gang, name, shares, batch_s, updates, base, folder))
            said(f"{name}: {found[-1].reached:.3f} of the sum of the devices")
    return found


async def _speed(
    gang: Gang, name: str, shares: tuple[int, ...], batch_s: float, updates: int, base: Path, folder: Path
) -> Speed:
    """``batch_s``: the time that the five take together for a batch, if nothing is lost."""
    rates = tuple(speed / sum(SPEEDS) / batch_s for speed in SPEEDS)
    steps = sum(shares) // BATCH
    done = await gang.train(Work(base=base, out=folder / "out", shares=shares, quota=updates * steps, rates=rates))
    together, alone = sum(shares) / done[0].update_s, BATCH / batch_s
    return Speed(
        gang=name,
        shares=shares,
        samples_per_s=together,
        devices_samples_per_s=alone,
        reached=together / alone,
        update_ms=done[0].update_s * 1e3,
        exchange_ms=done[0].exchange_s * 1e3,
    )


async def _gradient_difference(server: ForkServer, folder: Path) -> float:
    spec = _spec(**_DESCENT)
    base = _base(spec, folder)
    work = Work(base=base, out=folder / "together", shares=tuple(4 * speed for speed in SPEEDS), quota=1)
    async with a_gang(server, spec, len(SPEEDS)) as gang:
        await gang.train(work)
    one = Trainer(spec.workload, spec.config, spec.batch_size, spec.seed)
    one.load(base)
    one.train_in_gang(Grant(quota=1, data_seed=1), Alone(BATCH))
    one.save(folder / "alone")
    before, together, alone = (Reader(path) for path in (base, work.out, folder / "alone"))
    names = [name for name in before.specs if name.startswith(MODEL_PREFIX)]
    largest = max(float((before.tensor(name) - alone.tensor(name)).abs().max()) for name in names)
    return max(float((together.tensor(name) - alone.tensor(name)).abs().max()) for name in names) / largest


async def _killed(server: ForkServer, folder: Path, said: Said) -> tuple[float, ...]:
    spec, took = _spec(), []
    base = _base(spec, folder)
    rates = tuple(speed / sum(SPEEDS) / 0.05 for speed in SPEEDS)
    work = Work(base=base, out=folder / "never", shares=tuple(4 * speed for speed in SPEEDS), quota=10**9, rates=rates)
    for victim in range(len(SPEEDS)):
        async with a_gang(server, spec, len(SPEEDS)) as gang:
            took.append(await gang.killed(work, victim))
        said(f"rank {victim} killed: all others ended after {took[-1] * 1e3:.0f} ms")
    return tuple(took)


def _spec(**config: object) -> ForkSpec:
    return ForkSpec(workload=_WORKLOAD, config=dict(config), batch_size=BATCH)


def _base(spec: ForkSpec, folder: Path) -> Path:
    Trainer(spec.workload, spec.config, spec.batch_size, spec.seed).save(folder / "base")
    return folder / "base"
