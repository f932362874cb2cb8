"""Gives a process a wall clock that jumps: python imports this at its start where the folder is on ``PYTHONPATH``.

The clock is off by as many seconds as the file ``CHAOS_WALL_CLOCK`` says at that moment. What tells the date in Python
is replaced: ``time.time``, ``time_ns``, ``gmtime``, ``localtime``, and ``now``, ``utcnow`` and ``today`` of
``datetime`` and ``date``. Monotonic clocks stay, as they do on a machine whose clock is set.
"""

from __future__ import annotations

import datetime
import importlib.machinery
import importlib.util
import os
import sys
import time
from contextlib import suppress
from datetime import date as _date
from datetime import datetime as _datetime
from pathlib import Path
from typing import Any, SupportsIndex

LOOK_S = 0.02
"""How long an offset is believed before the file is read again."""

_time, _gmtime, _localtime, _monotonic = time.time, time.gmtime, time.localtime, time.monotonic


class _Offset:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._known, self._until = 0.0, 0.0

    def seconds(self) -> float:
        now = _monotonic()
        if now >= self._until:
            self._until = now + LOOK_S
            with suppress(OSError, ValueError):
                self._known = float(self._path.read_text() or 0.0)
        return self._known


class _OfOriginal(type):
    """What the original made is of the replaced type, too."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.__mro__[1])

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.__mro__[1])


class _Date(_date, metaclass=_OfOriginal):
    @classmethod
    def today(cls) -> Any:
        return _date.fromtimestamp(time.time())  # noqa: DTZ012 - as the original does


class _Datetime(_datetime, metaclass=_OfOriginal):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return _datetime.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return _datetime.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        return _datetime.fromtimestamp(time.time())  # noqa: DTZ006 - as the original does


def install(path: Path) -> None:
    """Replaces the clocks of this process."""
    offset = _Offset(path)

    def gmtime(seconds: float | SupportsIndex | None = None) -> time.struct_time:
        return _gmtime(time.time() if seconds is None else seconds)

    def localtime(seconds: float | SupportsIndex | None = None) -> time.struct_time:
        return _localtime(time.time() if seconds is None else seconds)

    time.time = lambda: _time() + offset.seconds()
    time.time_ns = lambda: int((_time() + offset.seconds()) * 1e9)
    time.gmtime, time.localtime = gmtime, localtime
    datetime.datetime, datetime.date = _Datetime, _Date  # type: ignore[misc]


def run_other() -> None:
    """The next ``sitecustomize`` on the path, which this one hides."""
    here = Path(__file__).resolve().parent
    others = [folder for folder in sys.path if folder and Path(folder).resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if "CHAOS_WALL_CLOCK" in os.environ:
    install(Path(os.environ["CHAOS_WALL_CLOCK"]))
if __name__ == "sitecustomize":
    run_other()
