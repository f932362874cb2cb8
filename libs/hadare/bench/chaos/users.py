"""The users of the cluster: they keep it busy with small jobs, cancel some, pause some, and remember every promise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hadare.client import HadareClient
from hadare.local.targets import job_file
from hadare.model.errors import Rejected, Unavailable
from hadare.wire.api import JobStatus

T = TypeVar("T")

_POLL_S = 1.0
_KINDS = ("digits", "weather")
_POISON_EVERY = 9
_CANCEL_EVERY = 6
_PAUSE_EVERY = 5


@dataclass(slots=True)
class Promise:
    """A job that the cluster has accepted, and what its user has asked of it since and been told is done."""

    job_id: str
    kind: str
    name: str
    acts: list[str] = field(default_factory=list)


class Users:
    """``keep_busy`` until ``enough`` is set; every question is asked until it is answered."""

    def __init__(self, client: HadareClient, at_once: int, steps: int | None, say: Callable[[str], None]) -> None:
        self.promises: list[Promise] = []
        self.faults: list[str] = []
        self._client = client
        self._at_once = at_once
        self._steps = steps
        self._say = say
        self._submitted = 0
        self._seen: dict[str, JobStatus] = {}

    async def keep_busy(self, enough: asyncio.Event) -> None:
        while not enough.is_set():
            open_jobs = await self.open_jobs()
            for _ in range(self._at_once - len(open_jobs)):
                await self._submit()
            await self._act()
            await asyncio.sleep(_POLL_S)

    async def open_jobs(self) -> list[str]:
        """Accepted jobs that have not ended."""
        self._seen = await asked(self._list)
        return [promise.job_id for promise in self.promises if not self._ended(promise)]

    def _ended(self, promise: Promise) -> bool:
        seen = self._seen.get(promise.job_id)
        return seen is not None and seen.state.ended

    async def _list(self) -> dict[str, JobStatus]:
        return {job.job_id: job async for job in self._client.list()}

    async def _submit(self) -> None:
        number = self._submitted = self._submitted + 1
        poisonous = number % _POISON_EVERY == 0
        kind = "poison" if poisonous else _KINDS[number % len(_KINDS)]
        spec = self._spec(kind, f"{kind}-{number}")
        first = await asked(lambda: self._client.submit(spec, request_id=f"chaos-{number}"))
        again = await asked(lambda: self._client.submit(spec, request_id=f"chaos-{number}"))
        if again.job_id != first.job_id or again.created:
            self.faults.append(f"{spec['name']}: the same request made {first.job_id} and {again.job_id}")
        self.promises.append(Promise(first.job_id, kind, spec["name"]))

    def _spec(self, kind: str, name: str) -> dict[str, Any]:
        if kind == "poison":
            return {**job_file("digits"), "name": name, "config": {"lr": -1.0, "nonsense": True}, "total_steps": 100}
        spec = {**job_file(kind), "name": name}
        return spec if self._steps is None else {**spec, "total_steps": self._steps}

    async def _act(self) -> None:
        """Each job's user does what he is going to do once the job has a trained version."""
        for number, promise in enumerate(self.promises, start=1):
            seen = self._seen.get(promise.job_id)
            if promise.acts or seen is None or seen.state.ended or seen.version < 1:
                continue
            if number % _CANCEL_EVERY == 0:
                await self._once(promise, "cancel", self._client.cancel)
            elif number % _PAUSE_EVERY == 0:
                await self._once(promise, "pause", self._client.pause)
                await asyncio.sleep(_POLL_S)
                await self._once(promise, "resume", self._client.resume)

    async def _once(self, promise: Promise, what: str, act: Callable[[str], Awaitable[Any]]) -> None:
        try:
            await asked(lambda: act(promise.job_id))
        except Rejected as fault:
            self._say(f"{promise.name} could not be asked to {what}: {fault.message}")  # it has just ended
            promise.acts.append(f"no {what}")
        else:
            promise.acts.append(what)


async def asked(question: Callable[[], Awaitable[T]]) -> T:
    """Asks until there is an answer, as a person would. Raises ``Rejected``."""
    while True:
        try:
            return await question()
        except (Unavailable, TimeoutError):
            await asyncio.sleep(_POLL_S)
        except Rejected as fault:
            if fault.code < 500:
                raise
            await asyncio.sleep(_POLL_S)
