"""The lines between a gang's rank 0 and the others: who is there, who has gone. No tensors pass through them.

Every message has a fixed length. The lines outlive a hanging collective: ``Lifeline`` watches them in a thread of its
own.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from hadare.model.errors import HadareError

BEAT_S = 0.5
# A fork has 10 s and more from the end of its lease (machines.lease_state): the gang names who is late before that.
LATE_S = 5.0
# How long the end of a line may wait for the other side to have read the last word on it.
_LINGER_S = 0.3

MESSAGE = struct.Struct("!BIQ")


class Kind(IntEnum):
    """``ACCEPTED``: the gang knows the rank. ``MEET``: all are there; the number is what they meet at next."""

    ACCEPTED = 1
    MEET = 2
    BEAT = 3
    BROKEN = 4
    BYE = 5


class Cause(IntEnum):
    """Why a gang broke, of the rank that is named."""

    CUT = 1
    SILENT = 2
    FAILED = 3
    LATE = 4


_CAUSES: Mapping[int, str] = {
    Cause.CUT: "has ended",
    Cause.SILENT: "is silent",
    Cause.FAILED: "has failed",
    Cause.LATE: "hangs: the lease is over, and it has not come to the exchange that the others wait in",
}


class GangBroken(HadareError):
    """The gang has come to an end, or did not come to be, through another rank than this."""


def broken_by(rank: int, cause: int) -> GangBroken:
    """The words of a gang's end."""
    return GangBroken(f"the gang ended: rank {rank} {_CAUSES.get(cause, 'has failed')}")


@dataclass(frozen=True, slots=True)
class Word:
    """One message. ``number``: of ``MEET`` a port, of ``BEAT`` the exchanges come to, of ``BROKEN`` the cause."""

    kind: int
    rank: int = 0
    number: int = 0


class Line:
    """One end of a line. Not blocking; a message that does not go out at once is left out, for silence tells."""

    def __init__(self, ends: socket.socket) -> None:
        ends.setblocking(False)
        ends.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = ends
        _LINES.add(self)
        self._rest = b""
        self._sending = threading.Lock()
        self.heard = time.monotonic()
        self.arrived = 0
        self.gone = False

    def send(self, word: Word) -> None:
        with self._sending, contextlib.suppress(OSError):
            self.socket.send(MESSAGE.pack(word.kind, word.rank, word.number))

    def read(self) -> Iterator[Word]:
        """What has come in; ``gone`` is set if the line has ended."""
        try:
            data = self.socket.recv(2**12)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.gone = not data
        self.heard = time.monotonic()
        self._rest += data
        while (word := self._first()) is not None:
            yield word

    def _first(self) -> Word | None:
        """The first message of those that have come in whole."""
        if len(self._rest) < MESSAGE.size:
            return None
        word = Word(*MESSAGE.unpack_from(self._rest))
        self._rest = self._rest[MESSAGE.size :]
        return word

    def next(self, until: float) -> Word | None:
        """Waits for one message; ``None`` if the line ends or the time is over."""
        if (word := self._first()) is not None:  # several may come at once
            return word
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            while not self.gone and (left := until - time.monotonic()) > 0:
                selector.select(left)
                for word in self.read():
                    return word
        return None

    def close(self) -> None:
        self.socket.close()


_LINES: weakref.WeakSet[Line] = weakref.WeakSet()


def _let_go() -> None:
    """A process that user code forks (to load data, say) must not hold the lines of one that has died."""
    for line in list(_LINES):
        line.close()


os.register_at_fork(after_in_child=_let_go)

OnBroken = Callable[[GangBroken], None]


