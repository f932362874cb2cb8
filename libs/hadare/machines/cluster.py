"""The cluster as a policy sees it, built from the state of record. Used by the allocator and by pricing alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from hadare.forking.gain import gains
from hadare.forking.outer import outer_of
from hadare.machines import ledger
from hadare.machines.conduct import shunned
from hadare.model.devices import NodeInventory, NodeState, NodeStatus
from hadare.model.jobs import Desired, JobProgress, JobRecord, JobSpec, JobState, Measured
from hadare.model.plans import Gang, JobView, NodeView, Throughput
from hadare.scheduling.throughput import estimate, workload_key
from hadare.scheduling.utility import DEFAULT

STALE_ROUNDS = 5
"""Rounds of a single fork after which a job's fork gain is measured again."""

MOST_GAINS = 64
"""Forks up to which their gain is told apart; more are worth as much as these."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A view of a job, and what it was made of: most jobs are the same in the next round."""

    record: JobRecord
    progress: JobProgress | None
    types: list[str]
    shared: Mapping[str, Measured]
    shunned: Mapping[str, str]
    view: JobView


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Costs:
    """What moving and forking cost: seconds of a cold start, and bytes/s at which weights travel (0: nothing)."""

    restart_s: float = 0.0
    transfer_bytes_s: float = 0.0

    def consolidation_s(self, progress: JobProgress | None) -> float:
        """A fork hands its weights in and fetches the next version."""
        if progress is None or progress.weights is None or not self.transfer_bytes_s:
            return 0.0
        return 2.0 * progress.weights.bytes / self.transfer_bytes_s


