"""Gangs of emulated devices on this machine: real processes of a fork server, as a node agent would run them."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hadare.model.errors import Broken
from hadare.model.leases import Failure, GangRank
from hadare.training.forkclient import ForkProcess, ForkServer
from hadare.training.protocol import Done, Failed, ForkSpec, Progress, Ready, Report, Train

_WAIT_S = 300.0

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a gang trains: ``rates`` are the emulated steps/s of its ranks, none if they are not held to any."""

    base: Path
    out: Path
    shares: tuple[int, ...]
    quota: int
    rates: tuple[float, ...] = ()


class Gang:
    """Warm processes, one a rank."""

    def __init__(self, processes: Sequence[ForkProcess]) -> None:
        self._processes = list(processes)

    async def train(self, work: Work) -> list[Done]:
        """Every rank's word at its end. Raises ``Broken`` if one of them fails."""
        await self._order(work)
        found = await asyncio.gather(*(_until(process, Done) for process in self._processes))
        return [report for report in found if isinstance(report, Done)]

    async def killed(self, work: Work, victim: int) -> float:
        """Seconds from the kill of a rank in the middle of its training until every other process has ended."""
        await self._order(work)
        await asyncio.gather(*(_until(process, Progress) for process in self._processes))
        await _until(self._processes[victim], Progress)  # of steps that were made
        others = [process for rank, process in enumerate(self._processes) if rank != victim]
        os.kill(self._processes[victim].pid, signal.SIGKILL)
        begun = time.monotonic()
        await asyncio.gather(*(process.wait() for process in others))
        took = time.monotonic() - begun
        failures = await asyncio.gather(*(_last_words(process) for process in others))
        if any(failure is None or failure.kind != "gang" for failure in failures):
            raise Broken(f"rank {victim} was killed, and the others said {failures}")
        return took

    async def _order(self, work: Work) -> None:
        name, address = f"bench-{os.getpid()}-{next(_numbers)}", f"127.0.0.1:{_free_port()}"
        for rank, process in enumerate(self._processes):
            order = Train(
                base=str(work.base),
                out=str(work.out),
                quota=work.quota,
                remaining_s=_WAIT_S,
                data_seed=1,
                nominal_rate=work.rates[rank] if work.rates else None,
                report_interval_s=0.1,
                gang=GangRank(rank=rank, shares=work.shares, address=address),
                gang_name=name,
            )
            await process.send(order)


@asynccontextmanager
async def a_gang(server: ForkServer, spec: ForkSpec, world: int) -> AsyncIterator[Gang]:
    """Processes that are ready to train, and ended afterwards."""
    names = [f"bench.{os.getpid()}.{next(_numbers)}" for _ in range(world)]
    processes = [await server.spawn(name, spec, on_output=lambda _: None) for name in names]
    try:
        await asyncio.gather(*(_until(process, Ready) for process in processes))
        yield Gang(processes)
    finally:
        await asyncio.gather(*(process.kill() for process in processes))


async def _until(process: ForkProcess, kind: type[Report]) -> Report:
    async with asyncio.timeout(_WAIT_S):
        async for report in process:
            if isinstance(report, kind):
                return report
            if isinstance(report, Failed):
                raise Broken(f"a rank failed: {report.failure.message}")
    raise Broken(f"a rank ended: {process.exit}")


async def _last_words(process: ForkProcess) -> Failure | None:
    async for report in process:
        if isinstance(report, Failed):
            return report.failure
    return None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
