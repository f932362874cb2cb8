"""What must hold in every cluster, whatever fails: judged at each write to the state of record and each agent's act.

A law that is broken is written down with the moment, and ends the run. Laws look at what is stored, at what agents do
and at what was answered, never into a service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from hadare.dst import records
from hadare.dst.agent import SimAgent
from hadare.dst.gangs import SimGangs, gang_name
from hadare.dst.scenario import CONTROL, GUARD, Fault, Kind
from hadare.dst.weights import ForkWeights, VersionWeights, unpack
from hadare.forking.outer import AVERAGE, choose
from hadare.machines import lease_commands as do
from hadare.model.devices import NodeStatus
from hadare.model.jobs import JobProgress, Parent, VersionManifest
from hadare.model.leases import ForkResult, Lease
from hadare.model.rounds import NodeLeases, RoundHead

T = TypeVar("T")

Order = tuple[int, int]


GANG_END_S = 18.0
"""A node that says nothing is lost after 12 s, and the others' ranks have a few seconds to end."""

_HARMLESS = frozenset({Kind.FORK_CRASH, Kind.DEVICE_FAULT, Kind.DRAIN, Kind.PAUSE, Kind.CANCEL})


@dataclass(frozen=True, slots=True)
class Violation:
    at: float
    law: str
    detail: str

    def __str__(self) -> str:
        return f"{self.at:.3f} s: {self.law}: {self.detail}"


