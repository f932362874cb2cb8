"""Which of several allocators or trackers acts. A lease on the leader's record, measured on each process's own clock.

The leader renews its record by compare-and-set. Whoever sees the record unchanged for a whole lease takes it over with
a higher epoch, which fences all that the predecessor still does. A leader that cannot renew stops acting before its
lease is over (``sure`` waits), and goes on, in the same reign, if nobody has taken over when the store is back.
No clock is compared with another's, and no key expires by itself: see docs/decisions/0011-fault-suite.md.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, replace

import structlog

from hadare.model.errors import Broken, Conflict, Unavailable
from hadare.model.rounds import Leader
from hadare.runtime.bus import Entry, Table

log = structlog.get_logger("hadare.election")


@dataclass(frozen=True, slots=True)
class Term:
    """Times in seconds. A successor acts at most ``lease_s + 2 · poll_s`` after the leader's last renewal.

    ``margin_s``: how long before its lease is over a leader that could not renew it stops acting. ``return_s``: how
    long a process waits for signs of life of a leader of its own name, which it usually is the restart of.
    """

    lease_s: float = 2.5
    renew_s: float = 0.6
    poll_s: float = 0.4
    margin_s: float = 0.4
    return_s: float = 1.0


class Leadership:
    """``acquire``, run ``keep`` beside the work, wait for ``sure`` before every act, and ``release`` at the end."""

    def __init__(self, leaders: Table[Leader], holder: str, term: Term | None = None) -> None:
        self._leaders = leaders
        self._term = term or Term()
        self._mine = Leader(holder=holder, epoch=0, nonce=uuid.uuid4().hex)
        self._revision = 0
        self._sure_until = 0.0
        self._renewed = asyncio.Event()

    @property
    def epoch(self) -> int:
        """The number of this reign, higher than any before."""
        return self._mine.epoch

    async def acquire(self) -> int:
        """Stands by until nobody leads, takes over, and returns the epoch."""
        seen, since, said = -1, 0.0, False
        while True:
            asked_at, known = _now(), None
            try:
                known = await self._leaders.get("")
                revision = known.revision if known else 0
                if revision != seen:
                    seen, since = revision, asked_at
                if asked_at - since >= self._patience_s(known):
                    return await self._take(known, asked_at)
            except Unavailable as error:
                log.warning("the leader's record cannot be read", error=str(error))
                seen = -1  # the leader could not renew it either: it gets a whole lease again
            except Conflict:
                seen = -1
            if not said and known is not None:
                log.info("standing by", leader=known.record.holder, epoch=known.record.epoch)
                said = True
            await asyncio.sleep(self._term.poll_s)

    async def keep(self) -> None:
        """Renews for ever. Raises ``Broken`` once another has taken over."""
        while True:
            await asyncio.sleep(self._term.renew_s)
            asked_at = _now()
            try:
                async with asyncio.timeout(self._term.lease_s):
                    self._revision = await self._leaders.update("", self._mine, self._revision)
            except (Unavailable, TimeoutError) as error:
                log.warning(
                    "the lease is not renewed", sure_for_s=round(self._sure_until - _now(), 2), error=str(error)
                )
                continue
            except Conflict:
                if not await self._find_mine():
                    continue
            self._extend(asked_at)

    async def sure(self) -> None:
        """Returns while nobody else can lead; otherwise once the lease is renewed."""
        while _now() >= self._sure_until:
            self._renewed.clear()
            await self._renewed.wait()

    async def release(self) -> None:
        """Leaves at once to a successor, if that can be said; without this it waits for the lease to run out."""
        try:
            async with asyncio.timeout(1.0):
                await self._leaders.update("", replace(self._mine, holder=""), self._revision)
        except (Unavailable, Conflict, TimeoutError) as error:
            log.info("leadership was not handed over", error=str(error))

    def _patience_s(self, known: Entry[Leader] | None) -> float:
        if known is None or not known.record.holder:
            return 0.0
        return self._term.return_s if known.record.holder == self._mine.holder else self._term.lease_s

    async def _take(self, known: Entry[Leader] | None, asked_at: float) -> int:
        """Raises ``Conflict`` if another was faster."""
        self._mine = replace(self._mine, epoch=known.record.epoch + 1 if known else 1)
        if known is None:
            self._revision = await self._leaders.create("", self._mine)
        else:
            self._revision = await self._leaders.update("", self._mine, known.revision)
        self._extend(asked_at)
        log.info("leads", epoch=self._mine.epoch, before=known.record.holder if known else "")
        return self._mine.epoch

    async def _find_mine(self) -> bool:
        """After a lost compare-and-set: a renewal that timed out may have landed. Raises ``Broken`` if deposed."""
        try:
            known = await self._leaders.get("")
        except Unavailable:
            return False
        if known is None or known.record.nonce != self._mine.nonce or known.record.epoch != self._mine.epoch:
            other = f"{known.record.holder} at epoch {known.record.epoch}" if known else "nobody"
            raise Broken(f"epoch {self._mine.epoch} is over: {other} leads")
        self._revision = known.revision
        return False

    def _extend(self, asked_at: float) -> None:
        self._sure_until = asked_at + self._term.lease_s - self._term.margin_s
        self._renewed.set()


def _now() -> float:
    return asyncio.get_running_loop().time()
