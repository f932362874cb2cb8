"""Decides for one node agent which leases run, on which process, until when, and what is reported of each.

Rules: a device belongs to at most one process, a process to at most one lease; every accepted lease ends in exactly one
result, whatever crashes, hangs or arrives twice; nothing is answered as free before it is proven free.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from hadare.machines import lease_commands as do
from hadare.machines import lease_events as ev
from hadare.machines.lease_devices import Devices
from hadare.machines.lease_orders import Fences, Revocations, Shutdown, fetch_for, order_of, shared_device, supersedes
from hadare.machines.lease_outbox import Outbox
from hadare.machines.lease_processes import ProcessPool
from hadare.machines.lease_state import (
    AT_WORK,
    WAITING,
    LeaseLimits,
    Phase,
    Process,
    ProcessState,
    Run,
    ended_record,
    failure,
    hung_text,
    result_of,
    same_work,
    started_record,
    step_report,
)
from hadare.model.devices import Device
from hadare.model.jobs import ObjectRef
from hadare.model.leases import Failure, Lease, LeaseAnswer, StopReason


class LeaseMachine:
    """Runs the leases of one node: ``handle`` an event, carry out the commands, in order."""

    def __init__(self, node: str, devices: Iterable[Device], limits: LeaseLimits | None = None) -> None:
        self._node = node
        self._limits = limits or LeaseLimits()
        self._devices = Devices(devices, self._limits.max_devices)
        self._out: list[do.Command] = []
        self._pool = ProcessPool(self._limits, self._say)
        self._outbox = Outbox(self._limits, self._say)
        self._revocations = Revocations(self._say)
        self._fences = Fences()
        self._shutdown = Shutdown(self._limits.farewell_s)
        self._runs: dict[ev.LeaseId, Run] = {}
        self._arrivals = 0

    # --- what others may look at ----------------------------------------------------------------------------------

    @property
    def devices(self) -> tuple[Device, ...]:
        return self._devices.all()

    def busy(self) -> dict[str, str]:
        """Which lease holds which device, by the device's index, for the heartbeat."""
        return self._pool.busy()

    def held(self) -> frozenset[int]:
        """Devices on which a process lives, at work or warm."""
        return self._pool.held()

    def wake_at(self) -> float | None:
        """When ``Ticked`` is due; after it, the answer is later, or another event must come first."""
        times = [self._pool.wake_at(), self._outbox.wake_at(), self._shutdown.wake_at()]
        times += [run.due for run in self._runs.values()]
        return min((at for at in times if at is not None), default=None)

    def check_invariants(self) -> None:
        """Raises ``AssertionError`` if a rule of this file is broken."""
        self._pool.check_invariants(self._runs)
        for run in self._runs.values():
            assert run.phase is not Phase.ENDED, f"{run.id} has ended and is still open"
            assert run.id not in self._outbox, f"{run.id} is open and has a result"

    # --- events -----------------------------------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> list[do.Command]:
        """What follows from an event. Same events, same commands; duplicates and late ones change nothing."""
        self._take(event)
        self._settle(event.at)
        commands, self._out = self._out, []
        return commands

    def _take(self, event: ev.Event) -> None:
        match event:
            case ev.LeaseArrived():
                self._say(do.AnswerLease(ticket=event.ticket, answer=self._lease_arrived(event.at, event.lease)))
            case ev.RevokeArrived():
                self._revoke(event)
            case ev.DrainAsked():
                self._drain(event)
            case ev.ResultsRecovered():
                for result in event.results:
                    self._outbox.add(str(result.key), result)
            case ev.BaseFetched():
                self._fetched(event)
            case ev.FetchFailed():
                self._fetch_failed(event)
            case ev.ProcessReady():
                if process := self._pool.get(event.process):
                    self._pool.ready(process, event.at)
            case ev.ProcessFailed():
                if process := self._pool.get(event.process):
                    self._process_failed(event.at, process, event.failure)
            case ev.ProcessEnded():
                self._process_ended(event)
            case ev.WorkProgressed():
                self._progressed(event)
            case ev.WorkDone():
                self._work_done(event)
            case ev.ResultUploaded():
                if (run := self._runs.get(event.lease)) and run.phase is Phase.UPLOADING:
                    self._end(run, event.at, run.reason(), obj=event.object)
            case ev.UploadFailed():
                if (run := self._runs.get(event.lease)) and run.phase is Phase.UPLOADING:
                    self._end(run, event.at, "failed", failure("upload", event.message))
            case ev.ResultAnswered():
                self._outbox.answered(event.lease, event.reason or ("counted" if event.counted else "not counted"))
            case ev.DeliveryFailed():
                self._outbox.failed(event.lease, event.at)
            case ev.HealthChanged():
                self._health_changed(event)
            case ev.Ticked():
                self._time_passed(event.at)
            case _:
                assert_never(event)

    # --- leases -----------------------------------------------------------------------------------------------------

    def _lease_arrived(self, at: float, lease: Lease) -> LeaseAnswer:
        lease_id = str(lease.key)
        if lease.node != self._node:
            return LeaseAnswer(accepted=False, reason=f"this is node {self._node}, not {lease.node}")
        if known := self._runs.get(lease_id):
            return self._arrived_again(known, lease)
        if lease_id in self._outbox:
            self._outbox.resend(lease_id)
            return LeaseAnswer(accepted=True, reason="it has ended; its result is on the way again")
        if refusal := self._fences.refusal(lease) or self._refusal(lease):
            return LeaseAnswer(accepted=False, reason=refusal)
        self._supersede(at, lease)
        self._arrivals += 1
        fetch = fetch_for(lease)
        run = Run(lease=lease, received_at=at, sequence=self._arrivals, fetched=fetch is None)
        self._runs[run.id] = run
        self._say(do.Follow(lease_id=run.id, lease=lease))
        if fetch is not None:
            self._say(fetch)
        return LeaseAnswer(accepted=True)

    def _arrived_again(self, run: Run, lease: Lease) -> LeaseAnswer:
        """A new allocator may take over a lease as it stands: its result then belongs to the new epoch."""
        if not same_work(run.lease, lease):
            return LeaseAnswer(accepted=False, reason=f"another lease has the name {run.id}")
        if lease.epoch > run.lease.epoch and not self._fences.refusal(lease):
            run.lease = replace(run.lease, epoch=lease.epoch)
        return LeaseAnswer(accepted=True, reason=f"it is known and {run.phase}")

    def _refusal(self, lease: Lease) -> str:
        if self._shutdown.asked:
            return "this node is shutting down"
        if len(self._runs) >= self._limits.max_open:
            return f"{len(self._runs)} leases are open already"
        if lease.kind != "init" and lease.base is None:
            return f"a lease to {lease.kind} needs base weights"
        if fault := self._devices.fault(lease):
            return fault
        holder = next((run.lease for run in self._rivals(lease) if not supersedes(lease, run.lease)), None)
        return f"device {shared_device(lease, holder)} is taken by {holder.key} in the same round" if holder else ""

    def _open(self) -> list[Run]:
        """Leases that have not been handed back."""
        return [run for run in self._runs.values() if run.phase is not Phase.UPLOADING]

    def _rivals(self, lease: Lease) -> list[Run]:
        """Open leases that hold, or wait for, a device of this one."""
        wanted = set(lease.devices)
        return [run for run in self._open() if wanted & set(run.lease.devices)]

    def _supersede(self, at: float, lease: Lease) -> None:
        """What older leases still do on these devices counts nothing any more: they hand back at once, or are ended."""
        for run in self._rivals(lease):
            if run.phase in WAITING:
                self._end(run, at, "clock")
            elif run.progress.phase != "handing_back":
                self._stop(run, at, "clock", self._limits.overdue_s(run))

    def _fetched(self, event: ev.BaseFetched) -> None:
        run = self._runs.get(event.lease)
        if run and run.phase in WAITING:
            run.fetched, run.base_path = True, event.path

    def _fetch_failed(self, event: ev.FetchFailed) -> None:
        run = self._runs.get(event.lease)
        if run and run.phase in WAITING and not run.fetched:
            self._end(run, event.at, "failed", failure("fetch", event.message))

    # --- processes and their work -----------------------------------------------------------------------------------

    def _process_failed(self, at: float, process: Process, fault: Failure) -> None:
        run = self._runs.get(process.lease or "")
        self._pool.kill(process, fault.message)
        if run:
            self._end(run, at, run.reason("failed"), fault)

    def _process_ended(self, event: ev.ProcessEnded) -> None:
        process = self._pool.get(event.process)
        if process is None:
            return
        run = self._runs.get(process.lease or "")
        self._pool.remove(process)
        if run:
            fault = failure("killed", event.reason or "its process is gone")
            self._end(run, event.at, run.reason("failed"), fault)
        self._revocations.process_ended(process.id, free=event.free)
        if not event.free:
            for index in process.devices:
                self._health_changed(ev.HealthChanged(at=event.at, device=index, healthy=False, reason=event.reason))

    def _progressed(self, event: ev.WorkProgressed) -> None:
        run = self._runs.get(event.lease)
        if run is None or run.process != event.process or run.phase not in AT_WORK:
            return
        news = event.progress.phase != run.progress.phase
        run.note_progress(event.progress, event.at)
        if news and event.progress.phase == "handing_back" and run.stop_reason in (None, "clock"):
            run.kill_at = event.at + self._limits.hand_back_s
            if run.phase is Phase.RUNNING:
                run.move(Phase.STOPPING)
        self._report(run, event.at, event.progress.phase, urgent=news)

    def _work_done(self, event: ev.WorkDone) -> None:
        run, process = self._runs.get(event.lease), self._pool.get(event.process)
        if run is None or process is None or run.process != process.id or run.phase not in AT_WORK:
            if event.outcome.path and (run is None or run.outcome is None):
                self._say(do.Discard(path=event.outcome.path))
            return
        run.outcome, run.done_at, run.process = event.outcome, event.at, None
        run.move(Phase.UPLOADING)
        self._pool.release(process, event.at)
        if run.stop_reason in ("revoked", "drained"):
            self._pool.kill(process, f"its lease was {run.stop_reason}")
        if event.outcome.path is None:
            self._end(run, event.at, run.reason())
            return
        self._say(do.Upload(lease=run.id, path=event.outcome.path, base=run.trained_from))
        self._report(run, event.at, "handing_back", urgent=run.progress.phase != "handing_back")

    def _stop(self, run: Run, at: float, reason: StopReason, grace_s: float) -> None:
        """Lets a fork hand back what it has; work that is all or nothing ends here."""
        if run.stop_reason in (None, "clock"):
            run.stop_reason = reason
        if run.lease.kind != "train":
            self._end(run, at, reason)
            return
        if run.phase is Phase.RUNNING:
            run.move(Phase.STOPPING)
            self._say(do.Stop(process=run.process or "", lease=run.id))
        run.kill_by(at + grace_s)

    def _end(
        self, run: Run, at: float, reason: StopReason, fault: Failure | None = None, obj: ObjectRef | None = None
    ) -> None:
        """The lease's one result. Its process is let go if it had not begun, and ended if it is at work."""
        process = self._pool.get(run.process)
        if process is not None and run.phase is Phase.PREPARING and process.lease == run.id:
            self._pool.release(process, at)
        elif process is not None and run.phase in AT_WORK:
            self._pool.kill(process, f"{run.id} has ended: {reason}")
        result = result_of(run, reason, fault, obj)
        self._say(do.Record(what="lease_ended", lease=run.id, data=ended_record(run, result, at)))
        run.move(Phase.ENDED)
        del self._runs[run.id]
        self._outbox.add(run.id, result)

    def _report(self, run: Run, at: float, phase: ev.WorkPhase, *, urgent: bool) -> None:
        if urgent or run.reported_at is None or at - run.reported_at >= self._limits.report_every_s:
            run.reported_at = at
            self._say(do.Report(report=step_report(run, phase)))

    # --- orders from outside ----------------------------------------------------------------------------------------

    def _revoke(self, event: ev.RevokeArrived) -> None:
        """The whole job, or leases by name: of a gang that has lost a rank, while the job's other forks go on."""
        named = self._fences.take_back(event.job_id, event.leases, event.epoch)
        runs = [r for r in self._open() if r.lease.key.job_id == event.job_id and (named is None or r.id in named)]
        works = {run.process for run in runs if run.phase in AT_WORK}
        self._wind_down(runs, event.at, "revoked", self._limits.revoke_grace_s)
        mine = [p for p in self._pool.all() if p.job_id == event.job_id and (named is None or p.id in works)]
        self._end_waiting(mine, "the job is revoked")
        self._revocations.add(event.ticket, (run.id for run in runs), (process.id for process in mine))

    def _drain(self, event: ev.DrainAsked) -> None:
        if self._shutdown.asked:
            return
        self._shutdown.ask(event.at, event.limit_s)
        self._wind_down(self._open(), event.at, "drained", min(self._limits.stop_grace_s, event.limit_s))
        self._end_waiting(self._pool.all(), "the agent is shutting down")

    def _wind_down(self, runs: Iterable[Run], at: float, reason: StopReason, grace_s: float) -> None:
        for run in runs:
            if run.phase in WAITING:
                self._end(run, at, reason)
            else:
                self._stop(run, at, reason, grace_s)

    def _end_waiting(self, processes: Iterable[Process], reason: str) -> None:
        for process in processes:
            if process.state is not ProcessState.BUSY:
                self._pool.kill(process, reason)

    def _health_changed(self, event: ev.HealthChanged) -> None:
        if not self._devices.change(event.device, healthy=event.healthy, reason=event.reason):
            return
        self._say(do.ReportHealth(devices=self.devices))
        if event.healthy:
            return
        # Not the node's fault for the job: the device is withdrawn, its neighbours may serve.
        fault = failure("device", f"device {event.device} is unhealthy: {event.reason}")
        for process in self._pool.all():
            if event.device in process.devices:
                self._process_failed(event.at, process, fault)
        for run in self._open():
            if event.device in run.lease.devices:
                self._end(run, event.at, "failed", fault)

    # --- time -------------------------------------------------------------------------------------------------------

    def _time_passed(self, at: float) -> None:
        for run in list(self._runs.values()):
            if run.due is not None and at >= run.due:
                self._out_of_time(run, at)
        for process in self._pool.overdue(at):
            fault = failure("hung", f"the process did not start within {self._limits.start_limit_s:g} s")
            self._process_failed(at, process, fault)
        self._pool.end_idle(at)
        self._outbox.tick(at)
        if self._shutdown.hurry(at):
            self._give_up(at)

    def _out_of_time(self, run: Run, at: float) -> None:
        if run.kill_at is not None:
            reason = run.reason("failed")
            self._end(run, at, reason, failure("hung", hung_text(run)) if reason == "failed" else None)
        elif run.lease.kind != "train":
            message = f"{run.lease.kind} did not finish within its {run.lease.duration_s:g} s ({run.phase})"
            self._end(run, at, "failed", failure("hung", message))
        elif run.phase is Phase.RUNNING:
            self._stop(run, at, "clock", self._limits.grace_s(run.lease))
        else:
            self._end(run, at, "clock")

    def _give_up(self, at: float) -> None:
        """The time to shut down is over: what runs is killed, what is uploading is lost."""
        for run in list(self._runs.values()):
            self._end(run, at, "drained")
        for process in self._pool.all():
            self._pool.kill(process, "the agent must stop now")

    # --- after every event ------------------------------------------------------------------------------------------

    def _settle(self, at: float) -> None:
        for run in sorted(self._runs.values(), key=lambda run: (order_of(run.lease), run.sequence)):
            if run.phase is Phase.QUEUED and self._pool.claim(run, at):
                run.move(Phase.PREPARING)
            if run.phase is Phase.PREPARING:
                self._try_assign(run, at)
        self._revocations.answer()
        quiet = not self._runs and not len(self._pool)
        if quiet and self._shutdown.finish(at, self._outbox.undelivered):
            self._say(do.Drained(undelivered=self._outbox.undelivered))

    def _try_assign(self, run: Run, at: float) -> None:
        process = self._pool.get(run.process)
        if process is None or process.state is not ProcessState.IDLE:
            self._report(run, at, "starting", urgent=False)
        elif not run.fetched:
            self._report(run, at, "fetching", urgent=False)
        else:
            self._assign(run, process, at)

    def _assign(self, run: Run, process: Process, at: float) -> None:
        run.move(Phase.RUNNING)
        process.state = ProcessState.BUSY
        left_s = max(0.0, run.deadline - at)
        self._say(
            do.Assign(process=process.id, lease_id=run.id, lease=run.lease, base_path=run.base_path, left_s=left_s)
        )
        self._say(do.Record(what="lease_started", lease=run.id, data=started_record(run, at)))

    def _say(self, command: do.Command) -> None:
        self._out.append(command)
