"""Holds transfers to a rate: bytes are taken as they pass, and whoever took too many waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Pace:
    """``bytes_per_s`` for all transfers of a process together; 0: no limit. Threads may share it."""

    def __init__(self, bytes_per_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = bytes_per_s
        self._clock = clock
        self._free_at = 0.0
        self._lock = threading.Lock()

    def take(self, count: int) -> float:
        """Seconds to wait before the next bytes. An idle time is not saved up."""
        if self._rate <= 0:
            return 0.0
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now) + count / self._rate
            return self._free_at - now
