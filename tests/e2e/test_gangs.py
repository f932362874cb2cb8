"""Gangs of real processes: they train as one device would, and end as one, whatever ends one of them."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import signal
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import torch

from hadare.forking.consolidation import MODEL_PREFIX
from hadare.model.leases import GangRank
from hadare.training.forkclient import ForkProcess, ForkServer
from hadare.training.gang import Alone
from hadare.training.granted import Grant
from hadare.training.imports import put_first
from hadare.training.protocol import Done, Failed, ForkSpec, Progress, Ready, Report, Stop, Train
from hadare.training.tensorfile import Reader
from hadare.training.trainer import Trainer

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

HERE = Path(__file__).parent
TASKS = HERE / "gangs"
SCRIPT = "scripts_for_training:fits"
SHARES = (10, 6, 4, 3, 1)
SIZE = sum(SHARES)

_numbers = itertools.count()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server() -> AsyncIterator[ForkServer]:
    running = await ForkServer.start([])
    yield running
    assert await running.close()


@pytest.fixture(autouse=True)
def importable() -> None:
    put_first((str(TASKS),))


def a_spec(task: str, **more: Any) -> ForkSpec:
    workload = task if ":" in task else f"gang_tasks:{task}"
    return ForkSpec(
        workload=workload, batch_size=more.pop("batch_size", SIZE), path=(str(TASKS), str(HERE.parent)), **more
    )


def a_base(spec: ForkSpec, folder: Path) -> Path:
    a_trainer(spec).save(folder / "base")
    return folder / "base"


def a_trainer(spec: ForkSpec) -> Trainer:
    torch.set_num_threads(1)
    return Trainer(spec.workload, spec.config, spec.batch_size, spec.seed)


def a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@dataclass
class Rank:
    """A process and what it says, from one order to the next."""

    process: ForkProcess
    number: int

    async def until(self, *kinds: type[Report]) -> Any:
        async with asyncio.timeout(60):
            async for report in self.process:
                if isinstance(report, kinds):
                    return report
        raise AssertionError(f"rank {self.number} ended without a word: {self.process.exit}")


class Gang:
    """Ranks on one machine, with a lease each."""

    def __init__(self, ranks: list[Rank], shares: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.shares = shares
        self.address = f"127.0.0.1:{a_free_port()}"

    async def order(
        self, base: Path, folder: Path, *, only: tuple[int, ...] | None = None, name: str = "", **more: Any
    ) -> list[Path]:
        """Sends every rank its lease; returns where each would write."""
        name = name or f"a-gang-{next(_numbers)}"
        outs = [folder / f"{name}-{rank.number}" for rank in self.ranks]
        given = {"quota": 4, "remaining_s": 60.0, "data_seed": 7, "report_interval_s": 0.0, **more}
        for rank, out in zip(self.ranks, outs, strict=True):
            if only is None or rank.number in only:
                part = GangRank(rank=rank.number, shares=self.shares, address=self.address)
                order = Train(base=str(base), out=str(out), gang=part, gang_name=name, **given)
                await rank.process.send(order)
        return outs

    async def train(self, base: Path, folder: Path, **more: Any) -> tuple[list[Done], Path]:
        outs = await self.order(base, folder, **more)
        done = await asyncio.gather(*(rank.until(Done) for rank in self.ranks))
        return list(done), outs[0]

    async def failures(self) -> list[Any]:
        failed = await asyncio.gather(*(rank.until(Failed) for rank in self.ranks))
        return [report.failure for report in failed]

    async def kill(self) -> None:
        assert all(await asyncio.gather(*(rank.process.kill() for rank in self.ranks)))


async def a_gang(server: ForkServer, spec: ForkSpec, shares: tuple[int, ...] = SHARES, **env: str) -> Gang:
    async def a_rank(number: int) -> Rank:
        name = f"gang.{os.getpid()}.{next(_numbers)}"
        process = await server.spawn(name, spec, env={"WHO": str(number), **env}, on_output=print)
        rank = Rank(process, number)
        await rank.until(Ready)
        return rank

    return Gang(list(await asyncio.gather(*map(a_rank, range(len(shares))))), shares)


def alone(spec: ForkSpec, base: Path, samples: int, out: Path, *, steps: int = 4) -> Path:
    """What one device makes of it, with the whole of each batch."""
    trainer = a_trainer(spec)
    trainer.load(base)
    trainer.train_in_gang(Grant(quota=steps, data_seed=7), Alone(samples))
    trainer.save(out)
    return out


def distance(one: Path, other: Path) -> float:
    """The largest difference between two models' parameters, buffers of batch normalisation apart."""
    names = [n for n in Reader(one).specs if n.startswith(MODEL_PREFIX) and "running" not in n and "tracked" not in n]
    assert names
    return max(float((Reader(one).tensor(n) - Reader(other).tensor(n)).abs().max()) for n in names)


