"""A fork's end of the line to its agent."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from typing import NoReturn

from hadare.model.leases import Failure
from hadare.training.protocol import COMMANDS, Command, Failed, FrameReader, Report, Stop, frame

_LAST_WORD_S = 1.0


class Channel:
    """A fork's end of the line to its agent. When the agent hangs up, the process ends."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._frames = FrameReader(COMMANDS)
        self._waiting: deque[Command] = deque()
        self._sending = threading.Lock()

    def send(self, report: Report) -> None:
        with self._sending:
            self._line.sendall(frame(report))

    def last_word(self, failure: Failure) -> NoReturn:
        """Ends the process, from any thread and whatever the others do. What is being sent is waited for, not long."""
        if self._sending.acquire(timeout=_LAST_WORD_S):
            with contextlib.suppress(OSError):
                self._line.sendall(frame(Failed(failure=failure)))
        os._exit(1)

    def next(self) -> Command:
        """The next command, however long it takes."""
        while not self._waiting:
            self._read()
        return self._waiting.popleft()

    def stop_asked(self) -> float | None:
        """Until when (monotonic) a ``Stop`` that has come in wants the training to end. Does not wait."""
        while select.select([self._line], [], [], 0)[0]:
            self._read()
        for command in self._waiting:
            if isinstance(command, Stop):
                self._waiting.remove(command)
                return time.monotonic() + command.within_s
        return None

    def _read(self) -> None:
        data = self._line.recv(2**16)
        if not data:
            os._exit(0)
        self._waiting.extend(self._frames.feed(data))


class StopAsked:
    """Says again what was said once: a gang asks while it meets, and again while it trains."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._limit: float | None = None

    def __call__(self) -> float | None:
        if (limit := self._channel.stop_asked()) is not None:
            self._limit = limit if self._limit is None else min(self._limit, limit)
        return self._limit
