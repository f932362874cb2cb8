"""How the ranks of a gang find each other: rank 0 listens at the address, the others call until it answers.

A rank says once which gang and rank it is, and rank 0 lets in only what belongs to its own gang. So a late rank of an
earlier gang at the same port is turned away, and whoever has not come is known by number.
"""

from __future__ import annotations

import contextlib
import ipaddress
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import psutil

from hadare.model.leases import GangRank
from hadare.training.gang_line import GangBroken, Kind, Line, Word
from hadare.training.granted import Revoked

_POLL_S = 0.1
_RETRY_S = 0.05
_LATER_S = 2.0
# Whoever connects and says nothing sensible is one of these; of more, the oldest is turned away.
_STRANGERS = 64
_HELLO = struct.Struct("!4s32sI?")
_MAGIC = b"HGG1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """Who meets. ``until`` (monotonic) is the time limit; ``revoked`` is asked meanwhile, and may shorten it."""

    part: GangRank
    name: str
    cuda: bool
    until: float
    revoked: Revoked

    @property
    def digest(self) -> bytes:
        """Of the gang: equal for its ranks alone."""
        shares = ",".join(map(str, self.part.shares))
        return sha256(f"{self.name}\n{shares}\n{self.part.address}".encode()).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """``lines`` by rank, as ``Lifeline`` wants them. ``port``: where the store is; ``cuda`` if every rank has it."""

    lines: dict[int, Line]
    port: int
    cuda: bool


def host_and_port(address: str) -> tuple[str, int]:
    """Raises ``GangBroken`` if the address is none."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise GangBroken(f"a gang cannot meet at {address!r}: that is not host:port")
    return host.strip("[]"), int(port)


def listen(host: str, port: int) -> socket.socket:
    """On the loopback interface alone if the host is one of it. Raises ``OSError``."""
    if is_loopback(host):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
    return socket.create_server(("", port), backlog=128)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def interface_of(lines: Iterable[Line]) -> str:
    """The network interface that lines of this rank run over, the loopback one only if all do; '' if none is known."""
    own = {str(line.socket.getsockname()[0]).removeprefix("::ffff:") for line in lines}
    outer = {address for address in own if not is_loopback(address)} or own
    names = (name for name, bound in psutil.net_if_addrs().items() if outer & {a.address for a in bound})
    return next(names, "")


def meet(party: Party, open_store: Callable[[], int]) -> Met:
    """Returns once all ranks are there. ``open_store`` is called on rank 0 then, and returns the store's port.

    Raises ``GangBroken`` naming the ranks that did not come in time, or that came and went.
    """
    return _Host(party).meet(open_store) if party.part.rank == 0 else _call(party)


@dataclass(slots=True)
class _Patience:
    """A time limit that a revocation shortens."""

    party: Party
    until: float = field(init=False)

    def __post_init__(self) -> None:
        self.until = self.party.until

    def over(self) -> bool:
        if (limit := self.party.revoked()) is not None:
            self.until = min(self.until, limit)
        return time.monotonic() >= self.until