class Lifeline:
    """A thread that beats, and ends the process by ``on_broken`` as soon as a rank has gone, whatever else goes on.

    ``lines`` by rank: rank 0 has one to each other rank, each other rank one to rank 0. ``on_broken`` is called in the
    thread, at most once.
    """

    def __init__(self, rank: int, lines: Mapping[int, Line], silence_s: float, on_broken: OnBroken) -> None:
        self._rank = rank
        self._lines = dict(lines)
        self._silence_s = silence_s
        self._on_broken = on_broken
        self._deciding = threading.Lock()
        self._over = False
        self._leaves = False
        self._leaving: set[int] = set()
        self._all_leave = threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._arrived = 0
        self.deadline = float("inf")
        now = time.monotonic()
        for line in self._lines.values():
            line.heard = now
        self._thread = threading.Thread(target=self._watch, name="gang lifeline", daemon=True)
        self._thread.start()

    def arrive(self) -> None:
        """This rank has come to an exchange, and waits for the others from now on."""
        self._arrived += 1

    def leave(self) -> None:
        """Returns once every rank has called it; nothing that any rank does after that breaks the gang."""
        self.arrive()
        self._leaves = True
        if self._rank != 0:
            self._say(Word(Kind.BYE, self._rank))
        self._wake.send(b"x")
        self._all_leave.wait()
        self._stop()

    def fail(self) -> None:
        """This process ends by an exception: tells the others, and watches no longer."""
        with self._deciding:
            over, self._over = self._over, True
        if not over:
            self._say(Word(Kind.BROKEN, self._rank, Cause.FAILED))

    def await_verdict(self) -> None:
        """A collective has failed: gives the thread the time to find out why, and to end the process."""
        self._thread.join(self._silence_s + 2 * BEAT_S)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for rank, line in self._lines.items():
                selector.register(line.socket, selectors.EVENT_READ, rank)
            beat_at = 0.0
            while not self._over:
                now = time.monotonic()
                if now >= beat_at:
                    beat_at = now + BEAT_S
                    self._say(Word(Kind.BEAT, self._rank, self._arrived))
                    self._look_for_faults(now)
                for key, _ in selector.select(max(0.0, beat_at - time.monotonic())):
                    if key.data is None:
                        self._woken.recv(16)
                    elif self._hear(key.data):
                        selector.unregister(key.fileobj)
                self._let_leave()

    def _hear(self, rank: int) -> bool:
        """True if the line has ended."""
        line = self._lines[rank]
        for word in line.read():
            if word.kind == Kind.BEAT:
                line.arrived = word.number
            elif word.kind == Kind.BROKEN:
                self._break(word.rank, word.number)
            elif word.kind == Kind.BYE:
                self._leaving.add(rank)
        if line.gone and rank not in self._leaving:
            self._break(rank, Cause.CUT)
        return line.gone

    def _let_leave(self) -> None:
        if self._leaves and len(self._leaving) == len(self._lines) and not self._all_leave.is_set():
            if self._rank == 0:
                self._say(Word(Kind.BYE))
            self._all_leave.set()

    def _look_for_faults(self, now: float) -> None:
        for rank, line in self._lines.items():
            if rank not in self._leaving and now - line.heard > self._silence_s:
                self._break(rank, Cause.SILENT)
        if self._rank == 0 and now > self.deadline + LATE_S and (late := self._latest()) is not None:
            self._break(late, Cause.LATE)

    def _latest(self) -> int | None:
        """The rank that the others wait for, if they do."""
        arrived = {0: self._arrived, **{rank: line.arrived for rank, line in self._lines.items()}}
        rank = min(arrived, key=lambda rank: (arrived[rank], rank))
        return rank if arrived[rank] < max(arrived.values()) else None

    def _break(self, rank: int, cause: int) -> None:
        with self._deciding:
            if self._over:
                return
            self._over = True
        if self._rank == 0:
            self._say(Word(Kind.BROKEN, rank, cause))
            linger(self._lines.values())
        self._on_broken(broken_by(rank, cause))

    def _say(self, word: Word) -> None:
        for line in self._lines.values():
            line.send(word)

    def _stop(self) -> None:
        self._over = True
        self._wake.send(b"x")
        self._thread.join()
        self.close()

    def close(self) -> None:
        """Lets go of the lines; the last word on them arrives first."""
        linger(self._lines.values())
        self._wake.close()
        self._woken.close()


def linger(lines: Iterable[Line]) -> None:
    """Closes lines so that what was said last is read: a line that is closed with unread messages loses its own."""
    lines = list(lines)
    for line in lines:
        with contextlib.suppress(OSError):
            line.socket.shutdown(socket.SHUT_WR)
    until = time.monotonic() + _LINGER_S
    for line in lines:
        while line.next(until) is not None:
            continue
        line.close()
