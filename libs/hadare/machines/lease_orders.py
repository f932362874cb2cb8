"""What outranks the leases at hand: fencing numbers, revocations, and the end of the agent. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from hadare.machines.belongings import SENT_WEIGHTS
from hadare.machines.lease_commands import AnswerRevoke, Command, Fetch
from hadare.machines.lease_events import LeaseId, ProcessId
from hadare.model.leases import Lease, Revoked

Order = tuple[int, int]
_NONE_SEEN: Order = (-1, -1)
_MAX_REVOKED = 4096


def order_of(lease: Lease) -> Order:
    """Of two train leases that want one device, the one of the later (epoch, round) is right."""
    return (lease.epoch, lease.key.round)


def supersedes(new: Lease, old: Lease) -> bool:
    """A later round, or a later attempt at the same fork, takes a device from the older lease.

    Training always takes it from an evaluation, and never loses it to one: a guard must not cost anybody a step.
    """
    if new.kind != old.kind:
        return new.kind == "train"
    if order_of(new) != order_of(old):
        return order_of(new) > order_of(old)
    same_fork = (new.key.job_id, new.key.fork) == (old.key.job_id, old.key.fork)
    return same_fork and new.key.attempt > old.key.attempt


def shared_device(one: Lease, other: Lease) -> int:
    """The first device that both want."""
    return min(set(one.devices) & set(other.devices))


def fetch_for(lease: Lease) -> Fetch | None:
    """What must be on the node before the lease can begin: its base, or what version 0 shall be."""
    init = lease.kind == "init"
    ref = lease.spec.start_object if init else lease.base
    sent = init and ref is not None and ref.name.startswith(f"{SENT_WEIGHTS}.")
    return None if ref is None else Fetch(lease=str(lease.key), ref=ref, sent=sent)


class Fences:
    """The newest that was heard from each issuer; what is older is from the past."""

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}
        self._newest: Order = _NONE_SEEN
        self._revoked: dict[str, Order] = {}
        self._revoked_leases: dict[LeaseId, None] = {}

    def refusal(self, lease: Lease) -> str:
        """Why the lease is from the past, or ''. Remembers what it sees."""
        issuer = "allocator" if lease.kind == "train" else "tracker"
        newest = self._epochs.get(issuer, 0)
        if lease.epoch < newest:
            return f"epoch {lease.epoch} is over: the {issuer} is at epoch {newest}"
        if str(lease.key) in self._revoked_leases:
            return f"lease {lease.key} has been revoked"
        self._epochs[issuer] = lease.epoch
        return self._round_refusal(lease) if lease.kind == "train" else ""

    def take_back(self, job_id: str, leases: Collection[LeaseId], epoch: int) -> frozenset[LeaseId] | None:
        """Revokes a job (None: all of it) or leases of it by name: those that may be, by the epoch of the order."""
        if leases:
            return self._revoke_leases(epoch, leases)
        self._revoke(job_id)
        return None

    def _revoke(self, job_id: str) -> None:
        """A grant that left before the revocation and arrives after it must not start the job again."""
        self._revoked.pop(job_id, None)
        self._revoked[job_id] = self._newest
        if len(self._revoked) > _MAX_REVOKED:
            del self._revoked[next(iter(self._revoked))]

    def _revoke_leases(self, epoch: int, leases: Iterable[LeaseId]) -> frozenset[LeaseId]:
        """The same for single leases: those that are revoked. None, if the order is an older allocator's."""
        if epoch < self._epochs.get("allocator", 0):
            return frozenset()
        self._epochs["allocator"] = epoch
        self._revoked_leases |= dict.fromkeys(leases)
        for lease in list(self._revoked_leases)[:-_MAX_REVOKED]:
            del self._revoked_leases[lease]
        return frozenset(leases)

    def _round_refusal(self, lease: Lease) -> str:
        order = order_of(lease)
        if order < self._newest:
            return f"round {order[1]} is over: round {self._newest[1]} has begun on this node"
        self._newest = order
        if order <= self._revoked.get(lease.key.job_id, _NONE_SEEN):
            return f"job {lease.key.job_id} has been revoked in this round"
        return ""


@dataclass(slots=True)
class _Revocation:
    ticket: int
    ended: tuple[str, ...]
    waiting: set[ProcessId]
    free: bool = True


class Revocations:
    """Those that are not answered yet, each with the processes that must be proven gone first."""

    def __init__(self, say: Callable[[Command], None]) -> None:
        self._say = say
        self._open: list[_Revocation] = []

    def add(self, ticket: int, ended: Iterable[str], waiting: Iterable[ProcessId]) -> None:
        self._open.append(_Revocation(ticket, tuple(ended), set(waiting)))

    def process_ended(self, process: ProcessId, *, free: bool) -> None:
        for revocation in self._open:
            if process in revocation.waiting:
                revocation.waiting.discard(process)
                revocation.free &= free

    def answer(self) -> None:
        done = [revocation for revocation in self._open if not revocation.waiting]
        self._open = [revocation for revocation in self._open if revocation.waiting]
        for revocation in done:
            answer = Revoked(ended=revocation.ended, free=revocation.free)
            self._say(AnswerRevoke(ticket=revocation.ticket, answer=answer))


class Shutdown:
    """The agent's end: ``by`` when everything must have stopped, and how long results are still delivered after."""

    def __init__(self, farewell_s: float) -> None:
        self._farewell_s = farewell_s
        self._by: float | None = None
        self._hurried = False
        self._quiet_since: float | None = None
        self.done = False

    @property
    def asked(self) -> bool:
        return self._by is not None

    def ask(self, at: float, limit_s: float) -> None:
        self._by = at + limit_s

    def hurry(self, at: float) -> bool:
        """True once: the time to hand back is over."""
        if self._by is None or self._hurried or at < self._by:
            return False
        self._hurried = True
        return True

    def finish(self, at: float, undelivered: int) -> bool:
        """True once: nothing runs any more, and what is not delivered by now stays for the next incarnation."""
        if self._by is None or self.done:
            return False
        self._quiet_since = at if self._quiet_since is None else self._quiet_since
        self.done = not undelivered or at >= min(self._by, self._quiet_since + self._farewell_s)
        return self.done

    def wake_at(self) -> float | None:
        if self._by is None or self.done:
            return None
        if self._quiet_since is not None:
            return min(self._by, self._quiet_since + self._farewell_s)
        return None if self._hurried else self._by