@pytest.mark.parametrize("task", ["Plain", "Adam"])
async def test_a_gang_that_splits_a_batch_makes_the_model_of_one_device(
    server: ForkServer, tmp_path: Path, task: str
) -> None:
    spec = a_spec(task)
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec)
    done, made = await gang.train(base, tmp_path, quota=20)
    assert {(d.steps, d.samples, d.updates, d.reason) for d in done} == {(20, 20 * SIZE, 20, "quota")}
    assert distance(made, alone(spec, base, SIZE, tmp_path / "alone", steps=20)) < 2e-6
    assert distance(made, base) > 0.01
    await gang.kill()


async def test_a_gang_of_five_takes_a_batch_each_and_makes_the_model_of_one_device_with_all_five(
    server: ForkServer, tmp_path: Path
) -> None:
    spec = a_spec("Plain")
    base = a_base(spec, tmp_path)
    shares = tuple(5 * share for share in SHARES)
    gang = await a_gang(server, spec, shares)
    done, made = await gang.train(base, tmp_path, quota=20)
    assert {(d.steps, d.updates) for d in done} == {(20, 4)}
    assert distance(made, alone(spec, base, 5 * SIZE, tmp_path / "alone", steps=20)) < 2e-6
    await gang.kill()


async def test_the_gradient_of_a_large_model_is_summed_too(server: ForkServer, tmp_path: Path) -> None:
    spec = a_spec("Plain", config={"width": 30_000})
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec, (10, 6, 8))
    _, made = await gang.train(base, tmp_path, quota=2)
    assert distance(made, alone(spec, base, SIZE, tmp_path / "alone", steps=2)) < 2e-6
    await gang.kill()


async def test_batch_normalisation_trains_however_the_samples_fall(server: ForkServer, tmp_path: Path) -> None:
    """Five ranks and five batches of 16: the second batch begins with the last sample of rank 0's share."""
    spec = a_spec("Plain", config={"norm": True}, batch_size=16)
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec, (17, 30, 17, 12, 4))
    done, _ = await gang.train(base, tmp_path, quota=11)
    assert {(d.steps, d.updates) for d in done} == {(11, 3)}
    await gang.kill()


async def test_only_rank_0_writes_and_a_warm_gang_trains_again(server: ForkServer, tmp_path: Path) -> None:
    spec = a_spec("Plain")
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec, (16, 8))
    first, made = await gang.train(base, tmp_path)
    second, again = await gang.train(base, tmp_path)
    assert [bool(d.bytes) for d in (*first, *second)] == [True, False, True, False]
    assert distance(made, again) == 0.0
    await gang.kill()


def addresses() -> list[str]:
    """Those at which other machines reach this one, if there are any; else the loopback interface by its name."""
    bound = (a for each in psutil.net_if_addrs().values() for a in each if a.family == socket.AF_INET)
    return [a.address for a in bound if not a.address.startswith("127.")][:1] or ["localhost"]


@pytest.mark.parametrize("host", [*addresses(), "localhost", "[::1]"])
async def test_ranks_meet_at_any_address_of_the_first_ones_node(server: ForkServer, tmp_path: Path, host: str) -> None:
    spec = a_spec("Plain")
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec, (12, 12))
    gang.address = f"{host}:{a_free_port()}"
    done, _ = await gang.train(base, tmp_path)
    assert [d.steps for d in done] == [4, 4]
    await gang.kill()


async def test_batch_normalisation_sees_parts_and_its_statistics_are_averaged(
    server: ForkServer, tmp_path: Path
) -> None:
    spec = a_spec("Plain", config={"norm": True})
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec, (16, 8))
    _, made = await gang.train(base, tmp_path, quota=1)
    rows = next(a_trainer(spec).task.batches(7))[0]
    with torch.no_grad():
        hidden = a_trainer(spec).model[0](rows)
    expected = 0.1 * (hidden[:16].mean(dim=0) * 16 + hidden[16:].mean(dim=0) * 8) / 24
    assert torch.allclose(Reader(made).tensor("model.1.running_mean"), expected, atol=1e-6)
    await gang.kill()


