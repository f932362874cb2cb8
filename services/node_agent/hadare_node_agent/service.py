"""The node agent: carries out what ``LeaseMachine`` decides, and tells it what happened. One inbox, one consumer.

Slow work (processes, transfers, questions to the tracker) runs beside it and comes back as an event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, assert_never

import structlog

from hadare.machines import lease_commands as do
from hadare.machines import lease_events as ev
from hadare.machines.lease_state import LeaseLimits
from hadare.machines.leases import LeaseMachine
from hadare.model.devices import Device, NodeInventory
from hadare.model.errors import Broken, HadareError, Rejected
from hadare.model.leases import ForkResult, Lease, LeaseAnswer, Revoke, Revoked
from hadare.model.versions import VersionComing, VersionMade
from hadare.runtime import telemetry
from hadare.runtime.bus import Backplane, Identity, Route
from hadare.runtime.registration import Registration
from hadare.runtime.shell import Questions
from hadare.wire.subjects import GRANT, RESULT, REVOKE, VERSION_COMING, VERSION_MADE
from hadare_node_agent.devices import Probe
from hadare_node_agent.heartbeat import Heart, Vitals
from hadare_node_agent.namesake import find_namesake
from hadare_node_agent.outgoing import History, Logs, Reports
from hadare_node_agent.results import ResultStore
from hadare_node_agent.tracing import Traces
from hadare_node_agent.trainer import Trainer
from hadare_node_agent.weights import Weights, failure_text

log = structlog.get_logger("hadare.node_agent")

_RESULT_TIMEOUT_S = 5.0
_FLUSH_S = 1.0
_RETRY_CODES = frozenset({408, 429})


@dataclass(frozen=True, kw_only=True)
class AgentIdentity:
    """Who this agent is. ``incarnation`` is new in every start. Gangs meet at ``gang_address`` and ``gang_ports``."""

    node: str
    incarnation: str
    labels: dict[str, str]
    host: str
    version: str
    gang_address: str = ""
    gang_ports: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """The world outside: one real and one fake form of each exists."""

    backplane: Backplane
    trainer: Trainer
    weights: Weights
    results: ResultStore
    probe: Probe
    heart: Heart


class NodeAgent:
    """One agent, from its start until it is drained."""

    def __init__(
        self,
        identity: AgentIdentity,
        adapters: Adapters,
        devices: tuple[Device, ...],
        limits: LeaseLimits,
        health_s: float = 10.0,
    ) -> None:
        bus, journal = adapters.backplane.bus, adapters.backplane.journal
        self._identity = identity
        self._out = adapters
        self._health_s = health_s
        self._machine = LeaseMachine(identity.node, devices, limits)
        # Unbounded: what fills it is bounded itself (questions by the routes, progress by the forks' interval).
        self._inbox: asyncio.Queue[ev.Event] = asyncio.Queue()
        self._questions = Questions()
        self._reports = Reports(bus)
        self._history = History(journal, identity.node, identity.incarnation)
        self._logs = Logs(journal, identity.node)
        self._traces = Traces()
        self._registration = Registration(adapters.backplane, self._inventory)
        self._workloads: tuple[str, ...] = ()
        self._tokens = {"node": identity.node}
        self._work: set[asyncio.Task[None]] = set()
        self._drained = asyncio.Event()
        self.started = False
        now = time.monotonic()
        self._vitals = Vitals(identity.node, identity.incarnation, now, now, {})

    def drain(self, limit_s: float) -> None:
        """Hand back what runs within ``limit_s``; then ``run`` returns."""
        self._inbox.put_nowait(ev.DrainAsked(at=_now(), limit_s=limit_s))

    async def run(self) -> None:
        """Until drained. Raises ``Broken`` if no process can be started here, or the node's name is taken."""
        await self._begin()
        self.started = True
        self._inbox.put_nowait(ev.ResultsRecovered(at=_now(), results=self._out.results.kept()))
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for work in (
                    self._consume(),
                    self._reports.run(),
                    self._history.run(),
                    self._logs.run(),
                    self._vitals.pulse(),
                    self._registration.run(),
                    self._watch_health(),
                ):
                    self._start(work)
                await self._serve()
                for task in tuple(self._work):
                    task.cancel()
        finally:
            await self._out.trainer.close()

    async def _begin(self) -> None:
        """Starting takes seconds: time enough to hear whether another agent has this node's name."""
        namesake = asyncio.create_task(find_namesake(self._out.backplane, self._identity.node))
        try:
            self._workloads = await self._out.trainer.start(self._inbox.put_nowait, self._logs.add)
            if taken := await namesake:
                raise Broken(taken)
        except BaseException:
            await self._out.trainer.close()
            raise
        finally:
            namesake.cancel()

    async def _serve(self) -> None:
        """Open to the world, from the inventory's first writing until the machine is drained."""
        serving = await self._out.backplane.bus.serve(
            Identity(
                name="hadare-node-agent",
                version=self._identity.version,
                description="Trains forks on the devices of one node",
                metadata={"node": self._identity.node},
            ),
            [Route(GRANT, self._on_grant, self._tokens), Route(REVOKE, self._on_revoke, self._tokens)],
        )
        bus = self._out.backplane.bus
        hearing = (
            await bus.subscribe(VERSION_COMING, self._on_coming, **self._tokens),
            await bus.subscribe(VERSION_MADE, self._on_version, **self._tokens),
        )
        self._registration.changed()
        self._history.add("agent_started", {"incarnation": self._identity.incarnation})
        self._out.heart.start(self._vitals)
        try:
            await self._drained.wait()
            self._history.add("agent_stopped", {"incarnation": self._identity.incarnation})
            await self._logs.send()
            await self._history.flush(_FLUSH_S)
        finally:
            await self._out.heart.stop()
            for news in hearing:
                await news.stop()
            await serving.stop()  # what is asked meanwhile is still answered: the inbox is read to the end

    async def _consume(self) -> None:
        """The main loop: event in, commands out, in order."""
        while True:
            event = await self._next_event()
            commands = self._machine.handle(event)
            self._vitals.busy = self._machine.busy()
            log.debug("event", kind=type(event).__name__, commands=[type(command).__name__ for command in commands])
            for command in commands:
                self._perform(command)

    async def _next_event(self) -> ev.Event:
        wake_at = self._machine.wake_at()
        if wake_at is not None and wake_at <= _now():
            return ev.Ticked(at=_now())
        try:
            async with asyncio.timeout_at(wake_at):
                return await self._inbox.get()
        except TimeoutError:
            return ev.Ticked(at=_now())

    # --- questions ------------------------------------------------------------------------------------------------

    async def _on_grant(self, lease: Lease) -> LeaseAnswer:
        def ask(ticket: int) -> None:
            self._inbox.put_nowait(ev.LeaseArrived(at=_now(), ticket=ticket, lease=lease))

        answer: LeaseAnswer = await self._questions.put(ask)
        log.info("lease", lease=str(lease.key), job=lease.key.job_id, accepted=answer.accepted, reason=answer.reason)
        return replace(answer, incarnation=self._identity.incarnation)

    async def _on_revoke(self, revoke: Revoke) -> Revoked:
        def ask(ticket: int) -> None:
            self._inbox.put_nowait(
                ev.RevokeArrived(
                    at=_now(),
                    ticket=ticket,
                    job_id=revoke.job_id,
                    reason=revoke.reason,
                    leases=revoke.leases,
                    epoch=revoke.epoch,
                )
            )

        answer: Revoked = await self._questions.put(ask)
        log.info("revoked", job=revoke.job_id, ended=answer.ended, free=answer.free, cause=revoke.reason)
        return answer

    async def _on_coming(self, coming: VersionComing) -> None:
        self._start(self._expect(coming))

    async def _expect(self, coming: VersionComing) -> None:
        try:
            await self._out.weights.expect(coming.label, coming.bytes)
        except (HadareError, OSError) as error:
            log.info("a version is read when it is stored", job=coming.job_id, reason=str(error))

    async def _on_version(self, made: VersionMade) -> None:
        self._start(self._fetch_ahead(made))

    async def _fetch_ahead(self, made: VersionMade) -> None:
        """While the next round is planned. What fails here is fetched when a lease asks for it, or never."""
        try:
            await self._out.weights.fetch_ahead(made.weights, made.base, made.changes)
        except (HadareError, OSError) as error:
            log.info("a version was not fetched ahead", job=made.job_id, reason=str(error))

    # --- commands -------------------------------------------------------------------------------------------------

    def _perform(self, command: do.Command) -> None:
        match command:
            case do.AnswerLease() | do.AnswerRevoke():
                self._questions.answer(command.ticket, command.answer)
            case do.StartProcess() | do.Assign() | do.Stop() | do.Kill():
                self._log_process(command)
                self._out.trainer.perform(command)
            case do.Follow():
                self._traces.begin(command.lease_id, command.lease)
            case do.Fetch():
                self._start(self._fetch(command))
            case do.Upload():
                self._start(self._upload(command))
            case do.Discard():
                Path(command.path).unlink(missing_ok=True)
            case do.Deliver():
                self._start(self._deliver(command))
            case do.Forget():
                log.info("result settled", lease=command.lease, reason=command.reason)
                self._out.results.forget(command.lease)
            case do.Report():
                self._reports.add(command.report)
            case do.Record():
                log.info(command.what, lease=command.lease, **command.data)
                self._history.add(command.what, command.data)
            case do.ReportHealth():
                health = {str(device.index): device.reason or "healthy" for device in command.devices}
                log.warning("device health", devices=health)
                self._history.add("device_health", {"devices": health})
                self._registration.changed()
            case do.Drained():
                log.info("drained", undelivered=command.undelivered)
                self._drained.set()
            case _:
                assert_never(command)

    def _log_process(self, command: do.StartProcess | do.Assign | do.Stop | do.Kill) -> None:
        what = {do.StartProcess: "start", do.Assign: "assign", do.Stop: "stop", do.Kill: "kill"}[type(command)]
        cause = command.reason if isinstance(command, do.Kill) else ""
        log.info("process", what=what, process=command.process, cause=cause)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """An exception that leaves ``work`` is a bug, and ends the service."""
        task = self._tasks.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _fetch(self, command: do.Fetch) -> None:
        try:
            with self._traces.inside(command.lease, "fetch", {"hadare.bytes": command.ref.bytes}):
                path = await self._out.weights.fetch(command.lease, command.ref, sent=command.sent)
        except (HadareError, OSError) as error:
            message = f"base weights {command.ref.name}: {failure_text(error)}"
            self._inbox.put_nowait(ev.FetchFailed(at=_now(), lease=command.lease, message=message))
        else:
            self._inbox.put_nowait(ev.BaseFetched(at=_now(), lease=command.lease, path=str(path)))

    async def _upload(self, command: do.Upload) -> None:
        try:
            with self._traces.inside(command.lease, "upload", {}):
                obj = await self._out.weights.upload(Path(command.path), command.lease, command.base)
        except (HadareError, OSError) as error:
            message = f"the result could not be stored: {failure_text(error)}"
            self._inbox.put_nowait(ev.UploadFailed(at=_now(), lease=command.lease, message=message))
            Path(command.path).unlink(missing_ok=True)  # noqa: ASYNC240 - one unlink
        else:
            self._inbox.put_nowait(ev.ResultUploaded(at=_now(), lease=command.lease, object=obj))

    async def _deliver(self, command: do.Deliver) -> None:
        lease = command.lease
        self._out.weights.release(lease)
        result = self._traces.end(lease, command.result)
        try:
            self._out.results.keep(lease, result)
        except OSError as error:
            log.error("a result could not be kept on disk", lease=lease, error=str(error))
        self._inbox.put_nowait(await self._tell_tracker(lease, result))

    async def _tell_tracker(self, lease: str, result: ForkResult) -> ev.ResultAnswered | ev.DeliveryFailed:
        """A refusal is as final as a count; only where nobody could decide is the result kept for another try."""
        try:
            with telemetry.continued(result.traceparent):
                answer = await self._out.backplane.bus.ask(RESULT, result, timeout_s=_RESULT_TIMEOUT_S)
        except Rejected as fault:
            if fault.code < 500 and fault.code not in _RETRY_CODES:
                return ev.ResultAnswered(at=_now(), lease=lease, counted=False, reason=f"refused: {fault.message}")
            message = fault.message
        except HadareError as error:
            message = str(error)
        else:
            return ev.ResultAnswered(at=_now(), lease=lease, counted=answer.counted, reason=answer.reason)
        log.warning("result not delivered", lease=lease, reason=message)
        return ev.DeliveryFailed(at=_now(), lease=lease, message=message)

    # --- the node -------------------------------------------------------------------------------------------------

    def _inventory(self) -> NodeInventory:
        identity = self._identity
        return NodeInventory(
            node=identity.node,
            incarnation=identity.incarnation,
            devices=self._machine.devices,
            labels=identity.labels,
            workloads=self._workloads,
            host=identity.host,
            version=identity.version,
            gang_address=identity.gang_address,
            gang_ports=identity.gang_ports,
        )

    async def _watch_health(self) -> None:
        """Withdraws devices that have become unfit, and offers those again that have recovered."""
        while True:
            await self._out.probe.alarm(self._health_s)
            for index in await self._out.trainer.recheck():
                self._inbox.put_nowait(ev.HealthChanged(at=_now(), device=index, healthy=True))
            held = self._machine.held()
            faults = await self._out.probe.faults(held)
            for index, reason in sorted(faults.items()):
                taken_meanwhile = index in self._machine.held() - held
                if not taken_meanwhile and index not in self._out.trainer.stuck:
                    self._inbox.put_nowait(ev.HealthChanged(at=_now(), device=index, healthy=not reason, reason=reason))


def _now() -> float:
    return asyncio.get_running_loop().time()
