"""Who sees everything: writes to the state of record, leaders, and copies of the messages that faults send again."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from hadare.dst import records as laws
from hadare.model.errors import HadareError
from hadare.model.jobs import JobProgress
from hadare.model.leases import ForkResult, Lease, StepReport
from hadare.model.rounds import CloseRequest, Leader, NodeLeases, OpenRequest, RoundHead
from hadare.runtime.nats_connection import NatsBackplane
from hadare.wire import subjects
from hadare.wire.subjects import Endpoint, Records, Topic

R = TypeVar("R")

_KEPT = 400
_ASK_S = 2.0
Questioned = tuple[Endpoint[Any, Any], Any, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Violation:
    """A law, and what broke it."""

    law: str
    detail: str


@dataclass(frozen=True, slots=True)
class Failover:
    """Another process leads. ``gap_s``: from the last sign of the old leader to the first of the new one."""

    role: str
    epoch: int
    before: str
    after: str
    at: float
    gap_s: float


class Witness:
    """``run`` it beside the faults. Times are this machine's monotonic clock."""

    def __init__(self, backplane: NatsBackplane) -> None:
        self.violations: list[Violation] = []
        self.failovers: list[Failover] = []
        self.leaders: dict[str, str] = {}
        self.reported: dict[str, tuple[str, int]] = {}
        """Steps last reported of a training lease, and its node."""
        self.epochs: dict[tuple[str, str], int] = {}
        """Epoch of each training lease that was granted, by lease and node: the highest that was sent."""
        self.acknowledged: dict[str, ForkResult] = {}
        """Results that were sent again and answered as counted, by lease."""
        self.replayed = 0
        self._backplane = backplane
        self._progress: dict[str, JobProgress] = {}
        self._leases: dict[str, NodeLeases] = {}
        self._head: RoundHead | None = None
        self._seen: dict[str, tuple[Leader, float]] = {}
        self._questions: deque[Questioned] = deque(maxlen=_KEPT)

    def broken(self, law: str, detail: str) -> None:
        violation = Violation(law, detail)
        if violation not in self.violations:
            self.violations.append(violation)

    async def run(self, ready: asyncio.Event) -> None:
        """For ever. Sets ``ready`` once messages are copied."""
        bus = self._backplane.bus
        await bus.subscribe(_overheard(subjects.RESULT), self._copy(subjects.RESULT))
        await bus.subscribe(_overheard(subjects.GRANT), self._granted)
        await bus.subscribe(_overheard(subjects.OPEN_ROUND), self._copy(subjects.OPEN_ROUND))
        await bus.subscribe(_overheard(subjects.CLOSE_ROUND), self._copy(subjects.CLOSE_ROUND))
        await bus.subscribe(subjects.STEP_REPORT, self._report)
        ready.set()
        async with asyncio.TaskGroup() as watching:
            watching.create_task(self._watch(subjects.PROGRESS, self._progress_written))
            watching.create_task(self._watch(subjects.ROUND_HEAD, self._head_written))
            watching.create_task(self._watch(subjects.ROUND_LEASES, self._leases_written))
            watching.create_task(self._watch(subjects.ALLOCATOR_LEADER, self._leader("allocator")))
            watching.create_task(self._watch(subjects.TRACKER_LEADER, self._leader("jobtracker")))

    async def replay(self, rng: random.Random, count: int = 6) -> int:
        """Sends some of what was said before again, whatever became of it; how many were answered."""
        chosen = rng.sample(list(self._questions), min(count, len(self._questions)))
        answers = await asyncio.gather(*(self._ask_again(*question) for question in chosen))
        self.replayed += len(chosen)
        return sum(answers)

    async def _ask_again(self, endpoint: Endpoint[Any, Any], question: Any, tokens: dict[str, str]) -> bool:
        try:
            answer = await self._backplane.bus.ask(endpoint, question, timeout_s=_ASK_S, **tokens)
        except HadareError:
            return False  # refused, or nobody there: both are right
        if isinstance(question, ForkResult) and answer.counted and question.kind == "train":
            self.acknowledged[str(question.key)] = question
        return True

    # --- what is said ---

    def _copy(self, endpoint: Endpoint[Any, Any]) -> Callable[[Any], Awaitable[None]]:
        async def keep(question: ForkResult | OpenRequest | CloseRequest) -> None:
            self._questions.append((endpoint, question, {}))

        return keep

    async def _granted(self, lease: Lease) -> None:
        self._questions.append((subjects.GRANT, lease, {"node": lease.node}))
        if lease.kind == "train":
            name = (str(lease.key), lease.node)
            self.epochs[name] = max(lease.epoch, self.epochs.get(name, 0))

    async def _report(self, report: StepReport) -> None:
        if report.key.kind == "train":
            _, known = self.reported.get(str(report.key), ("", 0))
            self.reported[str(report.key)] = (report.node, max(known, report.steps))

    # --- what is stored ---

    async def _watch(self, records: Records[R], written: Callable[[R], None]) -> None:
        async for change in self._backplane.table(records).watch():
            if change.entry is not None:
                written(change.entry.record)

    def _progress_written(self, new: JobProgress) -> None:
        laws.judge_progress(self._progress.get(new.job_id), new, self.broken)
        self._progress[new.job_id] = new

    def _head_written(self, head: RoundHead) -> None:
        laws.judge_head(self._head, head, self.broken)
        self._head = head

    def _leases_written(self, leases: NodeLeases) -> None:
        laws.judge_leases(self._leases.get(leases.node), leases, self.broken)
        self._leases[leases.node] = leases

    def _leader(self, role: str) -> Callable[[Leader], None]:
        def written(new: Leader) -> None:
            now = time.monotonic()
            known = self._seen.get(role)
            self._seen[role] = (new, now)
            self.leaders[role] = new.holder
            if known is None:
                return
            old, at = known
            if new.epoch < old.epoch:
                self.broken("epochs only go up", f"{role}: {new.epoch} after {old.epoch}")
            if new.epoch > old.epoch:
                self.failovers.append(Failover(role, new.epoch, old.holder, new.holder, now, now - at))

        return written


def _overheard(endpoint: Endpoint[R, Any]) -> Topic[R]:
    """The questions of an endpoint, for who only listens."""
    return Topic(endpoint.template, endpoint.question)
