"""Which process holds which devices of a node, and when one may be reused, must be ended, or may be started. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hadare.machines.lease_commands import Command, Kill, StartProcess
from hadare.machines.lease_events import LeaseId, ProcessId
from hadare.machines.lease_state import AT_WORK, LeaseLimits, Phase, Process, ProcessState, Run


class ProcessPool:
    """The processes of one node. A device belongs to one process, from its start until it is proven gone."""

    def __init__(self, limits: LeaseLimits, say: Callable[[Command], None]) -> None:
        self._limits = limits
        self._say = say
        self._processes: dict[ProcessId, Process] = {}
        self._started = 0

    def __len__(self) -> int:
        return len(self._processes)

    def get(self, process: ProcessId | None) -> Process | None:
        return None if process is None else self._processes.get(process)

    def all(self) -> list[Process]:
        return list(self._processes.values())

    def busy(self) -> dict[str, LeaseId]:
        """The lease on each device that works or is about to, by the device's index."""
        claimed = [process for process in self._processes.values() if process.lease is not None]
        return {str(device): process.lease or "" for process in claimed for device in process.devices}

    def held(self) -> frozenset[int]:
        return frozenset(device for process in self._processes.values() for device in process.devices)

    def claim(self, run: Run, at: float) -> bool:
        """Gives the run a process, warm or new. False: it must wait for others to let go; idle ones are told to."""
        process = self._on_cpu(run, at) if not run.lease.devices else self._on_devices(run, at)
        if process is None:
            return False
        patience_s = self._limits.idle_rounds * run.lease.duration_s
        # An evaluation is short, and says nothing of when the next round's lease will come.
        process.idle_s = patience_s if run.lease.kind == "train" else max(patience_s, process.idle_s)
        process.lease = run.id
        run.process = process.id
        return True

    def release(self, process: Process, at: float) -> None:
        """The lease lets go of a healthy process: it stays warm, unless it holds no device."""
        process.lease, process.idle_since = None, at
        if process.state is ProcessState.BUSY:
            process.state = ProcessState.IDLE
        if not process.devices:
            self.kill(process, "its lease has ended")

    def ready(self, process: Process, at: float) -> None:
        if process.state is ProcessState.STARTING:
            process.state, process.idle_since = ProcessState.IDLE, at

    def kill(self, process: Process, reason: str) -> None:
        process.lease = None
        if process.state is not ProcessState.ENDING:
            process.state = ProcessState.ENDING
            self._say(Kill(process=process.id, reason=reason))

    def remove(self, process: Process) -> None:
        del self._processes[process.id]

    def overdue(self, at: float) -> list[Process]:
        """Those that have not come up in time."""
        return [process for process in self._starting() if at >= process.started_at + self._limits.start_limit_s]

    def end_idle(self, at: float) -> None:
        for process in self._processes.values():
            if process.state is ProcessState.IDLE and process.lease is None and at >= process.idle_until:
                self.kill(process, "no lease for too long")

    def wake_at(self) -> float | None:
        return min((at for process in self._processes.values() if (at := self._due(process)) is not None), default=None)

    def check_invariants(self, runs: Mapping[LeaseId, Run]) -> None:
        """Raises ``AssertionError`` if devices, processes and open leases do not fit together."""
        held = [device for process in self._processes.values() for device in process.devices]
        assert len(held) == len(set(held)), "a device belongs to two processes"
        on_cpu = sum(not process.devices for process in self._processes.values())
        assert on_cpu <= self._limits.cpu_slots, "more processes on the CPU than allowed"
        claims = [process.lease for process in self._processes.values() if process.lease is not None]
        assert len(claims) == len(set(claims)), "a lease has two processes"
        for process in self._processes.values():
            assert (process.state is not ProcessState.BUSY) or process.lease, f"{process.id} is busy with nothing"
            assert (process.state is not ProcessState.ENDING) or not process.lease, f"{process.id} ends with a lease"

        for process in self._processes.values():
            assert process.lease is None or process.lease in runs, f"{process.id} works for nobody"
        for run in runs.values():
            self._check_claim(run)

    def _check_claim(self, run: Run) -> None:
        process = self.get(run.process)
        if run.phase in (Phase.QUEUED, Phase.UPLOADING):
            assert run.process is None, f"{run.id} holds a process while it is {run.phase}"
            return
        assert process is not None, f"{run.id} is {run.phase} without a process"
        assert process.lease == run.id, f"{run.id} and {process.id} disagree"
        assert (run.phase in AT_WORK) == (process.state is ProcessState.BUSY), f"{run.id}: {process.state}"

    def _starting(self) -> list[Process]:
        return [process for process in self._processes.values() if process.state is ProcessState.STARTING]

    def _due(self, process: Process) -> float | None:
        if process.state is ProcessState.STARTING:
            return process.started_at + self._limits.start_limit_s
        waits = process.state is ProcessState.IDLE and process.lease is None
        return process.idle_until if waits else None

    def _on_cpu(self, run: Run, at: float) -> Process | None:
        busy = sum(not process.devices for process in self._processes.values())
        return self._start(run, at) if busy < self._limits.cpu_slots else None

    def _on_devices(self, run: Run, at: float) -> Process | None:
        wanted = set(run.lease.devices)
        holders = [process for process in self._processes.values() if wanted & set(process.devices)]
        if not holders:
            return self._start(run, at)
        warm = holders[0]
        if (warm.claimable, warm.job_id, warm.devices) == (True, run.lease.key.job_id, run.lease.devices):
            return warm
        for process in holders:
            if process.claimable:
                self.kill(process, f"{run.id} needs its device")
        return None

    def _start(self, run: Run, at: float) -> Process:
        self._started += 1
        lease = run.lease
        process = Process(id=f"p{self._started}", job_id=lease.key.job_id, devices=lease.devices, started_at=at)
        self._processes[process.id] = process
        run.cold = True
        self._say(
            StartProcess(
                process=process.id,
                key=lease.key,
                spec=lease.spec,
                devices=lease.devices,
                device_type=lease.device_type,
            )
        )
        return process