async def test_a_killed_rank_ends_the_others_at_once(server: ForkServer, tmp_path: Path) -> None:
    spec = a_spec("Plain")
    base = a_base(spec, tmp_path)
    for victim in (2, 0):
        gang = await a_gang(server, spec)
        await gang.order(base, tmp_path, quota=10**9)
        await asyncio.gather(*(rank.until(Progress) for rank in gang.ranks))
        await gang.ranks[1].until(Progress)  # they are training
        os.kill(gang.ranks[victim].process.pid, signal.SIGKILL)
        begun = time.monotonic()
        others = [rank for rank in gang.ranks if rank.number != victim]
        failed = [(await rank.until(Failed)).failure for rank in others]
        await asyncio.gather(*(rank.process.wait() for rank in others))
        took = time.monotonic() - begun
        assert {failure.kind for failure in failed} == {"gang"}
        assert all(f"rank {victim} has ended" in failure.message for failure in failed)
        assert took < 5.0
        await gang.kill()


async def test_a_killed_rank_is_missed_though_what_it_has_forked_lives_on(server: ForkServer, tmp_path: Path) -> None:
    spec = a_spec("Forking")
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec, (12, 12))
    await gang.order(base, tmp_path, quota=10**9)
    for _ in range(2):
        await gang.ranks[1].until(Progress)
    os.kill(gang.ranks[1].process.pid, signal.SIGKILL)
    failure = (await gang.ranks[0].until(Failed)).failure
    assert "rank 1 has ended" in failure.message
    await gang.kill()


async def test_a_rank_that_freezes_ends_the_gang_once_it_has_been_silent(server: ForkServer, tmp_path: Path) -> None:
    spec = a_spec("Freezing")
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec, (12, 8, 4), HADARE_GANG_SILENCE_S="1.5")
    await gang.order(base, tmp_path)
    for number in (0, 2):
        failure = (await gang.ranks[number].until(Failed)).failure
        assert (failure.kind, "rank 1 is silent" in failure.message) == ("gang", True)
    await gang.kill()


async def test_a_rank_that_hangs_is_named_once_the_lease_is_over(server: ForkServer, tmp_path: Path) -> None:
    spec = a_spec("Hanging")
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec, (12, 8, 4))
    await gang.order(base, tmp_path, remaining_s=1.0)
    for number in (0, 2):
        failure = (await gang.ranks[number].until(Failed)).failure
        assert (failure.kind, "rank 1 hangs" in failure.message) == ("gang", True)
    await gang.kill()


async def test_a_rank_that_never_comes_is_named(server: ForkServer, tmp_path: Path) -> None:
    spec = a_spec("Plain")
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec, (8, 8, 4, 4))
    await gang.order(base, tmp_path, remaining_s=1.0, only=(0, 2))
    first, third = [(await gang.ranks[number].until(Failed)).failure for number in (0, 2)]
    assert (first.kind, third.kind) == ("gang", "gang")
    assert first.message == "GangBroken: the gang did not meet: ranks 1 and 3 did not come in time"
    assert "did not come" in third.message
    await gang.kill()


async def test_ranks_without_a_rank_0_say_so(server: ForkServer, tmp_path: Path) -> None:
    spec = a_spec("Plain")
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec, (12, 12))
    await gang.order(base, tmp_path, only=(1,), remaining_s=0.5)
    failure = (await gang.ranks[1].until(Failed)).failure
    assert (failure.kind, f"rank 0 did not come to {gang.address}" in failure.message) == ("gang", True)
    await gang.kill()


async def test_ranks_meet_however_late_the_first_comes_and_whatever_strangers_say(
    server: ForkServer, tmp_path: Path
) -> None:
    spec = a_spec("Plain")
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec, (8, 8, 8))
    host, port = gang.address.split(":")
    with socket.create_server((host, int(port))) as occupied:  # an earlier gang that is still leaving, say
        await gang.order(base, tmp_path, only=(0, 1), name="late")
        caller, _ = await asyncio.to_thread(occupied.accept)
        caller.close()
    with socket.socket() as stranger:
        while stranger.connect_ex((host, int(port))):  # rank 0 listens for rank 2, which is yet to be told
            await asyncio.to_thread(select.select, [], [], [], 0.01)
        stranger.sendall(b"x" * 1000)
        await gang.order(base, tmp_path, only=(2,), name="late")
        done = await asyncio.gather(*(rank.until(Done) for rank in gang.ranks))
    assert [d.steps for d in done] == [4, 4, 4]
    await gang.kill()


