"""The processes that train: commands become calls to a fork server, what it and its forks say becomes events.

Decides nothing. Every ``StartProcess`` comes back as ready or failed, every ``Kill`` as ended, whatever happens.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import structlog

from hadare.machines import lease_commands as do
from hadare.machines import lease_events as ev
from hadare.model.devices import Device
from hadare.model.errors import Broken, HadareError, Unavailable
from hadare.model.leases import Failure, Lease, LeaseKey
from hadare.training import protocol
from hadare.training.bounds import Bounds, Root, excesses
from hadare.training.forkclient import ForkProcess, ForkServer, failure_of
from hadare.training.needs import Unmet
from hadare.training.processes import end_fork, members
from hadare_node_agent.devices import Emulation, Probe
from hadare_node_agent.place import Place, Secrets
from hadare_node_agent.words import order_for, outcome_of, progress_of

log = structlog.get_logger("hadare.node_agent")

Emit = Callable[[ev.Event], None]
OnLine = Callable[[LeaseKey, str], None]
ProcessCommand = do.StartProcess | do.Assign | do.Stop | do.Kill

_START_ATTEMPTS = 3
_RESTART_S = 1.0


class Trainer(Protocol):
    """Runs what the machine says and reports through ``emit``, never before ``start``."""

    async def start(self, emit: Emit, on_line: OnLine) -> tuple[str, ...]:
        """Gets ready to start processes; the workloads that they can import. Raises ``Broken``."""
        ...

    def perform(self, command: ProcessCommand) -> None: ...

    @property
    def stuck(self) -> Set[int]:
        """Devices of processes that could not be ended."""
        ...

    async def recheck(self) -> list[int]:
        """Devices that were stuck, and whose process is gone now."""
        ...

    async def close(self) -> bool:
        """Ends every process; true once nothing of them lives."""
        ...


@dataclass(slots=True, kw_only=True)
class _Fork:
    """A process of the machine's, and what it does now. ``marker`` names all that descends from it."""

    command: do.StartProcess
    marker: str
    secrets: Secrets
    unwanted: bool = False
    spawning: asyncio.Task[ForkProcess] | None = None
    process: ForkProcess | None = None
    work: do.Assign | None = None
    out: Path | None = None
    rate: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> LeaseKey:
        return self.work.lease.key if self.work else self.command.key


@dataclass(frozen=True, kw_only=True)
class ForkSettings:
    """``prefix`` begins every process's marker and is this agent's alone; ``scratch`` is for results being written.

    ``bounds``: what each fork may take of the machine, looked at every ``watch_s``.
    """

    prefix: str
    scratch: Path
    workloads: tuple[str, ...]
    threads: int = 1
    report_interval_s: float = 1.0
    bounds: Bounds = field(default_factory=Bounds)
    watch_s: float = 1.0


