"""A gang: the processes that train one fork in lockstep, from where they meet to where they part.

Why it is built so: docs/decisions/0013-gangs.md and docs/explanation/gangs.md. Nothing is pickled on the way: tensors
of known shape and messages of known length are all that ranks send to one another.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from hadare.model.leases import GangRank
from hadare.training.gang_line import GangBroken, Lifeline, OnBroken
from hadare.training.gang_meeting import Met, Party, host_and_port, interface_of, is_loopback, listen, meet
from hadare.training.granted import Revoked, never

__all__ = ["Alone", "Gang", "GangBroken", "Limits", "join"]

# A collective that hangs ends through the lines; torch's own limit is for what nobody thought of.
_COLLECTIVE = timedelta(minutes=30)
_STORE = timedelta(seconds=30)
# Gloo sums around a ring: 2·(ranks − 1) messages, one after the other. Where the time of a message is all that counts,
# two are better, to rank 0 and back. Measured with five processes on two busy cores: 6 ms instead of 30.
_SMALL_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``meet_s``: how long ranks wait for one another. ``silence_s``: after which a rank is taken for dead."""

    meet_s: float = 60.0
    silence_s: float = 10.0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """As a job's ``env`` says: ``HADARE_GANG_MEET_S``, ``HADARE_GANG_SILENCE_S``. Raises ``ValueError``."""
        given = {name: environment.get(f"HADARE_GANG_{name.upper()}", "") for name in ("meet_s", "silence_s")}
        return cls(**{name: float(value) for name, value in given.items() if value})


class Gang:
    """What a rank does together with the others. ``device``: where tensors must lie that it exchanges."""

    def __init__(self, part: GangRank, device: torch.device) -> None:
        self.part = part
        self.device = device

    @property
    def rank(self) -> int:
        return self.part.rank

    @property
    def world(self) -> int:
        return self.part.world

    def limit(self, deadline: float) -> None:
        """The lease ends at ``deadline`` (monotonic): a rank that hangs is noticed soon after."""

    def sum(self, tensor: Tensor) -> None:
        """Makes ``tensor`` the sum of every rank's."""

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, all of one shape and type."""
        return [tensor]

    def numbers(self, *own: int) -> list[tuple[int, ...]]:
        """Every rank's whole numbers (64 bits each)."""
        rows = self.gather(torch.tensor(own, dtype=torch.int64, device=self.device))
        return [tuple(int(number) for number in row.tolist()) for row in rows]

    def leave(self) -> None:
        """Waits until every rank leaves."""


class Alone(Gang):
    """One device that does what a gang would: it has the whole of each batch."""

    def __init__(self, samples: int, device: torch.device | None = None) -> None:
        """``samples`` are the batch of one update."""
        part = GangRank(rank=0, shares=(samples,), address="nowhere:0")
        super().__init__(part, device or torch.device("cpu"))


class _Joined(Gang):
    """A rank of several, between meeting and parting."""

    def __init__(self, part: GangRank, device: torch.device, line: Lifeline) -> None:
        super().__init__(part, device)
        self._line = line
        self._over_gloo = dist.get_backend() == "gloo"

    def limit(self, deadline: float) -> None:
        self._line.deadline = deadline

    def sum(self, tensor: Tensor) -> None:
        with self._together():
            if self._over_gloo and tensor.nbytes * (self.world - 1) <= _SMALL_BYTES:
                self._sum_at_rank_0(tensor)
            else:
                dist.all_reduce(tensor)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        rows = [torch.empty_like(tensor) for _ in range(self.world)]
        with self._together():
            dist.all_gather(rows, tensor)
        return rows

    def leave(self) -> None:
        self._line.leave()

    def _sum_at_rank_0(self, tensor: Tensor) -> None:
        if self.rank > 0:
            dist.send(tensor, 0)
            dist.recv(tensor, 0)
            return
        rows = tensor.new_empty(self.world - 1, tensor.numel())
        _await([dist.irecv(row, rank) for rank, row in enumerate(rows, start=1)])
        tensor += rows.sum(dim=0)
        _await([dist.isend(tensor, rank) for rank in range(1, self.world)])

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """A collective. If it fails, the line knows whose fault it was, sooner or a little later, and ends this."""
        self._line.arrive()
        try:
            yield
        except RuntimeError as error:
            self._line.await_verdict()
            raise GangBroken(f"the gang ended: ranks lost each other: {error}"[:4096]) from error


def _await(transfers: Iterable[dist.Work | None]) -> None:
    for transfer in transfers:
        if transfer is not None:
            transfer.wait()


class join:  # noqa: N801 - used as a function: ``with join(...) as gang``
    """Meets the other ranks, and parts from them at the end: ``with join(...) as gang``.

    Entering raises ``GangBroken`` if they do not meet. While inside, ``on_broken`` is called in another thread as soon
    as a rank is lost, and must end the process. An exception that leaves the block is made known to the others.
    """

    def __init__(
        self,
        part: GangRank,
        name: str,
        device: torch.device,
        *,
        until: float,
        on_broken: OnBroken,
        revoked: Revoked = never,
        limits: Limits | None = None,
    ) -> None:
        """``until`` (monotonic): the end of the lease. ``name``: the gang's, which no other has ever had."""
        self._limits = limits or Limits()
        self._cuda = device.type == "cuda"
        until = min(until, time.monotonic() + self._limits.meet_s)
        self._party = Party(part=part, name=name, cuda=self._cuda, until=until, revoked=revoked)
        self._name = name
        self._own = device
        self._on_broken = on_broken
        self._store: TCPStore | None = None
        self._line: Lifeline | None = None

    def __enter__(self) -> Gang:
        part = self._party.part
        if part.world == 1:
            return Gang(part, self._own)
        met = meet(self._party, self._open_store)
        self._line = Lifeline(part.rank, met.lines, self._limits.silence_s, self._on_broken)
        try:
            self._form_group(met)
        except RuntimeError as error:
            self._line.await_verdict()
            raise GangBroken(f"the gang did not meet: {error}"[:4096]) from error
        return _Joined(part, self._own if met.cuda else torch.device("cpu"), self._line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Without an error the gang has to have left already (``Gang.leave``)."""
        if self._line is None:
            return
        if error is None:
            dist.destroy_process_group()
            self._store = None
        else:
            self._line.fail()

    def _open_store(self) -> int:
        host, _ = host_and_port(self._party.part.address)
        door = listen(host, 0)
        port = int(door.getsockname()[1])
        host = host if is_loopback(host) else "127.0.0.1"  # a node need not reach itself as others do
        self._store = TCPStore(
            host, port, is_master=True, wait_for_workers=False, timeout=_STORE, master_listen_fd=door.detach()
        )
        return port

    def _form_group(self, met: Met) -> None:
        part = self._party.part
        host, _ = host_and_port(part.address)
        if self._store is None:
            self._store = TCPStore(host, met.port, is_master=False, wait_for_workers=False, timeout=_STORE)
        with _interface(interface_of(met.lines.values())):
            dist.init_process_group(
                "nccl" if met.cuda else "gloo",
                store=PrefixStore(self._name, self._store),
                rank=part.rank,
                world_size=part.world,
                timeout=_COLLECTIVE,
            )


@contextlib.contextmanager
def _interface(name: str) -> Iterator[None]:
    """Gloo listens where the host's name leads to, which need not be where the others are. What is set stays."""
    variable = "GLOO_SOCKET_IFNAME"
    if not name or variable in os.environ:
        yield
        return
    os.environ[variable] = name
    try:
        yield
    finally:
        del os.environ[variable]
