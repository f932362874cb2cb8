"""Looks at a running cluster through its gateway, again and again, and shows what it sees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.live import Live

from hadare.client import HadareClient
from hadare.local.view import Seen, line, picture
from hadare.model.errors import Rejected, Unavailable
from hadare.wire.api import JobStatus

_LOOK_EVERY_S = 0.5
_LINE_EVERY_S = 5.0


class Watcher:
    """Shows the cluster until the given jobs have ended: a live picture on a terminal, else a line now and then."""

    def __init__(self, client: HadareClient, directory: Path, console: Console, plain: bool) -> None:
        self._client = client
        self._directory = directory
        self._console = console
        self._live = not plain and console.is_terminal
        self._began = time.monotonic()

    async def until_ended(self, jobs: Sequence[str], title: str, going_on: Callable[[], bool]) -> tuple[JobStatus, ...]:
        """The last states of ``jobs``; returns early when ``going_on`` says no."""
        last_line = -_LINE_EVERY_S
        seen: Seen | None = None
        with ExitStack() as stack:
            live = stack.enter_context(Live(console=self._console, auto_refresh=False)) if self._live else None
            while going_on():
                seen = await self._look(jobs) or seen
                if seen is not None and live is not None:
                    live.update(picture(seen, title), refresh=True)
                elif seen is not None and seen.elapsed_s - last_line >= _LINE_EVERY_S:
                    self._console.print(line(seen), markup=False, highlight=False, soft_wrap=True)
                    last_line = seen.elapsed_s
                if seen is not None and all(job.state.ended for job in seen.jobs):
                    break
                await asyncio.sleep(_LOOK_EVERY_S)
        return seen.jobs if seen else ()

    async def _look(self, jobs: Sequence[str]) -> Seen | None:
        try:
            status = await self._client.status()
            states = [await self._client.get(job) for job in jobs]
            prices = await self._client.prices()
        except (Rejected, Unavailable):
            return None  # a service is just being started again: the picture stays as it is
        return Seen(
            elapsed_s=time.monotonic() - self._began,
            status=status,
            jobs=tuple(states),
            prices=prices,
            note=_newest_restart(self._directory / "logs" / "supervisor.log"),
        )


def _newest_restart(log: Path) -> str:
    if not log.is_file():
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in reversed(lines) if " ended after " in line), "")
