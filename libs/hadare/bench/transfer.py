"""How fast weights go through the object store: our pipelined writer and reader beside nats-py's own, in one run."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hadare.runtime.bus import Objects
from hadare.runtime.embedded import EmbeddedNats
from hadare.runtime.nats_connection import NatsBackplane, NatsConfig, connect_nats
from hadare.wire.subjects import WEIGHTS

_PREFIX = "bench"
_CONNECT_S = 30.0
_ROOM = 8
"""The store's size, in files: the server deletes what was purged in its own time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """MB/s (10⁶ bytes), the best of the turns: ours, nats-py's, and a copy of the same file in the same folder.

    ``load``: processes that wanted one of the ``cores``, the mean of the last minute.
    """

    megabytes: float
    turns: int
    put_mb_s: float
    get_mb_s: float
    stock_put_mb_s: float
    stock_get_mb_s: float
    copy_mb_s: float
    load: float
    cores: int

    @property
    def put_ratio(self) -> float:
        return self.put_mb_s / self.stock_put_mb_s

    @property
    def get_ratio(self) -> float:
        return self.get_mb_s / self.stock_get_mb_s


def measure(folder: Path, megabytes: float, turns: int) -> Transfer:
    """Starts a server of its own in ``folder``. All take turns, so that a busy machine is busy for each of them."""
    source = folder / "source"
    size = round(megabytes * 1e6)
    with source.open("wb") as file:
        for start in range(0, size, 2**24):
            file.write(os.urandom(min(2**24, size - start)))
    server = EmbeddedNats(folder / "nats", sync_always=False)
    url = server.start_blocking()
    try:
        capacity = _ROOM * size + 2**30
        config = NatsConfig(url=url, prefix=_PREFIX, name="bench", capacity_bytes=capacity)
        best = asyncio.run(_turns(config, source, turns))
    finally:
        server.stop()
    return Transfer(
        megabytes=megabytes,
        turns=turns,
        put_mb_s=megabytes / best["put"],
        get_mb_s=megabytes / best["get"],
        stock_put_mb_s=megabytes / best["stock put"],
        stock_get_mb_s=megabytes / best["stock get"],
        copy_mb_s=megabytes / best["copy"],
        load=os.getloadavg()[0],
        cores=os.cpu_count() or 1,
    )


async def _turns(config: NatsConfig, source: Path, turns: int) -> dict[str, float]:
    backplane = await connect_nats(config, timeout_s=_CONNECT_S)
    best: dict[str, float] = {}
    try:
        for _ in range(turns):
            spent = {**await _ours(backplane.objects(WEIGHTS), source), **await _stock(backplane, source)}
            spent["copy"] = await _timed(lambda: asyncio.to_thread(shutil.copyfile, source, source.with_name("copy")))
            best = {name: min(seconds, best.get(name, seconds)) for name, seconds in spent.items()}
    finally:
        await backplane.close()
    return best


async def _ours(objects: Objects, source: Path) -> dict[str, float]:
    begun = time.monotonic()
    ref = await objects.put(source, "ours")
    put = time.monotonic() - begun
    get = await _timed(lambda: objects.get(ref, source.with_name("copy")))
    await objects.delete(ref.name)
    return {"put": put, "get": get}


async def _stock(backplane: NatsBackplane, source: Path) -> dict[str, float]:
    """As nats-py is meant to be used: from a file, into a file."""
    store: Any = await backplane.link.client.jetstream().object_store(f"{_PREFIX}_{WEIGHTS}")

    async def put() -> None:
        with source.open("rb") as file:
            await store.put("stock", file)

    async def get() -> None:
        with source.with_name("copy").open("wb") as file:
            await store.get("stock", writeinto=file)

    spent = {"stock put": await _timed(put), "stock get": await _timed(get)}
    await store.delete("stock")
    return spent


async def _timed(work: Callable[[], Awaitable[Any]]) -> float:
    begun = time.monotonic()
    await work()
    return time.monotonic() - begun