async def test_the_rank_whose_loss_is_not_finite_has_the_reason(server: ForkServer, tmp_path: Path) -> None:
    spec = a_spec("Diverging")
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec)
    await gang.order(base, tmp_path, quota=10)
    failures = await gang.failures()
    assert [failure.kind for failure in failures] == ["gang", "gang", "not_finite", "gang", "gang"]
    assert "after 2 steps" in failures[2].message
    assert all("rank 2" in failure.message for failure in (*failures[:2], *failures[3:]))
    await gang.kill()


async def test_the_rank_that_raises_has_the_reason(server: ForkServer, tmp_path: Path) -> None:
    spec = a_spec("Raising")
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec)
    await gang.order(base, tmp_path)
    failures = await gang.failures()
    assert [failure.kind for failure in failures] == ["gang", "gang", "gang", "exception", "gang"]
    assert failures[3].message == "RuntimeError: no such luck"
    assert all("rank 3 has" in failure.message for failure in (*failures[:3], failures[4]))
    await gang.kill()


async def test_a_stop_on_one_rank_stops_all_after_the_same_update(server: ForkServer, tmp_path: Path) -> None:
    spec = a_spec("Plain")
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec)
    await gang.order(base, tmp_path, quota=10**9)
    await gang.ranks[3].until(Progress)
    await gang.ranks[3].until(Progress)
    await gang.ranks[3].process.send(Stop())
    done = await asyncio.gather(*(rank.until(Done) for rank in gang.ranks))
    assert {d.reason for d in done} == {"revoked"}
    assert len({d.steps for d in done}) == 1
    assert done[0].steps > 0
    await gang.kill()


async def test_the_clock_stops_all_after_the_same_update(server: ForkServer, tmp_path: Path) -> None:
    spec = a_spec("Plain")
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec, (8, 16))
    done, _ = await gang.train(base, tmp_path, quota=10**9, remaining_s=1.0)
    assert {d.reason for d in done} == {"clock"}
    assert len({d.steps for d in done}) == 1
    await gang.kill()


async def test_emulated_devices_of_several_types_are_as_fast_together_as_their_shares_say(
    server: ForkServer, tmp_path: Path
) -> None:
    spec = a_spec("Plain")
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec)
    name, outs, rates = "unequal", tmp_path / "out", [0.5 * share for share in SHARES]
    for rank, rate in zip(gang.ranks, rates, strict=True):
        part = GangRank(rank=rank.number, shares=SHARES, address=gang.address)
        order = Train(
            base=str(base),
            out=str(outs),
            quota=20,
            remaining_s=60.0,
            data_seed=1,
            gang=part,
            gang_name=name,
            nominal_rate=rate,
        )
        await rank.process.send(order)
    done = await asyncio.gather(*(rank.until(Done) for rank in gang.ranks))
    assert [d.throughput for d in done] == pytest.approx(rates, rel=0.1)
    assert done[0].update_s == pytest.approx(2 / SIZE, rel=0.5)
    assert all(0 < d.exchange_s < d.update_s for d in done)
    assert len({round(d.exchange_s, 4) for d in done}) == 1
    await gang.kill()


async def test_ranks_that_read_different_data_are_told(server: ForkServer, tmp_path: Path) -> None:
    spec = a_spec("Diverse")
    base = a_base(spec, tmp_path)
    gang = await a_gang(server, spec, (12, 12))
    await gang.order(base, tmp_path)
    failures = await gang.failures()
    reasons = [failure.message for failure in failures if failure.kind == "exception"]
    assert "GangMismatch: rank 1 of the gang has another first batch than rank 0" in reasons[0]
    await gang.kill()


async def test_a_script_is_told_that_it_cannot_train_in_a_gang(server: ForkServer, tmp_path: Path) -> None:
    spec = a_spec(SCRIPT)
    gang = await a_gang(server, spec, (12, 12))
    await gang.order(tmp_path / "base", tmp_path)
    failures = await gang.failures()
    assert all("a script cannot train in a gang" in failure.message for failure in failures)
    await gang.kill()
