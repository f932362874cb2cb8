"""Ranks of a gang as threads of one process, for tests of what they exchange."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from hadare.model.leases import GangRank
from hadare.training.gang import Gang

T = TypeVar("T")


class _Table:
    """Where threads lay down their tensors, and find the others'."""

    def __init__(self, world: int) -> None:
        self.rows: list[Tensor] = [torch.empty(0)] * world
        self.barrier = threading.Barrier(world, timeout=20)


class ThreadGang(Gang):
    """Counts the sums that go through it and notes the longest."""

    def __init__(self, part: GangRank, table: _Table) -> None:
        super().__init__(part, torch.device("cpu"))
        self._table = table
        self.sums = 0
        self.longest = 0

    def sum(self, tensor: Tensor) -> None:
        self.sums, self.longest = self.sums + 1, max(self.longest, tensor.numel())
        tensor.copy_(torch.stack(self.gather(tensor)).sum(dim=0))

    def gather(self, tensor: Tensor) -> list[Tensor]:
        self._table.rows[self.rank] = tensor.clone()
        self._table.barrier.wait()
        rows = [row.clone() for row in self._table.rows]
        assert len({(row.dtype, row.shape) for row in rows}) == 1
        self._table.barrier.wait()
        return rows


def in_a_gang(shares: Sequence[int], work: Callable[[ThreadGang], T]) -> list[T]:
    """What ``work`` returns on every rank."""
    table = _Table(len(shares))
    parts = [GangRank(rank=rank, shares=tuple(shares), address="here:1") for rank in range(len(shares))]
    with ThreadPoolExecutor(len(shares)) as threads:
        return list(threads.map(lambda part: work(ThreadGang(part, table)), parts))