class Laws:
    """Sees everything; ``violations`` is empty as long as all is well."""

    def __init__(self, weights: dict[str, bytes], now: Callable[[], float], note: Callable[[str], None]) -> None:
        self.violations: list[Violation] = []
        self.progress: dict[str, JobProgress] = {}
        self.manifests: dict[tuple[str, int], VersionManifest] = {}
        self.head: RoundHead | None = None
        self.forgiven: set[str] = set()
        """Jobs that their user has cancelled: what was handed in for their last round counts nothing."""
        self.broken_jobs: frozenset[str] = frozenset()
        """Jobs that fail wherever they train."""
        self.poisoned: set[str] = set()
        """Nodes on which everything failed, for some time."""
        self.on_change: Callable[[], None] = lambda: None
        self._weights = weights
        self._now = now
        self._note = note
        self._leases: dict[str, NodeLeases] = {}
        self._fences: dict[tuple[str, str, str], int] = {}
        self._acknowledged: dict[str, ForkResult] = {}
        self._counted: dict[tuple[str, int, int], int] = {}
        self.gangs = SimGangs()

    def broken(self, law: str, detail: str) -> None:
        self.violations.append(Violation(self._now(), law, detail))
        self._note(f"VIOLATION {law}: {detail}")
        self.on_change()

    # --- the state of record ---

    def written(self, bucket: str, key: str, data: bytes | None) -> None:
        """Called with every write, once it has been made."""
        family, _, name = key.partition(".")
        if data is None:
            return
        if (bucket, family) == ("progress", "job"):
            self._progress_written(_decode(data, JobProgress))
        elif (bucket, family) == ("progress", "version"):
            self._manifest_written(_decode(data, VersionManifest))
        elif (bucket, key) == ("rounds", "head"):
            self._head_written(_decode(data, RoundHead))
        elif (bucket, family) == ("rounds", "leases"):
            self._leases_written(name, _decode(data, NodeLeases))
        elif bucket == "node_states":
            self._status_written(_decode(data, NodeStatus))

    def _status_written(self, status: NodeStatus) -> None:
        self._note(f"{status.node} is {status.state}: {status.reason}")
        if status.quarantine and status.node not in self.poisoned:
            self.broken("only a poisonous node is taken out", f"{status.node}: {status.quarantine}")

    def _progress_written(self, new: JobProgress) -> None:
        job, old = new.job_id, self.progress.get(new.job_id)
        self.progress[job] = new
        opened = f"open {new.open.round}.{new.open.epoch} {[e.outcome[0] for e in new.open.forks]}" if new.open else ""
        self._note(f"{job} {new.state} v{new.version} {new.steps}/{new.total_steps} {opened} {new.reason}")
        if old is None:
            if (new.version, new.steps) != (-1, 0):
                self.broken("a job begins at nothing", f"{job} appears at version {new.version}")
            return
        records.judge_progress(old, new, self.broken)
        if new.version != old.version:
            self._version_published(old, new)
        if new.state.ended:
            self.on_change()

    def _version_published(self, old: JobProgress, new: JobProgress) -> None:
        job, manifest = new.job_id, self.manifests.get((new.job_id, new.version))
        if new.version != old.version + 1:
            self.broken("versions form one chain", f"{job} went from version {old.version} to {new.version}")
        if manifest is None or manifest.weights != new.weights or manifest.steps != new.steps:
            self.broken("what is named is stored before", f"the manifest of {job} version {new.version} is {manifest}")
            return
        if new.weights is None or new.weights.name not in self._weights:
            self.broken("every version is readable", f"the weights of {job} version {new.version} are not there")
        if new.version == 0:
            return
        counted = sum(parent.steps for parent in manifest.parents)
        if new.steps - old.steps != counted:
            self.broken("steps are those of the counted forks", f"{job} grew by {new.steps - old.steps}, not {counted}")
        if manifest.base_version != old.version:
            self.broken("versions form one chain", f"{job} version {new.version} is built on {manifest.base_version}")
        self._guard_kept(new, manifest)
        for parent in manifest.parents:
            self._parent_counted(old, new, manifest, parent)

    def _guard_kept(self, new: JobProgress, manifest: VersionManifest) -> None:
        """A guard's version is the candidate that is said to be chosen, and the best of those whose scores it has."""
        told, data = manifest.guard, self._weights.get(manifest.weights.name)
        made = unpack(data) if data is not None else None
        if told is None or not isinstance(made, VersionWeights):
            return
        best = AVERAGE if told.reason else choose(told.scores, GUARD)
        if (told.chosen, made.how) != (best, best):
            self.broken("a guard keeps the best", f"{new.job_id} version {new.version} is {made.how}: {told}")

    def _parent_counted(self, old: JobProgress, new: JobProgress, manifest: VersionManifest, parent: Parent) -> None:
        job, who = new.job_id, f"{new.job_id} round {parent.round} fork {parent.fork}"
        known = self._counted.setdefault((job, parent.round, parent.fork), new.version)
        if known != new.version:
            self.broken("a fork is counted once", f"{who} is in versions {known} and {new.version}")
        entry = next((e for e in (old.open.forks if old.open else ()) if e.fork == parent.fork), None)
        if old.open is None or old.open.round != parent.round or entry is None or entry.outcome != "received":
            self.broken("only what the ledger holds is counted", f"{who}: {entry}")
            return
        if entry.steps != parent.steps or entry.object is None or entry.object.sha256 != parent.sha256:
            self.broken("only what the ledger holds is counted", f"{who}: {entry} became {parent}")
            return
        data = self._weights.get(entry.object.name)
        if data is None:
            self.broken("forks are kept until they are counted", f"the weights of {who} are gone")
            return
        made = unpack(data)
        if not isinstance(made, ForkWeights) or old.weights is None or made.base != old.weights.name:
            self.broken("forks train from the round's base", f"{who} was trained from {made}")
        elif made.lease != f"{job}.{parent.round}.{parent.fork}.{parent.attempt}" or made.steps != parent.steps:
            self.broken("steps are those that were trained", f"{who} counts {parent.steps}, made was {made}")
        version = unpack(self._weights[manifest.weights.name]) if manifest.weights.name in self._weights else None
        if isinstance(version, VersionWeights) and entry.object.name not in version.parts:
            self.broken("every counted fork is in the weights", f"{who} is not in {version.parts}")

    def _manifest_written(self, manifest: VersionManifest) -> None:
        key = (manifest.job_id, manifest.version)
        known, progress = self.manifests.get(key), self.progress.get(manifest.job_id)
        self.manifests[key] = manifest
        published = progress is not None and manifest.version <= progress.version
        if known is not None and published and (known.parents, known.weights) != (manifest.parents, manifest.weights):
            self.broken("a published version never changes", f"{key}: {known} became {manifest}")

    def _head_written(self, head: RoundHead) -> None:
        old, self.head = self.head, head
        self._note(f"round {head.round} of epoch {head.epoch} {head.state}: {head.forks} forks")
        records.judge_head(old, head, self.broken)

    def _leases_written(self, node: str, leases: NodeLeases) -> None:
        old = self._leases.get(node)
        self._leases[node] = leases
        records.judge_leases(old, leases, self.broken)

    # --- agents ---

    def lease_accepted(self, node: str, incarnation: str, lease: Lease) -> None:
        self._note(f"{node} takes {lease.key} of epoch {lease.epoch} on {list(lease.devices)}")
        issuer = "allocator" if lease.kind == "train" else "tracker"
        newest = self._fences.get((node, incarnation, issuer), 0)
        if lease.epoch < newest:
            self.broken("an old leader's lease is refused", f"{node} took {lease.key} of {lease.epoch} after {newest}")
        self._fences[node, incarnation, issuer] = max(newest, lease.epoch)

    def lease_refused(self, lease: Lease) -> None:
        if lease.gang is not None:
            self.gangs.broken.setdefault(gang_name(lease), self._now())

    def judge_gangs(self, agents: Sequence[SimAgent], faults: Iterable[Fault]) -> None:
        """No device works for a gang that has lost a rank long since, unless a fault may have kept the order away."""
        now = self._now()
        if any(_is_near(fault, now) and not _is_harmless(fault) for fault in faults):
            return
        for agent in agents:
            for fork in agent.trainer.forks.values():
                lease = fork.work.lease if fork.work is not None and not agent.plane.frozen else None
                lost_at = self.gangs.broken.get(gang_name(lease), now) if lease is not None and lease.gang else now
                if lease is not None and now - lost_at > GANG_END_S:
                    self.broken("a gang ends as one", f"{agent.node} is at {lease.key}, which lost a rank at {lost_at}")

    def is_broken(self, lease: Lease) -> bool:
        """Whether the job's own code fails here, as it does everywhere."""
        return lease.kind == "train" and lease.key.job_id in self.broken_jobs

    def work_began(self, agent: SimAgent, work: do.Assign) -> None:
        lease = work.lease
        self._note(f"{agent.node} begins {work.lease_id} on {list(lease.devices)} for {work.left_s:.2f} s")
        busy = [
            other.work.lease_id
            for name, other in agent.trainer.forks.items()
            if name != work.process and other.work is not None and set(other.command.devices) & set(lease.devices)
        ]
        if busy:
            self.broken("a device runs one lease", f"{agent.node} begins {work.lease_id} beside {busy}")
        if lease.kind != "train":
            return
        stored = self._leases.get(agent.node)
        if stored is None or stored.round < lease.key.round:
            self.broken("nothing is granted that is not stored", f"{work.lease_id} is not in {stored}")
        progress = self.progress.get(lease.key.job_id)
        expected = progress is not None and (
            progress.closed_round >= lease.key.round
            or (progress.open is not None and progress.open.round == lease.key.round)
            or progress.state.ended
        )
        if not expected:
            self.broken("nothing runs that the ledger does not expect", work.lease_id)

    def result_answered(self, result: ForkResult, *, counted: bool, reason: str) -> None:
        self._note(f"{result.key} of {result.node}: {'counted' if counted else reason}")
        if counted and result.key.rank > 0:
            self.broken("a gang's steps are counted once", f"{result.key} is counted beside its rank 0")
        if not counted or result.kind != "train" or result.object is None or result.failure is not None:
            return
        self._acknowledged[str(result.key)] = result
        progress = self.progress[result.key.job_id]
        if progress.open is not None and progress.open.round == result.key.round:
            entry = next((e for e in progress.open.forks if e.fork == result.key.fork), None)
            if entry is None or entry.outcome == "expected":
                self.broken("stored before it is acknowledged", f"{result.key}: {entry}")
        elif progress.closed_round < result.key.round:
            self.broken("stored before it is acknowledged", f"{result.key} is in no ledger")

    # --- the end ---

    def judge_end(self, agents: list[SimAgent], keep_versions: int) -> None:
        """Once all jobs have ended and everything had time to come to rest."""
        self._judge_end(agents, keep_versions, self.broken)

    def at_rest(self, agents: list[SimAgent], keep_versions: int) -> bool:
        """Whether ``judge_end`` would find nothing now, and no round is open."""
        found: list[str] = []
        self._judge_end(agents, keep_versions, lambda law, _detail: found.append(law))
        return not found and (self.head is None or self.head.state == "closed")

    def _judge_end(self, agents: list[SimAgent], keep_versions: int, broken: records.Broken) -> None:
        for key, result in sorted(self._acknowledged.items()):
            counted = (result.key.job_id, result.key.round, result.key.fork) in self._counted
            if not counted and result.key.job_id not in self.forgiven:
                broken("what was acknowledged is counted", f"{key}: {result.steps} steps are gone")
        for agent in agents:
            if agent.trainer.forks:
                broken("nothing is left behind", f"{agent.node} runs {sorted(agent.trainer.forks)}")
            if agent.disk.results:
                broken("nothing is left behind", f"{agent.node} keeps {sorted(agent.disk.results)}")
        for job, progress in sorted(self.progress.items()):
            records.judge_ended(progress, self.manifests, broken, hopeless=job in self.broken_jobs)
        wanted = records.wanted_objects(self.progress, self.manifests, keep_versions)
        if lost := sorted(wanted - self._weights.keys()):
            broken("every version is readable", f"not there: {lost}")
        if left := sorted(self._weights.keys() - wanted):
            broken("nothing is left behind", f"objects of no use: {left}")


def _is_near(fault: Fault, now: float) -> bool:
    return fault.at <= now <= fault.at + fault.for_s + GANG_END_S


def _is_harmless(fault: Fault) -> bool:
    """Whether it leaves the control plane and its messages alone."""
    return fault.kind in _HARMLESS or (fault.kind is Kind.KILL and fault.who not in CONTROL)


def _decode(data: bytes, kind: type[T]) -> T:
    return msgspec.msgpack.decode(data, type=kind)
