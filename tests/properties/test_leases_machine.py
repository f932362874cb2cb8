"""The lease machine against an adversary: messages lost, doubled, late or out of order, processes that misbehave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from builders_leases import NODE, a_device, a_lease, a_ref
from hadare.machines import lease_commands as do
from hadare.machines import lease_events as ev
from hadare.machines.lease_state import LeaseLimits
from hadare.machines.leases import LeaseMachine
from hadare.model.leases import Failure, ForkResult, Lease, LeaseKind

LIMITS = LeaseLimits(
    cpu_slots=1,
    stop_grace_s=3.0,
    hand_back_s=6.0,
    revoke_grace_s=2.0,
    start_limit_s=15.0,
    retry_max_s=4.0,
    max_kept=10**6,
)
TYPES = ("V100", "T4", "T4")

pick = st.integers(0, 10**6)
seconds = st.floats(0.0, 8.0)
kinds = st.sampled_from(["train", "train", "train", "init", "evaluate"])
gangs = st.sampled_from([(0,), (1,), (2,), (1, 2)])


class World(RuleBasedStateMachine):
    """The machine, and everything outside of it as far as the machine can know it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.machine = LeaseMachine(NODE, [a_device(index, kind) for index, kind in enumerate(TYPES)], LIMITS)
        self.wire: list[Lease] = []
        self.epoch, self.round, self.issued = 1, 1, 0
        self.newest_epoch = {"allocator": 0, "tracker": 0}
        self.accepted: dict[str, Lease] = {}
        self.results: dict[str, ForkResult] = {}
        self.settled: set[str] = set()
        self.alive: dict[str, do.StartProcess] = {}
        self.ready: set[str] = set()
        self.work: dict[str, do.Assign] = {}
        self.killing: list[str] = []
        self.fetching: list[do.Fetch] = []
        self.fetched: set[str] = set()
        self.uploading: list[do.Upload] = []
        self.delivering: list[do.Deliver] = []
        self.revokes: dict[int, set[str]] = {}
        self.tickets = 0
        self.heard: list[ev.Event] = []
        self.drained = False
        self.draining = False

    # --- the machine's commands, carried out by the model ----------------------------------------------------------

    def give(self, event: ev.Event) -> None:
        commands = self.machine.handle(event)
        self.heard.append(event)
        for command in commands:
            self.perform(command)

    def perform(self, command: do.Command) -> None:
        match command:
            case do.StartProcess():
                assert command.process not in self.alive
                held = {device for process in self.alive.values() for device in process.devices}
                assert not held & set(command.devices), "a device is given to a second process"
                on_cpu = sum(not process.devices for process in self.alive.values())
                assert command.devices or on_cpu < LIMITS.cpu_slots
                self.alive[command.process] = command
            case do.Assign():
                assert command.process in self.ready, "work for a process that is not there"
                assert command.process not in self.work, "two leases on one process"
                assert command.process not in self.killing
                assert command.lease_id in self.accepted
                assert command.lease_id not in self.results, "an ended lease is run"
                assert command.lease.base is None or command.lease_id in self.fetched
                assert self.alive[command.process].devices == command.lease.devices
                assert self.alive[command.process].key.job_id == command.lease.key.job_id
                self.work[command.process] = command
            case do.Kill():
                assert command.process not in self.killing
                self.killing.append(command.process)
            case do.Fetch():
                self.fetching.append(command)
            case do.Upload():
                self.uploading.append(command)
            case do.Deliver():
                known = self.results.setdefault(command.lease, command.result)
                assert known == command.result, "a lease has two different results"
                assert command.lease in self.accepted, "a result of a lease that was refused"
                self.settled.discard(command.lease)
                self.delivering.append(command)
            case do.Forget():
                self.settled.add(command.lease)
            case do.AnswerRevoke():
                waited_for = self.revokes.pop(command.ticket)
                assert not waited_for & self.alive.keys(), "answered before the processes were gone"
            case do.Drained():
                assert not self.alive
                assert not self.drained
                assert command.undelivered == len(self.results.keys() - self.settled)
                self.drained = True
            case do.AnswerLease() | do.Follow() | do.Stop() | do.Discard():
                pass
            case do.Report() | do.Record() | do.ReportHealth():
                pass

    # --- the issuers -------------------------------------------------------------------------------------------------

    @rule(kind=kinds, job=st.sampled_from("ab"), devices=gangs, duration=st.floats(0.5, 20.0), at_once=st.booleans())
    def a_lease_is_issued(
        self, kind: LeaseKind, job: str, devices: tuple[int, ...], duration: float, at_once: bool
    ) -> None:
        self.issued += 1
        if kind != "train":
            devices = ()
        lease = a_lease(job, self.round, fork=self.issued, kind=kind, duration_s=duration)
        device_type = TYPES[devices[0]] if devices else "CPU"
        self.wire.append(replace(lease, devices=devices, device_type=device_type, epoch=self.epoch))
        if at_once:
            self.a_lease_arrives(len(self.wire) - 1, True)

    @rule(takeover=st.booleans())
    def begin_the_next_round(self, takeover: bool) -> None:
        self.round += 1
        self.epoch += takeover

    @precondition(lambda self: self.wire)
    @rule(which=pick, again=st.booleans())
    def a_lease_arrives(self, which: int, again: bool) -> None:
        """In any order; ``again``: another copy is still under way. Some never arrive at all."""
        lease = self.wire[which % len(self.wire)]
        if not again:
            self.wire.remove(lease)
        self.tickets += 1
        commands = self.machine.handle(ev.LeaseArrived(at=self.now, ticket=self.tickets, lease=lease))
        (answer,) = [command.answer for command in commands if isinstance(command, do.AnswerLease)]
        issuer = "allocator" if lease.kind == "train" else "tracker"
        if answer.accepted and str(lease.key) not in self.accepted:
            assert lease.epoch >= self.newest_epoch[issuer], "a lease from the past was accepted"
            assert not self.draining, "a lease was accepted by an agent that ends"
            self.accepted[str(lease.key)] = lease
        self.newest_epoch[issuer] = max(self.newest_epoch[issuer], lease.epoch)
        for command in commands:
            self.perform(command)

    @precondition(lambda self: self.alive)
    @rule(job=st.sampled_from("ab"))
    def a_revoke_arrives(self, job: str) -> None:
        self.tickets += 1
        self.revokes[self.tickets] = {name for name, process in self.alive.items() if process.key.job_id == job}
        self.give(ev.RevokeArrived(at=self.now, ticket=self.tickets, job_id=job))

    # --- processes ---------------------------------------------------------------------------------------------------

    def one_of(self, names: set[str], which: int) -> str:
        return sorted(names)[which % len(names)]

    @precondition(lambda self: self.starting())
    @rule(which=pick)
    def a_process_is_ready(self, which: int) -> None:
        process = self.one_of(self.starting(), which)
        self.ready.add(process)
        self.give(ev.ProcessReady(at=self.now, process=process))

    @rule()
    def all_goes_well(self) -> None:
        """Processes come up, bases arrive, what was killed is gone: the way to deep states."""
        for process in list(self.killing):
            self.gone(process)
        while self.fetching:
            self.a_fetch_ends(0, True)
        while self.starting():
            self.a_process_is_ready(0)

    @precondition(lambda self: self.alive)
    @rule(which=pick)
    def a_process_crashes(self, which: int) -> None:
        process = self.one_of(set(self.alive), which)
        self.work.pop(process, None)
        fault = Failure(kind="killed", message="signal 9")
        self.give(ev.ProcessFailed(at=self.now, process=process, failure=fault))

    @precondition(lambda self: self.work)
    @rule(which=pick, phase=st.sampled_from(["training", "handing_back"]))
    def a_process_reports(self, which: int, phase: ev.WorkPhase) -> None:
        assign = self.work[self.one_of(set(self.work), which)]
        progress = ev.Progress(phase=phase, steps=3)
        self.give(ev.WorkProgressed(at=self.now, process=assign.process, lease=assign.lease_id, progress=progress))

    @precondition(lambda self: self.work)
    @rule(which=pick, steps=st.integers(0, 9))
    def a_process_is_done(self, which: int, steps: int) -> None:
        """Also one that is being killed: its last words may be on their way."""
        assign = self.work.pop(self.one_of(set(self.work), which))
        path = f"{assign.lease_id}.{assign.process}" if steps and assign.lease.kind != "evaluate" else None
        outcome = ev.Outcome(reason="clock", steps=steps, path=path)
        self.give(ev.WorkDone(at=self.now, process=assign.process, lease=assign.lease_id, outcome=outcome))

    @precondition(lambda self: self.killing)
    @rule(which=pick)
    def a_killed_process_is_gone(self, which: int) -> None:
        self.gone(self.killing[which % len(self.killing)])

    def gone(self, process: str) -> None:
        self.killing.remove(process)
        self.alive.pop(process)
        self.ready.discard(process)
        self.work.pop(process, None)
        self.give(ev.ProcessEnded(at=self.now, process=process, free=True))

    def starting(self) -> set[str]:
        return self.alive.keys() - self.ready - set(self.killing)

    # --- transfers ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.fetching)
    @rule(which=pick, well=st.booleans())
    def a_fetch_ends(self, which: int, well: bool) -> None:
        fetch = self.fetching.pop(which % len(self.fetching))
        if well:
            self.fetched.add(fetch.lease)
            self.give(ev.BaseFetched(at=self.now, lease=fetch.lease, path="base"))
        else:
            self.give(ev.FetchFailed(at=self.now, lease=fetch.lease, message="no such object"))

    @precondition(lambda self: self.uploading)
    @rule(which=pick, well=st.booleans())
    def an_upload_ends(self, which: int, well: bool) -> None:
        upload = self.uploading.pop(which % len(self.uploading))
        if well:
            self.give(ev.ResultUploaded(at=self.now, lease=upload.lease, object=a_ref("b")))
        else:
            self.give(ev.UploadFailed(at=self.now, lease=upload.lease, message="the store is away"))

    @precondition(lambda self: self.delivering)
    @rule(which=pick, outcome=st.sampled_from(["counted", "refused", "lost"]))
    def a_delivery_ends(self, which: int, outcome: str) -> None:
        lease = self.delivering.pop(which % len(self.delivering)).lease
        if outcome == "lost":
            self.give(ev.DeliveryFailed(at=self.now, lease=lease, message="no answer"))
        else:
            self.give(ev.ResultAnswered(at=self.now, lease=lease, counted=outcome == "counted"))

    # --- time and trouble --------------------------------------------------------------------------------------------

    @rule(passed=seconds)
    def time_passes(self, passed: float) -> None:
        """An obliging shell: it wakes the machine whenever that is due."""
        end = self.now + passed
        while (wake_at := self.machine.wake_at()) is not None and wake_at <= end:
            self.now = max(self.now, wake_at)
            self.give(ev.Ticked(at=self.now))
            due = self.machine.wake_at()
            assert due is None or due > self.now, "the machine would spin"
        self.now = end

    @precondition(lambda self: self.round % 3 == 0)
    @rule(device=st.sampled_from([1, 2]), healthy=st.booleans())
    def a_devices_health_changes(self, device: int, healthy: bool) -> None:
        reason = "" if healthy else "Xid 79"
        self.give(ev.HealthChanged(at=self.now, device=device, healthy=healthy, reason=reason))

    @precondition(lambda self: self.heard)
    @rule(which=pick)
    def an_old_event_comes_again(self, which: int) -> None:
        event = self.heard[which % len(self.heard)]
        once_only = ev.RevokeArrived | ev.HealthChanged | ev.DrainAsked | ev.LeaseArrived
        if not isinstance(event, once_only):
            self.give(replace(event, at=self.now))

    @precondition(lambda self: len(self.heard) > 60 and not self.draining)
    @rule(limit=st.floats(0.5, 10.0))
    def the_agent_is_told_to_end(self, limit: float) -> None:
        self.draining = True
        self.give(ev.DrainAsked(at=self.now, limit_s=limit))

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def the_machine_is_sound(self) -> None:
        self.machine.check_invariants()

    @invariant()
    def a_device_is_held_by_one_living_lease(self) -> None:
        busy = self.machine.busy()
        on_devices = {
            f"{device}": assign.lease_id
            for assign in self.work.values()
            for device in assign.lease.devices
            if assign.process not in self.killing
        }
        assert on_devices.items() <= busy.items()

    def teardown(self) -> None:
        """Let everything come to its end: every accepted lease has its one result, and no process is left over."""
        if not self.draining:
            self.draining = True
            self.give(ev.DrainAsked(at=self.now, limit_s=30.0))
        self.settle(lambda: self.drained)
        assert self.drained
        assert not self.revokes, "a revoke was never answered"
        assert self.accepted.keys() == self.results.keys()

    def settle(self, done: Callable[[], bool]) -> None:
        for _ in range(1000):
            if done():
                return
            for process in list(self.killing):
                self.gone(process)
            while self.uploading:
                self.an_upload_ends(0, True)
            while self.delivering:
                self.a_delivery_ends(0, "counted")
            self.time_passes(1.0)


TestLeases = World.TestCase
