"""A node agent for simulations: the real lease machine in a shell without files, threads or processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from hadare import __version__
from hadare.dst.gangs import SimGangs
from hadare.dst.plane import SimPlane
from hadare.dst.trainer import SimTrainer
from hadare.machines import lease_commands as do
from hadare.machines import lease_events as ev
from hadare.machines.lease_state import LeaseLimits
from hadare.machines.leases import LeaseMachine
from hadare.model.devices import Device, Heartbeat, NodeInventory
from hadare.model.errors import HadareError, Rejected
from hadare.model.jobs import ObjectRef
from hadare.model.leases import ForkResult, Lease, LeaseAnswer, Revoke, Revoked
from hadare.runtime.backoff import retrying
from hadare.runtime.bus import Identity, Route
from hadare.runtime.registration import Registration
from hadare.runtime.shell import Questions
from hadare.wire.subjects import GRANT, HEARTBEAT, RESULT, REVOKE, WEIGHTS

_RESULT_TIMEOUT_S = 5.0
_PATIENCE_S = 6.0
_BEAT_S = 1.5

LIMITS = LeaseLimits(stop_grace_s=3.0, hand_back_s=6.0, start_limit_s=15.0)


class Watcher(Protocol):
    """Who sees what an agent does, to hold it against the laws."""

    def lease_accepted(self, node: str, incarnation: str, lease: Lease) -> None: ...

    def lease_refused(self, lease: Lease) -> None: ...

    def is_broken(self, lease: Lease) -> bool: ...

    def work_began(self, agent: SimAgent, work: do.Assign) -> None: ...

    def result_answered(self, result: ForkResult, *, counted: bool, reason: str) -> None: ...


@dataclass
class Disk:
    """What of a node survives its agent: results that nobody has acknowledged, and what is wrong with the hardware."""

    results: dict[str, ForkResult] = field(default_factory=dict)
    poisoned: int = 0


class SimAgent:
    """One incarnation of the agent of a node."""

    def __init__(
        self, plane: SimPlane, devices: tuple[Device, ...], incarnation: str, disk: Disk, eye: Watcher, gangs: SimGangs
    ):
        self.plane = plane
        self.node = plane.name
        self.incarnation = incarnation
        self.disk = disk
        self.machine = LeaseMachine(self.node, devices, LIMITS)
        self.trainer = SimTrainer(
            self.feed, self._began, lambda lease: disk.poisoned > 0 or eye.is_broken(lease), gangs, self.node
        )
        self.events = 0
        self._eye = eye
        self._questions = Questions()
        self._objects = plane.objects(WEIGHTS)
        self._bases: dict[str, bytes] = {}
        self._waiting: list[ev.Event] = []
        self._timer: asyncio.TimerHandle | None = None
        self._registration = Registration(plane, self._inventory)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._registration.changed()
            tasks.create_task(self._registration.run())
            self.feed(ev.ResultsRecovered(at=_now(), results=tuple(self.disk.results.values())))
            tokens = {"node": self.node}
            await self.plane.bus.serve(
                Identity("hadare-node-agent", __version__, "simulated"),
                [Route(GRANT, self._on_grant, tokens), Route(REVOKE, self._on_revoke, tokens)],
            )
            tasks.create_task(self._beat())

    def feed(self, event: ev.Event) -> None:
        """What happened, to the machine; while the process is frozen it waits."""
        if self.plane.dead:
            return
        if self.plane.frozen:
            self._waiting.append(event)
            return
        self.events += 1
        for command in self.machine.handle(event):
            self._perform(command)
        self.machine.check_invariants()
        self._arm()

    def thawed(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self.feed(event)
        self._arm()

    def died(self) -> None:
        self.trainer.end_all()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_at = self.machine.wake_at()
        if wake_at is not None and not self.plane.dead:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(wake_at, loop.time()), self._tick)

    def _tick(self) -> None:
        self.feed(ev.Ticked(at=_now()))

    async def _on_grant(self, lease: Lease) -> LeaseAnswer:
        answer: LeaseAnswer = await self._questions.put(
            lambda ticket: self.feed(ev.LeaseArrived(at=_now(), ticket=ticket, lease=lease))
        )
        if answer.accepted and not answer.reason:  # with a reason: it is known, and nothing new begins
            self._eye.lease_accepted(self.node, self.incarnation, lease)
        if not answer.accepted:
            self._eye.lease_refused(lease)
        return replace(answer, incarnation=self.incarnation)

    async def _on_revoke(self, revoke: Revoke) -> Revoked:
        answer: Revoked = await self._questions.put(
            lambda ticket: self.feed(
                ev.RevokeArrived(
                    at=_now(), ticket=ticket, job_id=revoke.job_id, leases=revoke.leases, epoch=revoke.epoch
                )
            )
        )
        return answer

    def _perform(self, command: do.Command) -> None:
        match command:
            case do.AnswerLease() | do.AnswerRevoke():
                self._questions.answer(command.ticket, command.answer)
            case do.StartProcess() | do.Stop() | do.Kill():
                self.trainer.perform(command)
            case do.Assign():
                self.trainer.perform(command, self._bases.get(command.lease_id))
            case do.Fetch():
                self._begin(self._fetch(command.lease, command.ref))
            case do.Upload():
                self._begin(self._upload(command.lease, command.path))
            case do.Discard():
                self.trainer.files.pop(command.path, None)
            case do.Deliver():
                self.disk.results.setdefault(command.lease, command.result)
                self._bases.pop(command.lease, None)
                self._begin(self._deliver(command.lease, command.result))
            case do.Forget():
                self.disk.results.pop(command.lease, None)
            case do.ReportHealth():
                self._registration.changed()
            case do.Follow() | do.Report() | do.Record() | do.Drained():
                pass

    def _began(self, work: do.Assign) -> None:
        self._eye.work_began(self, work)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.create_task(work)

    async def _fetch(self, lease: str, ref: ObjectRef) -> None:
        try:
            data = await self._patiently(lambda: self._objects.get_bytes(ref), f"fetch {ref.name}")
        except HadareError as error:
            self.feed(ev.FetchFailed(at=_now(), lease=lease, message=str(error)))
            return
        self._bases[lease] = data
        self.feed(ev.BaseFetched(at=_now(), lease=lease, path=ref.name))

    async def _upload(self, lease: str, path: str) -> None:
        data = self.trainer.files.pop(path)
        try:
            ref = await self._patiently(lambda: self._objects.put_bytes(data, lease), f"upload {lease}")
        except HadareError as error:
            self.feed(ev.UploadFailed(at=_now(), lease=lease, message=str(error)))
            return
        self.feed(ev.ResultUploaded(at=_now(), lease=lease, object=ref))

    @staticmethod
    async def _patiently(transfer: Callable[[], Any], what: str) -> Any:
        return await retrying(transfer, what=what, patience_s=_PATIENCE_S)

    async def _deliver(self, lease: str, result: ForkResult) -> None:
        try:
            answer = await self.plane.bus.ask(RESULT, result, timeout_s=_RESULT_TIMEOUT_S)
        except Rejected as fault:
            self.feed(ev.ResultAnswered(at=_now(), lease=lease, counted=False, reason=fault.message))
        except HadareError as error:
            self.feed(ev.DeliveryFailed(at=_now(), lease=lease, message=str(error)))
        else:
            self._eye.result_answered(result, counted=answer.counted, reason=answer.reason)
            self.feed(ev.ResultAnswered(at=_now(), lease=lease, counted=answer.counted, reason=answer.reason))

    def _inventory(self) -> NodeInventory:
        devices = self.machine.devices
        ports = tuple(range(29400, 29400 + len(devices)))
        return NodeInventory(
            node=self.node,
            incarnation=self.incarnation,
            devices=devices,
            gang_address=self.node,
            gang_ports=ports,
        )

    async def _beat(self) -> None:
        sequence = 0
        while True:
            sequence += 1
            beat = Heartbeat(node=self.node, incarnation=self.incarnation, sequence=sequence, busy=self.machine.busy())
            await self.plane.bus.publish(HEARTBEAT, beat, node=self.node)
            await asyncio.sleep(_BEAT_S)


def _now() -> float:
    return asyncio.get_running_loop().time()
