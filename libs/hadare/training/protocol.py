"""What a node agent, its fork server and the forks say to one another on one machine: typed messages in msgpack.

Every message is ``[name, fields]``; on a stream each is preceded by its length. Nothing is pickled, and the length is
bounded, since user code runs at the other end.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgpack
import msgspec

from hadare.model.errors import HadareError
from hadare.model.leases import Failure, GangRank

ARTIFACTS_VARIABLE = "HADARE_ARTIFACTS"
"""Names the folder of a fork whose files are handed in with its results."""

EndReason = Literal["quota", "clock", "revoked"]
"""Why a fork stopped training by itself."""

# Well below what one packet of a local socket may hold.
MAX_MESSAGE_BYTES = 2**17
_LENGTH = struct.Struct("!I")


class ProtocolError(HadareError):
    """The other end sent something that is not one of its messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkSpec:
    """What a fork's process is made for: a job's task on a place. It keeps them for its life.

    ``path`` are folders to import user code from, before the installed packages.
    """

    workload: str
    config: dict[str, Any] = field(default_factory=dict)
    batch_size: int = 1
    seed: int = 0
    device: str = "cpu"
    threads: int = 1
    path: tuple[str, ...] = ()


# Agent to fork.


@dataclass(frozen=True, slots=True, kw_only=True)
class Init:
    """Write version 0, built from the job's seed or with the weights of ``start``, to ``out``. Answered by ``Done``."""

    out: str
    start: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Load ``base``, train, write the result to ``out``. Answered by ``Progress``…, ``Done``.

    ``remaining_s`` counts from the receipt. With ``evaluate_base`` the base is evaluated first (``Evaluated``). With
    ``bf16`` the result is handed in as what changed, in half the bytes. With ``gang`` the fork is one rank of it,
    ``gang_name`` tells the gang from every other, and only rank 0 writes ``out``.
    """

    base: str
    out: str
    quota: int
    remaining_s: float
    data_seed: int
    base_sha256: str = ""
    schedule_from: float = 0.0
    schedule_to: float = 0.0
    evaluate_base: bool = False
    bf16: bool = False
    nominal_rate: float | None = None
    report_interval_s: float = 1.0
    gang: GangRank | None = None
    gang_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Load ``base`` and evaluate it. Answered by ``Evaluated``, then ``Done``."""

    base: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the training within ``within_s`` and hand back what was done; between two commands it means nothing."""

    within_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Leave, once what is running has ended."""


# Fork to agent.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The task is imported and its model built; ``seconds`` since the fork of the process."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """At most one in ``report_interval_s``; ``phase`` as in ``StepReport``."""

    phase: str
    steps: int = 0
    loss: float | None = None
    steps_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Metrics of the base."""

    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command has ended well. ``bytes`` is the length of the file written, if any.

    ``throughput`` leaves the warm-up out; ``phases_ms`` says where the time between the steps went. ``update_s`` and
    ``exchange_s`` as in ``ForkResult``.
    """

    steps: int = 0
    samples: int = 0
    updates: int = 0
    trained_s: float = 0.0
    throughput: float = 0.0
    update_s: float = 0.0
    exchange_s: float = 0.0
    loss: float | None = None
    reason: EndReason | None = None
    out: str = ""
    bytes: int = 0
    phases_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The fork's last word: its state is not to be trusted, so the process ends."""

    failure: Failure


# Agent to fork server (with the fork's channel and output as file descriptors), and back.


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """Fork a process. ``process_id`` is unique for ever: the process and all that it starts carry it."""

    process_id: str
    spec: ForkSpec
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The server has imported what it was asked to. ``failed`` says why a module could not be."""

    pid: int
    importable: tuple[str, ...]
    failed: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawned:
    """A fork lives; ``started`` is its start time in clock ticks, which tells it from a later holder of its pid."""

    process_id: str
    pid: int
    started: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """A fork's process has ended, with ``code`` or by ``signal``."""

    process_id: str
    pid: int = 0
    code: int = 0
    signal: int = 0


Command = Init | Train | Evaluate | Stop | Exit
Report = Ready | Progress | Evaluated | Done | Failed
ServerReport = Hello | Spawned | Exited
Message = Command | Report | ServerReport | Spawn

Known = Mapping[str, type[Any]]
COMMANDS: Known = {kind.__name__: kind for kind in (Init, Train, Evaluate, Stop, Exit)}
REPORTS: Known = {kind.__name__: kind for kind in (Ready, Progress, Evaluated, Done, Failed)}
SERVER_REPORTS: Known = {kind.__name__: kind for kind in (Hello, Spawned, Exited)}
REQUESTS: Known = {Spawn.__name__: Spawn}


def encode(message: Message) -> bytes:
    """Raises ``ProtocolError`` if the message is too long."""
    body: bytes = msgpack.packb([type(message).__name__, msgspec.to_builtins(message)])
    if len(body) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"{type(message).__name__} of {len(body)} bytes is over {MAX_MESSAGE_BYTES}")
    return body


def decode(body: bytes, known: Known) -> Any:
    """One of the ``known`` messages. Raises ``ProtocolError``."""
    try:
        document = msgpack.unpackb(body)
    except ValueError as error:
        raise ProtocolError(f"not msgpack: {error}") from error
    if not (isinstance(document, list) and len(document) == 2 and document[0] in known):
        raise ProtocolError(f"not one of {', '.join(known)}")
    try:
        return msgspec.convert(document[1], known[document[0]])
    except msgspec.ValidationError as error:
        raise ProtocolError(f"{document[0]}: {error}") from error


def frame(message: Message) -> bytes:
    """A message as it goes on a stream."""
    body = encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a stream into messages, however it arrives."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The messages that ``data`` completes. Raises ``ProtocolError``; the stream is of no use after that."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_MESSAGE_BYTES:
                raise ProtocolError(f"a message of {length} bytes is over {MAX_MESSAGE_BYTES}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(decode(bytes(self._buffer[_LENGTH.size : end]), self._known))
            del self._buffer[:end]
        return messages
