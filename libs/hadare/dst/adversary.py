"""Decides the fate of every message and write from the faults that are under way. The same seed, the same fates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from hadare.dst.scenario import Fault, Kind
from hadare.runtime.memory import Parcel

_LATENCY_S = (0.0005, 0.004)
_DELAY_S = 8.0
_REPEAT_S = 6.0
_LATE_S = 12.0
_INTERRUPTS = 0.25
GIVE_UP_S = 2.0
"""How long a client waits for an acknowledgement of the store."""


@dataclass(frozen=True, slots=True)
class WriteFate:
    """``lands_after_s``: None if it never does; ``acknowledged``: whether its writer hears of it in time."""

    lands_after_s: float | None
    acknowledged: bool


_WELL = WriteFate(0.0, acknowledged=True)
_UNACKNOWLEDGED = WriteFate(0.0, acknowledged=False)
_LOST = WriteFate(None, acknowledged=False)


class Adversary:
    """``begin`` and ``end`` faults; it answers for the network and for the store."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"adversary {seed}")
        self._faults: list[Fault] = []
        self.parcels = 0

    def begin(self, fault: Fault) -> None:
        self._faults.append(fault)

    def end(self, fault: Fault) -> None:
        if fault in self._faults:
            self._faults.remove(fault)

    def network(self, parcel: Parcel) -> Sequence[float]:
        """The ``network`` of a memory hub."""
        self.parcels += 1
        if not (self.reaches_bus(parcel.sender) and self.reaches_bus(parcel.receiver)):
            return ()
        if self._strikes(Kind.LOSS):
            return ()
        delays = [self._random.uniform(*_LATENCY_S)]
        if self._strikes(Kind.DELAY):
            delays[0] += self._random.uniform(0.0, _DELAY_S)
        if self._strikes(Kind.DOUBLING):
            delays.append(self._random.uniform(0.0, _REPEAT_S))
        return delays

    def write(self, owner: str) -> WriteFate:
        reached = self.reaches_bus(owner)
        if reached and not self._strikes(Kind.FLAKY_STORE):
            return _WELL
        late = WriteFate(self._random.uniform(0.0, _LATE_S), acknowledged=False)
        if not reached:
            return self._random.choice((_LOST, _LOST, late))
        return self._random.choice((_LOST, _UNACKNOWLEDGED, late))

    def read(self, owner: str) -> bool:
        """Whether a read is answered."""
        return self.reaches_bus(owner) and not self._strikes(Kind.FLAKY_STORE)

    def interrupts(self) -> bool:
        """Whether others go first just before an access to the store."""
        return self._random.random() < _INTERRUPTS

    def latency_s(self) -> float:
        """How long a write takes that goes well."""
        return self._random.uniform(*_LATENCY_S)

    def lag_s(self) -> float:
        """How long a watch holds back what it has seen."""
        return self._random.uniform(0.0, 3.0) if self._any(Kind.LAGGING_WATCH) else 0.0

    def reaches_bus(self, owner: str) -> bool:
        if not self._faults:
            return True
        if self._any(Kind.BUS_DOWN):
            return False
        return not any(fault.kind is Kind.PARTITION and fault.who == owner for fault in self._faults)

    def _any(self, kind: Kind) -> bool:
        return any(fault.kind is kind for fault in self._faults)

    def _strikes(self, kind: Kind) -> bool:
        if not self._faults:
            return False
        rate = max((fault.rate for fault in self._faults if fault.kind is kind), default=0.0)
        return rate > 0 and self._random.random() < rate