class _Host:
    """Rank 0 of a gang that is not whole yet."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self._patience = _Patience(party)
        self._strangers: dict[socket.socket, bytes] = {}
        self._lines: dict[int, Line] = {}
        self._cuda = party.cuda

    def meet(self, open_store: Callable[[], int]) -> Met:
        try:
            with self._listen() as door, selectors.DefaultSelector() as selector:
                door.setblocking(False)
                selector.register(door, selectors.EVENT_READ)
                while len(self._lines) < self._party.part.world - 1:
                    self._check_time()
                    for key, _ in selector.select(_POLL_S):
                        self._serve(selector, key.fileobj, door)
            port = open_store()
        except BaseException:
            for line in self._lines.values():
                line.close()
            raise
        finally:
            for stranger in self._strangers:
                stranger.close()
        for line in self._lines.values():
            line.send(Word(Kind.MEET, int(self._cuda), port))
        return Met(lines=self._lines, port=port, cuda=self._cuda)

    def _listen(self) -> socket.socket:
        """The gang before at this port may still be leaving."""
        host, port = host_and_port(self._party.part.address)
        while True:
            try:
                return listen(host, port)
            except OSError as error:
                if self._patience.over():
                    message = f"the gang did not meet: rank 0 cannot listen at {self._party.part.address}: {error}"
                    raise GangBroken(message) from error
                time.sleep(_RETRY_S)

    def _check_time(self) -> None:
        if self._patience.over():
            missing = [rank for rank in range(1, self._party.part.world) if rank not in self._lines]
            raise GangBroken(f"the gang did not meet: {ranks(missing)} did not come in time")

    def _serve(self, selector: selectors.BaseSelector, ready: object, door: socket.socket) -> None:
        if ready is door:
            with contextlib.suppress(OSError):
                caller, _ = door.accept()
                self._receive(selector, caller)
            return
        assert isinstance(ready, socket.socket)
        if ready in self._strangers:
            self._ask(selector, ready)
        elif ready.fileno() >= 0:  # else it was turned away a moment ago
            self._watch(ready)

    def _receive(self, selector: selectors.BaseSelector, caller: socket.socket) -> None:
        if len(self._strangers) >= _STRANGERS:
            oldest = next(iter(self._strangers))
            selector.unregister(oldest)
            del self._strangers[oldest]
            oldest.close()
        caller.setblocking(False)
        self._strangers[caller] = b""
        selector.register(caller, selectors.EVENT_READ)

    def _ask(self, selector: selectors.BaseSelector, caller: socket.socket) -> None:
        """Takes a stranger's word as far as it has come, and lets it in or turns it away."""
        try:
            data = caller.recv(_HELLO.size - len(self._strangers[caller]))
        except OSError:
            data = b""
        said = self._strangers[caller] + data
        if data and len(said) < _HELLO.size:
            self._strangers[caller] = said
            return
        del self._strangers[caller]
        rank, cuda = self._known(said) if data else (0, False)
        if not rank:
            selector.unregister(caller)
            caller.close()
            return
        self._cuda = self._cuda and cuda
        self._lines[rank] = Line(caller)
        self._lines[rank].send(Word(Kind.ACCEPTED, rank))

    def _known(self, said: bytes) -> tuple[int, bool]:
        """The caller's rank, 0 if it is none of this gang that is still missing."""
        magic, digest, rank, cuda = _HELLO.unpack(said)
        fits = magic == _MAGIC and digest == self._party.digest and 0 < rank < self._party.part.world
        return (rank if fits and rank not in self._lines else 0), cuda

    def _watch(self, ready: socket.socket) -> None:
        """A rank that is waiting says nothing: this is its end."""
        rank = next(rank for rank, line in self._lines.items() if line.socket is ready)
        raise GangBroken(f"the gang did not meet: rank {rank} has ended before the others came")


def _call(party: Party) -> Met:
    """Every other rank: calls until rank 0 of its own gang answers, then waits for the others."""
    rank, patience = party.part.rank, _Patience(party)
    hello = _HELLO.pack(_MAGIC, party.digest, rank, party.cuda)
    while not patience.over():
        caller = _reach(party.part.address, hello)
        if caller is None:
            time.sleep(_RETRY_S)
            continue
        line = Line(caller)
        word = _await(line, patience)
        if word is None:
            line.close()  # rank 0 of another gang, or this is too early
            time.sleep(_RETRY_S)
        elif word.kind == Kind.ACCEPTED:
            return _wait(line, patience)
    raise GangBroken(f"the gang did not meet: rank 0 did not come to {party.part.address} in time")


def _reach(address: str, hello: bytes) -> socket.socket | None:
    where = host_and_port(address)
    try:
        caller = socket.create_connection(where, timeout=2.0)
    except OSError:
        return None
    try:
        caller.sendall(hello)
    except OSError:
        caller.close()
        return None
    return caller


def _wait(line: Line, patience: _Patience) -> Met:
    """Leaves later than rank 0 does, which would else hold this rank for the one that is missing."""
    word = _await(line, patience) or line.next(time.monotonic() + _LATER_S)
    if word is not None and word.kind == Kind.MEET and 0 < word.number < 2**16:
        return Met(lines={0: line}, port=word.number, cuda=bool(word.rank))
    gone = line.gone
    line.close()
    if gone:
        raise GangBroken("the gang did not meet: rank 0 has ended, or another rank did not come")
    raise GangBroken("the gang did not meet: another rank did not come in time, rank 0 knows which")


def _await(line: Line, patience: _Patience) -> Word | None:
    while not patience.over() and not line.gone:
        if (word := line.next(time.monotonic() + _POLL_S)) is not None:
            return word
    return None


def ranks(numbers: Sequence[int]) -> str:
    """``rank 3``, ``ranks 1, 3 and 4``; many are cut short."""
    shown = [str(number) for number in numbers[:16]]
    if len(shown) == 1:
        return f"rank {shown[0]}"
    rest = f" and {len(numbers) - 15} more" if len(numbers) > 16 else f" and {shown.pop()}"
    return f"ranks {', '.join(shown[:15])}{rest}"