class ForkTrainer:
    """Forks of a preloaded fork server, which is started again if it dies."""

    def __init__(
        self,
        settings: ForkSettings,
        devices: Sequence[Device],
        probe: Probe,
        emulation: Emulation,
        place: Place,
        stuck: Mapping[int, str] | None = None,
    ) -> None:
        """``stuck``: devices that may be held by what carries a marker of an earlier incarnation."""
        self._settings = settings
        self._devices = {device.index: device for device in devices}
        self._probe = probe
        self._emulation = emulation
        self._place = place
        self._server: ForkServer | None = None
        self._opening = asyncio.Lock()
        self._forks: dict[ev.ProcessId, _Fork] = {}
        self._stuck: dict[int, str] = dict(stuck or {})
        self._tasks: set[asyncio.Task[None]] = set()
        self._outs = 0

    async def start(self, emit: Emit, on_line: OnLine) -> tuple[str, ...]:
        self._emit, self._on_line = emit, on_line
        await self._place.check_python()
        server = await self._open_server()
        for module, why in server.hello.failed.items():
            log.warning("workload cannot be imported", module=module, reason=why)
        importable = set(server.hello.importable)
        self._run(self._watch())
        return tuple(name for name in self._settings.workloads if name.partition(":")[0] in importable)

    def perform(self, command: ProcessCommand) -> None:
        match command:
            case do.StartProcess():
                marker = f"{self._settings.prefix}{command.process}"
                fork = _Fork(command=command, marker=marker, secrets=Secrets(command.spec.env))
                self._forks[command.process] = fork
                self._run(self._live(fork))
            case do.Assign():
                self._run(self._assign(command))
            case do.Stop():
                self._run(self._stop(command))
            case do.Kill():
                self._run(self._end(command.process))

    @property
    def stuck(self) -> Set[int]:
        return self._stuck.keys()

    async def recheck(self) -> list[int]:
        freed = []
        for device, marker in list(self._stuck.items()):
            if not await asyncio.to_thread(members, 0, 0, marker) and not await self._probe.free([device]):
                del self._stuck[device]
                freed.append(device)
        return freed

    async def close(self) -> bool:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return await self._server.close() if self._server is not None else True

    async def _watch(self) -> None:
        """Fails forks that take more than they may; the machine has them killed."""
        while True:
            await asyncio.sleep(self._settings.watch_s)
            living = {
                name: Root(fork.process.pid, fork.process.started, fork.marker)
                for name, fork in self._forks.items()
                if fork.process is not None and fork.process.exit is None and not fork.unwanted
            }
            if not living:
                continue
            for name, fault in (await asyncio.to_thread(excesses, living, self._settings.bounds)).items():
                log.warning("a fork takes too much", process=name, reason=fault.message)
                self._emit(ev.ProcessFailed(at=_now(), process=name, failure=fault))

    # --- one process --------------------------------------------------------------------------------------------

    async def _live(self, fork: _Fork) -> None:
        """From the fork of a process to its end."""
        name = fork.command.process
        try:
            path = await self._place.prepare(name, fork.command.spec)
            if fork.unwanted:
                return
            fork.spawning = asyncio.create_task(self._spawn(fork, path))
            fork.process = await fork.spawning
        except Unmet as unmet:
            self._emit(ev.ProcessFailed(at=_now(), process=name, failure=unmet.failure))
            return
        except (HadareError, OSError) as error:
            fault = Failure(kind="killed", message=f"no process could be started: {error}"[:4096], node_specific=True)
            self._emit(ev.ProcessFailed(at=_now(), process=name, failure=fault))
            return
        last_words: Failure | None = None
        ready = False
        async for report in fork.process:
            ready = ready or isinstance(report, protocol.Ready)
            if isinstance(report, protocol.Failed):
                fault = fork.secrets.out_of_failure(report.failure)
                last_words = last_words or fault
                self._emit(ev.ProcessFailed(at=_now(), process=name, failure=fault))
            else:
                self._hear(name, fork, report)
        if last_words is None and fork.process.exit is not None:
            self._emit(ev.ProcessFailed(at=_now(), process=name, failure=failure_of(fork.process.exit, ready=ready)))

    async def _spawn(self, fork: _Fork, path: tuple[str, ...]) -> ForkProcess:
        server = await self._open_server()
        spec, device, visible = fork.command.spec, "cpu", ""
        real = [index for index in fork.command.devices if self._is_gpu(index)]
        if real:
            device, visible = "cuda:0", ",".join(map(str, real))
        return await server.spawn(
            fork.marker,
            protocol.ForkSpec(
                workload=spec.workload,
                config=spec.config,
                batch_size=spec.batch_size,
                seed=spec.seed,
                device=device,
                threads=self._settings.threads,
                path=path,
            ),
            env={
                **spec.env,
                "CUDA_VISIBLE_DEVICES": visible,
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                protocol.ARTIFACTS_VARIABLE: str(self._artifacts(fork.command.process)),
            },
            on_output=lambda line: self._on_line(fork.key, fork.secrets.out_of(line)),
        )

    def _artifacts(self, process: ev.ProcessId) -> Path:
        return self._settings.scratch / f"{process}.artifacts"

    def _is_gpu(self, index: int) -> bool:
        device = self._devices[index]
        return not device.emulated and device.type != "CPU"

    def _hear(self, name: ev.ProcessId, fork: _Fork, report: protocol.Report) -> None:
        if isinstance(report, protocol.Ready):
            self._emit(ev.ProcessReady(at=_now(), process=name))
        elif fork.work is None:
            log.warning("a fork reports without a lease", process=name, report=type(report).__name__)
        elif isinstance(report, protocol.Progress):
            progress = progress_of(report, fork.rate)
            self._emit(ev.WorkProgressed(at=_now(), process=name, lease=fork.work.lease_id, progress=progress))
        elif isinstance(report, protocol.Evaluated):
            fork.metrics = report.metrics
        elif isinstance(report, protocol.Done):
            self._done(name, fork, fork.work, report)

    def _done(self, name: ev.ProcessId, fork: _Fork, work: do.Assign, report: protocol.Done) -> None:
        out, fork.work, fork.out = fork.out, None, None
        keep = out is not None and report.bytes > 0 and (work.lease.kind == "init" or report.steps > 0)
        if out is not None and not keep:
            discard(out)
        outcome = outcome_of(work.lease, report, fork.metrics, fork.rate, out if keep else None)
        self._emit(ev.WorkDone(at=_now(), process=name, lease=work.lease_id, outcome=outcome))

    async def _assign(self, command: do.Assign) -> None:
        fork = self._forks[command.process]
        self._outs += 1
        fork.work, fork.metrics = command, {}
        fork.out = self._settings.scratch / f"{command.process}-{self._outs}.safetensors"
        fork.rate = self._rate(command.lease)
        order = order_for(command, fork.out, fork.rate, self._settings.report_interval_s)
        await self._send(fork, order)

    async def _stop(self, command: do.Stop) -> None:
        fork = self._forks.get(command.process)
        if fork is not None and fork.work is not None and fork.work.lease_id == command.lease:
            await self._send(fork, protocol.Stop())

    async def _send(self, fork: _Fork, order: protocol.Command) -> None:
        """If the process has ended, its end is reported by ``_live``."""
        try:
            if fork.process is not None:
                await fork.process.send(order)
        except Unavailable as error:
            log.info("a fork is gone", process=fork.command.process, reason=str(error))
        except protocol.ProtocolError as error:
            fault = Failure(kind="exception", message=f"the lease is too large: {error}"[:4096])
            self._emit(ev.ProcessFailed(at=_now(), process=fork.command.process, failure=fault))

    def _rate(self, lease: Lease) -> float:
        """A gang of emulated devices goes at the pace of its slowest."""
        rates = [self._emulation.rate(lease.spec.workload, self._devices[index]) for index in lease.devices]
        return min(rates, default=0.0)

    async def _end(self, name: ev.ProcessId) -> None:
        """Ends a whole process tree, whatever state it is in, and proves that its devices are free."""
        fork = self._forks.get(name)
        if fork is None:
            self._emit(ev.ProcessEnded(at=_now(), process=name, free=True))
            return
        fork.unwanted = True
        if fork.spawning is not None:
            await asyncio.wait({fork.spawning})  # what is being forked cannot be called back, only ended
        gone = await self._kill(fork)
        devices = fork.command.devices
        reason = await self._probe.free(devices) if gone else f"a process of {fork.key} could not be ended"
        if reason:
            self._stuck.update(dict.fromkeys(devices, fork.marker))
        if fork.out is not None:
            discard(fork.out)
        await asyncio.to_thread(shutil.rmtree, self._artifacts(name), ignore_errors=True)
        self._place.release(name)
        del self._forks[name]
        self._emit(ev.ProcessEnded(at=_now(), process=name, free=not reason, reason=reason))

    async def _kill(self, fork: _Fork) -> bool:
        if fork.process is not None:
            return await fork.process.kill()
        return await asyncio.to_thread(end_fork, 0, 0, fork.marker)

    # --- the server -----------------------------------------------------------------------------------------------

    async def _open_server(self) -> ForkServer:
        """The running one, or a new one. Raises ``Broken`` if none comes up in a few attempts."""
        async with self._opening:
            if self._server is not None and not self._server.gone.done():
                return self._server
            if self._server is not None:
                log.error("the fork server has ended")
                await self._server.close()
                self._server = None
            self._server = await self._start_server()
            return self._server

    async def _start_server(self) -> ForkServer:
        modules = sorted({name.partition(":")[0] for name in self._settings.workloads})
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                server = await ForkServer.start(modules, python=self._place.python)
            except Broken as error:
                log.error("the fork server did not start", attempt=attempt, reason=str(error))
                if attempt == _START_ATTEMPTS:
                    raise
                await asyncio.sleep(_RESTART_S)
            else:
                log.info("fork server started", pid=server.pid, seconds=round(server.hello.seconds, 2))
                return server
        raise AssertionError("unreachable")

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.error("bug in the trainer", exc_info=bug)


def discard(out: Path) -> None:
    """What a fork has written: the whole file, or the part of one that it was killed over."""
    for file in (out, *out.parent.glob(f".{out.name}.*.partial")):
        file.unlink(missing_ok=True)


def _now() -> float:
    return asyncio.get_running_loop().time()
