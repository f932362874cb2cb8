"""Forks that compute instead of training: they start, run at their device's rate, hand back, crash, and die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from hadare.dst.gangs import Member, SimGangs
from hadare.dst.scenario import BASE_RATE
from hadare.dst.weights import ForkWeights, VersionWeights, pack, unpack
from hadare.machines import lease_commands as do
from hadare.machines import lease_events as ev
from hadare.model.leases import Evaluation, Failure, Lease, StopReason
from hadare.scheduling.devices import relative_speed

START_S = 0.6
SAVE_S = 0.05
SIDE_S = 0.8
KILL_S = 0.15
FAIL_S = 0.4

_EXCEPTION = Failure(kind="exception", message="RuntimeError: CUDA error", tail="Traceback ...")

Emit = Callable[[ev.Event], None]
Began = Callable[[do.Assign], None]
Doomed = Callable[[Lease], bool]
"""Whether a lease will end with an exception."""


@dataclass
class _Fork:
    command: do.StartProcess
    work: do.Assign | None = None
    base: bytes | None = None
    began_at: float = 0.0
    handing_back: bool = False
    timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@dataclass
class SimTrainer:
    """The processes of one incarnation of an agent. ``files`` are the results on its disk, not yet uploaded."""

    emit: Emit
    began: Began
    is_doomed: Doomed
    gangs: SimGangs
    node: str
    files: dict[str, bytes] = field(default_factory=dict)
    forks: dict[str, _Fork] = field(default_factory=dict)
    dead: bool = False

    def perform(self, command: do.StartProcess | do.Assign | do.Stop | do.Kill, base: bytes | None = None) -> None:
        match command:
            case do.StartProcess():
                fork = self.forks[command.process] = _Fork(command)
                self._later(fork, START_S, lambda: self._say(ev.ProcessReady(at=_now(), process=command.process)))
            case do.Assign():
                self._assign(command, base)
            case do.Stop():
                found = self.forks.get(command.process)
                if found is not None and found.work is not None and found.work.lease_id == command.lease:
                    self._stop(found, found.work)
            case do.Kill():
                self._leave(self.forks[command.process], "was killed")
                self.forks[command.process].stop()
                self.forks[command.process].work = None
                asyncio.get_running_loop().call_later(KILL_S, self._gone, command.process)

    def devices(self) -> dict[int, str]:
        """The process on each device that is held."""
        return {device: name for name, fork in self.forks.items() for device in fork.command.devices}

    def crash_one(self) -> None:
        """A fork that is at work ends without a word."""
        for name, fork in sorted(self.forks.items()):
            if fork.work is not None:
                self._fail(name, Failure(kind="killed", message="the fork's process ended by signal 9"))
                return

    def _stop(self, fork: _Fork, work: do.Assign) -> None:
        if work.lease.gang is None or work.lease.kind != "train":
            self._later(fork, SAVE_S, lambda: self._finish(fork, "clock"))
        elif not fork.handing_back and not self.gangs.stop(work.lease):
            self._fail(work.process, _apart("it was told to stop"))

    def _leave(self, fork: _Fork, why: str) -> None:
        """Of a rank's process that ends while its gang goes on."""
        if fork.work is not None and fork.work.lease.gang is not None and not fork.handing_back:
            self.gangs.leave(fork.work.lease, why)

    def _fail(self, process: str, failure: Failure) -> None:
        fork = self.forks[process]
        self._leave(fork, "has ended")
        fork.stop()
        fork.work = None
        self._say(ev.ProcessFailed(at=_now(), process=process, failure=failure))

    def end_all(self) -> None:
        """The agent has died, and its forks with it."""
        self.dead = True
        for fork in self.forks.values():
            self._leave(fork, "is gone")
            fork.stop()
        self.forks.clear()

    def _assign(self, command: do.Assign, base: bytes | None) -> None:
        fork = self.forks[command.process]
        fork.work, fork.base, fork.began_at, fork.handing_back = command, base, _now(), False
        self.began(command)
        if self.is_doomed(command.lease):
            self._later(fork, FAIL_S, lambda: self._fail(command.process, _EXCEPTION))
            return
        if command.lease.kind != "train":
            self._later(fork, SIDE_S, lambda: self._finish(fork, "done"))
            return
        if command.lease.gang is not None:
            self._later(fork, command.left_s, lambda: self._fail(command.process, _apart("not all came in time")))
            self.gangs.join(self._member(fork, command))
            return
        by_quota_s = command.lease.quota / _rate(command)
        reason: StopReason = "quota" if by_quota_s < command.left_s else "clock"
        seconds = min(by_quota_s, command.left_s)
        self._later(fork, seconds + SAVE_S, lambda: self._finish(fork, reason))

    def _member(self, fork: _Fork, command: do.Assign) -> Member:
        def finish(steps: int, reason: StopReason) -> None:
            if fork.work is command:
                fork.handing_back = True
                self._later(fork, SAVE_S, lambda: self._finish(fork, reason, steps))

        def fail(why: str) -> None:
            if fork.work is command and not self.dead:
                self._fail(command.process, Failure(kind="gang", message=why))

        return Member(command.lease, self.node, _rate(command), command.left_s, fork.stop, finish, fail)

    def _finish(self, fork: _Fork, reason: StopReason, in_gang: int | None = None) -> None:
        command, base = fork.work, fork.base
        if command is None:
            return
        fork.work = None
        lease, trained_s = command.lease, max(0.0, _now() - fork.began_at - SAVE_S)
        done = lease.quota if reason == "quota" else min(lease.quota, int(_rate(command) * trained_s))
        done = done if in_gang is None else in_gang
        steps = done if lease.kind == "train" else 0
        evaluation = None
        if base is not None and lease.base is not None and (lease.kind == "evaluate" or lease.evaluate_base):
            evaluation = Evaluation(
                version=lease.base_version, sha256=lease.base.sha256, metrics=_metrics(command, base)
            )
        outcome = ev.Outcome(
            reason=reason,
            steps=steps,
            samples=steps * lease.spec.batch_size,
            updates=steps,
            path=self._write(command, steps),
            evaluation=evaluation,
            throughput=_rate(command) if steps else 0.0,
            trained_s=trained_s,
        )
        self._say(ev.WorkDone(at=_now(), process=command.process, lease=command.lease_id, outcome=outcome))

    def _write(self, command: do.Assign, steps: int) -> str | None:
        lease = command.lease
        if lease.kind == "evaluate" or (lease.kind == "train" and steps == 0) or lease.key.rank > 0:
            return None
        path = f"{command.lease_id}@{command.process}"
        if lease.kind == "init":
            self.files[path] = pack(VersionWeights(job=lease.key.job_id, version=0, steps=0))
        else:
            assert lease.base is not None
            made = ForkWeights(lease=command.lease_id, epoch=lease.epoch, base=lease.base.name, steps=steps)
            self.files[path] = pack(made)
        return path

    def _gone(self, process: str) -> None:
        self.forks.pop(process, None)
        self._say(ev.ProcessEnded(at=_now(), process=process, free=True))

    def _say(self, event: ev.Event) -> None:
        if not self.dead:
            self.emit(event)

    def _later(self, fork: _Fork, after_s: float, act: Callable[[], None]) -> None:
        fork.stop()
        fork.timer = asyncio.get_running_loop().call_later(after_s, act)


def _apart(why: str) -> Failure:
    return Failure(kind="gang", message=f"the gang did not meet: {why}")


def _rate(command: do.Assign) -> float:
    return BASE_RATE * relative_speed(command.lease.device_type) * max(1, len(command.lease.devices))


def _metrics(command: do.Assign, base: bytes) -> dict[str, float]:
    """How far the evaluated version is, as a part of the job's steps, and a score in which candidates differ."""
    made = unpack(base)
    assert isinstance(made, VersionWeights)
    return {"progress": made.steps / command.lease.spec.total_steps, "score": float(made.version * len(made.how) % 7)}


def _now() -> float:
    return asyncio.get_running_loop().time()