class ClusterView:
    """Nodes, jobs and progress as they were last read. ``nodes()`` and ``jobs()`` are what goes into a snapshot."""

    def __init__(self, costs: Costs | None = None) -> None:
        self._costs = costs or Costs()
        self.inventories: dict[str, NodeInventory] = {}
        self.records: dict[str, JobRecord] = {}
        self.progress: dict[str, JobProgress] = {}
        self.round = 0
        """The round that the views are for."""
        self._views: dict[str, _Seen] = {}
        self._keys: dict[str, tuple[JobSpec, str]] = {}
        self._utility = DEFAULT

    def active(self) -> list[str]:
        """Jobs that have not ended and are not to end, by id."""
        return sorted(
            job_id
            for job_id, record in self.records.items()
            if record.desired is not Desired.CANCELLED and not self._state(job_id).ended
        )

    def nodes(self, statuses: Mapping[str, NodeStatus]) -> tuple[NodeView, ...]:
        """Healthy devices by type. A node without a status counts as suspect: it has not been heard yet."""
        views = []
        for name, inventory in sorted(self.inventories.items()):
            devices: dict[str, int] = {}
            memory: dict[str, float] = {}
            for device in inventory.devices:
                if device.healthy:
                    devices[device.type] = devices.get(device.type, 0) + 1
                    memory[device.type] = min(device.memory_gb, memory.get(device.type, device.memory_gb))
            state = statuses[name].state if name in statuses else NodeState.SUSPECT
            views.append(NodeView(node=name, state=state, devices=devices, memory_gb=memory, labels=inventory.labels))
        return tuple(views)

    def jobs(
        self,
        arrivals: Mapping[str, float],
        placed: Mapping[str, tuple[Gang, ...]],
        utility: str = DEFAULT,
        *,
        foreseen: bool = False,
    ) -> tuple[JobView, ...]:
        """Every active job. ``arrivals`` is on the cluster clock; a job that is not in it has just arrived.

        ``utility`` is that of the jobs that name none: a view always names one. ``foreseen``: a job whose next version
        is being made counts as if it were there (``ledger.foreseen``).
        """
        types = sorted({device.type for inventory in self.inventories.values() for device in inventory.devices})
        shared = self._shared()
        now = max(arrivals.values(), default=0.0)
        active = self.active()
        if len(self._views) > 2 * len(active) + 100 or utility != self._utility:
            self._views, self._keys = {}, {}
        self._utility = utility
        return tuple(
            self._view(
                job_id,
                self._progress(job_id, foreseen=foreseen),
                types,
                shared,
                arrivals.get(job_id, now),
                placed.get(job_id, ()),
            )
            for job_id in active
        )

    def bidders(self, arrivals: Mapping[str, float], utility: str = DEFAULT) -> tuple[JobView, ...]:
        """Every active job as pricing counts it: one whose round is not closed yet wants the next round too."""
        return tuple(
            replace(view, unready="") if view.unready and self._is_in_a_round(view.job_id) else view
            for view in self.jobs(arrivals, {}, utility, foreseen=True)
        )

    def view(self, job_id: str) -> JobView:
        """The job as it was last given out, or as it is now."""
        if job_id in self._views:
            return self._views[job_id].view
        types = sorted({device.type for inventory in self.inventories.values() for device in inventory.devices})
        progress = self.progress.get(job_id)
        return self._job(job_id, progress, types, self._shared().get(self._key(job_id), {}), 0.0, ())

    def placeable(self) -> bool:
        """Whether any job could take part in a round."""
        return any(not self._unready(job_id, self.progress.get(job_id)) for job_id in self.active())

    def _progress(self, job_id: str, *, foreseen: bool) -> JobProgress | None:
        progress = self.progress.get(job_id)
        return ledger.foreseen(progress) if foreseen and progress is not None else progress

    def _view(
        self,
        job_id: str,
        progress: JobProgress | None,
        types: list[str],
        shared: Mapping[str, Mapping[str, Measured]],
        arrival_s: float,
        placed: tuple[Gang, ...],
    ) -> JobView:
        """The job's view, made anew only if something of it has changed."""
        record, known = self.records[job_id], self._views.get(job_id)
        others = shared.get(self._key(job_id), {})
        away = shunned(progress, self.round, self.inventories)
        same = known is not None and known.record is record and known.progress is progress and known.shunned == away
        if known is None or not same or known.types != types or known.shared != others:
            view = self._job(job_id, progress, types, others, arrival_s, placed)
        elif known.view.arrival_s != arrival_s or known.view.placed != placed:
            view = replace(known.view, arrival_s=arrival_s, placed=placed)
        else:
            return known.view
        self._views[job_id] = _Seen(record, progress, types, others, away, view)
        return view

    def _key(self, job_id: str) -> str:
        """The job's workload key: hashing a configuration is dear, and a spec never changes."""
        spec = self.records[job_id].spec
        known = self._keys.get(job_id)
        if known is None or known[0] is not spec:
            known = self._keys[job_id] = (spec, workload_key(spec))
        return known[1]

    def is_closed(self, job_id: str, round_number: int) -> bool:
        """Whether the tracker has closed the round for the job; one that has ended or is unknown takes no part."""
        progress = self.progress.get(job_id)
        return progress is None or progress.state.ended or progress.closed_round >= round_number

    def is_being_made(self, job_id: str, round_number: int) -> bool:
        """Whether all forks of the round have ended for the job, some with a result: what it brings is known."""
        progress = self._progress(job_id, foreseen=True)
        return progress is not None and progress.open is None and progress.closed_round >= round_number

    def _job(
        self,
        job_id: str,
        progress: JobProgress | None,
        types: list[str],
        shared: Mapping[str, Measured],
        arrival_s: float,
        placed: tuple[Gang, ...],
    ) -> JobView:
        spec = self.records[job_id].spec
        measured = progress.throughput if progress else {}
        steps_left = spec.total_steps - (progress.steps if progress else 0)
        # No rate: prices, utilities and plans all leave the type out.
        out = progress.excluded_types if progress else {}
        rates = estimate(spec, measured, [kind for kind in types if kind not in out], shared)
        return JobView(
            job_id=job_id,
            arrival_s=arrival_s,
            steps_left=max(0, steps_left),
            total_steps=spec.total_steps,
            throughput=rates,
            gang=spec.gang,
            max_forks=1 if _is_alone(spec, progress) else spec.max_forks,
            min_fork_share=spec.min_fork_share,
            priority=spec.priority,
            utility=spec.utility or self._utility,
            deadline_s=spec.deadline,
            workload=spec.workload,
            batch_size=spec.batch_size,
            mode=spec.mode,
            weights_bytes=progress.weights.bytes if progress and progress.weights else 0,
            exchange_s={span: known.exchange_s for span, known in (progress.gang_times if progress else {}).items()},
            constraints=spec.constraints,
            excluded={**progress.excluded, **shunned(progress, self.round, self.inventories)} if progress else {},
            excluded_types=out,
            unready=self._unready(job_id, progress),
            placed=placed,
            restart_cost_s=self._costs.restart_s,
            consolidation_cost_s=self._costs.consolidation_s(progress),
            fork_gain=self._fork_gain(spec, progress, rates)
            if spec.mode == "auto" or spec.fork_gain == "measured"
            else (),
            barren=progress.barren if progress else 0,
        )

    def _fork_gain(
        self, spec: JobSpec, progress: JobProgress | None, rates: Mapping[str, Throughput]
    ) -> tuple[float, ...]:
        """What one, two, … forks on the cluster's fastest devices are worth; none as long as nothing is known.

        What was seen long ago is not known: the noise grows, and a job that never forks would never find out.
        """
        if progress is None or progress.truth is None or progress.truth.alone >= STALE_ROUNDS:
            return ()
        devices = (device for inventory in self.inventories.values() for device in inventory.devices if device.healthy)
        speeds = sorted((rates[d.type].steps_per_s for d in devices if d.type in rates), reverse=True)
        most = min(spec.max_forks or MOST_GAINS, MOST_GAINS)
        known, pace = progress.truth, outer_of(spec.consolidation).keeps_pace
        return gains(speeds[:most], known.fastest_steps, known.noise_steps, keeps_pace=pace)

    def _unready(self, job_id: str, progress: JobProgress | None) -> str:
        """Why the job cannot be placed whatever is free; empty if it can."""
        if self.records[job_id].desired is Desired.PAUSED:
            return "paused by its user"
        if progress is None:
            return "the tracker has not taken it up yet"
        if progress.version < 0:
            return progress.reason or "it has no initial model yet"
        if progress.open is not None:
            return f"its round {progress.open.round} is not closed yet"
        if progress.state is JobState.EVALUATING or progress.steps >= progress.total_steps:
            return "its last version is being evaluated"
        return ""

    def _shared(self) -> dict[str, dict[str, Measured]]:
        """What jobs of one workload have measured, by workload and type: the best known of each."""
        shared: dict[str, dict[str, Measured]] = {}
        for job_id, progress in sorted(self.progress.items()):
            if job_id not in self.records or not progress.throughput:
                continue
            known = shared.setdefault(self._key(job_id), {})
            for device_type, measured in progress.throughput.items():
                if device_type not in known or measured.count > known[device_type].count:
                    known[device_type] = measured
        return shared

    def _is_in_a_round(self, job_id: str) -> bool:
        progress = self._progress(job_id, foreseen=True)
        going_on = progress is not None and progress.open is not None and progress.steps < progress.total_steps
        return going_on and self.records[job_id].desired is Desired.RUN

    def _state(self, job_id: str) -> JobState:
        return self.progress[job_id].state if job_id in self.progress else JobState.QUEUED


def _is_alone(spec: JobSpec, progress: JobProgress | None) -> bool:
    """Whether the job does not fork yet; one that trains as a gang never does."""
    if spec.mode == "gang":
        return False
    if progress is None:
        return spec.fork_after != 0
    return not progress.bent if spec.fork_after == "auto" else progress.rounds < spec.fork_after


def note(known: dict[str, T], name: str, value: T | None) -> None:
    """Keeps what is stored under a name, or forgets what is no longer stored."""
    if value is None:
        known.pop(name, None)
    else:
        known[name] = value
