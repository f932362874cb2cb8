"""Tells the nodes that trained for a version of it, so that they have it by the time that a lease asks for it."""

from __future__ import annotations

from typing import TypeVar

import structlog

from hadare.machines.tracker_events import Consolidate, Consolidated
from hadare.model.errors import HadareError
from hadare.model.versions import VersionComing, VersionMade
from hadare.runtime.bus import Bus
from hadare.wire.subjects import VERSION_COMING, VERSION_MADE, Topic
from hadare_jobtracker.averager import version_label

M = TypeVar("M")

log = structlog.get_logger("hadare.jobtracker")


class VersionNews:
    """What may be lost: who has not heard of a version fetches it when a lease asks for it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def coming(self, command: Consolidate) -> None:
        """Of a version that nodes will need whole: not where patches do, nor of a guard's, of which any may win."""
        whole = all(fork.object.bytes >= command.base.bytes / 2 for fork in command.forks)
        if command.how.guard is None and len(command.forks) > 1 and whole:
            news = VersionComing(job_id=command.job_id, label=version_label(command), bytes=command.base.bytes)
            for node in command.nodes:
                await self._tell(VERSION_COMING, news, node)

    async def made(self, command: Consolidate, done: Consolidated) -> None:
        if done.weights is not None and len(done.candidates) <= 1:
            base = command.base.sha256
            news = VersionMade(job_id=done.job_id, weights=done.weights, base=base, changes=done.changes)
            for node in command.nodes:
                await self._tell(VERSION_MADE, news, node)

    async def _tell(self, topic: Topic[M], news: M, node: str) -> None:
        try:
            await self._bus.publish(topic, news, node=node)
        except HadareError as error:
            log.info("a node was not told of a version", node=node, subject=topic.template, reason=str(error))
