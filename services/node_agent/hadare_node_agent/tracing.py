"""The agent's part of a job's trace: one span a lease, from acceptance to result, with what took time inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any

from hadare.machines.lease_events import LeaseId
from hadare.model.leases import ForkResult, Lease
from hadare.runtime import telemetry

_MOST_ENDED = 4096


@dataclass(frozen=True, slots=True)
class _Open:
    """A span that outlives the code that opened it, so it has a context of its own to be closed in."""

    context: Context
    manager: AbstractContextManager[Any]
    span: Any
    traceparent: str


class Traces:
    """The spans of the leases that run, and the contexts of those that ended not long ago."""

    def __init__(self) -> None:
        self._open: dict[LeaseId, _Open] = {}
        self._ended: dict[LeaseId, str] = {}

    def begin(self, lease_id: LeaseId, lease: Lease) -> None:
        key = lease.key
        manager = telemetry.span(
            lease.kind,
            parent=lease.traceparent,
            attributes={
                "hadare.job": key.job_id,
                "hadare.round": key.round,
                "hadare.fork": key.fork,
                "hadare.attempt": key.attempt,
                "hadare.node": lease.node,
                "hadare.device_type": lease.device_type,
            },
        )
        context = Context()
        span = context.run(manager.__enter__)
        self._open[lease_id] = _Open(context, manager, span, context.run(telemetry.traceparent))

    @contextmanager
    def inside(self, lease_id: LeaseId, name: str, attributes: telemetry.Attributes) -> Iterator[None]:
        """A span of its own within the lease's."""
        opened = self._open.get(lease_id)
        parent = opened.traceparent if opened else self._ended.get(lease_id, "")
        with telemetry.span(name, parent=parent, attributes=attributes):
            yield

    def end(self, lease_id: LeaseId, result: ForkResult) -> ForkResult:
        """The result with the context of its lease's span, which ends when it is called for the first time."""
        opened = self._open.pop(lease_id, None)
        if opened is not None:
            self._close(opened, result)
            self._ended[lease_id] = opened.traceparent
            if len(self._ended) > _MOST_ENDED:
                del self._ended[next(iter(self._ended))]
        return replace(result, traceparent=self._ended.get(lease_id, result.traceparent))

    @staticmethod
    def _close(opened: _Open, result: ForkResult) -> None:
        opened.span.set_attribute("hadare.steps", result.steps)
        opened.span.set_attribute("hadare.reason", result.reason)
        if result.failure is not None:
            opened.span.set_attribute("error.type", result.failure.kind)
        opened.context.run(opened.manager.__exit__, None, None, None)
