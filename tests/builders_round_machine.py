"""A round machine that is led through its rounds by hand."""

from __future__ import annotations

from typing import Any, TypeVar

from builders import a_job, a_node, some_progress
from hadare.machines.round_events import (
    AskOpen,
    AskPrices,
    GrantLeases,
    JobSeen,
    MakePlan,
    NodeHeard,
    NodeRegistered,
    Opened,
    Planned,
    ProgressSeen,
    Quoted,
    RoundCommand,
    RoundStored,
    StoreRound,
    Ticked,
)
from hadare.machines.round_phases import RoundSettings
from hadare.machines.rounds import RoundMachine
from hadare.model.devices import Heartbeat
from hadare.model.jobs import JobProgress
from hadare.model.plans import PriceBook
from hadare.model.rounds import OpenAnswer
from hadare.scheduling.policies import policy_of

C = TypeVar("C")


class World:
    """A machine that is led through its rounds by hand."""

    def __init__(self, machine: RoundMachine | None = None) -> None:
        self.machine = machine or RoundMachine(RoundSettings(epoch=1, round_s=10.0, grace_s=2.0))
        self.at = 0.0

    def send(self, event: Any) -> list[RoundCommand]:
        return self.machine.handle(event)

    def tick(self, at: float | None = None) -> list[RoundCommand]:
        self.at = self.at if at is None else at
        return self.send(Ticked(at=self.at))

    def node(self, name: str = "n1", *types: str) -> None:
        self.send(NodeRegistered(at=self.at, node=name, inventory=a_node(name, *types)))
        self.beat(name)

    def beat(self, name: str = "n1") -> None:
        beat = Heartbeat(node=name, incarnation="i1", sequence=0)
        self.send(NodeHeard(at=self.at, heartbeat=beat))

    def job(self, job_id: str = "job-a", **spec: Any) -> None:
        self.send(JobSeen(at=self.at, job_id=job_id, record=a_job(job_id, **spec)))

    def progress(self, job_id: str = "job-a", **changes: Any) -> list[RoundCommand]:
        progress: JobProgress = some_progress(job_id, **changes)
        return self.send(ProgressSeen(at=self.at, job_id=job_id, progress=progress))

    def begin(self) -> AskPrices:
        return one(self.tick(), AskPrices)

    def quote(self, number: int = 1) -> MakePlan:
        return one(self.send(Quoted(at=self.at, round=number, book=PriceBook(round=number))), MakePlan)

    def place(self, wish: MakePlan) -> StoreRound:
        plan, memory = policy_of(wish.policy).plan(wish.snapshot, wish.memory)
        return one(self.send(Planned(at=self.at, plan=plan, memory=memory)), StoreRound)

    def store(self, number: int = 1) -> AskOpen:
        return one(self.send(RoundStored(at=self.at, round=number)), AskOpen)

    def open(self, number: int = 1, *accepted: str) -> list[RoundCommand]:
        return self.send(Opened(at=self.at, answer=OpenAnswer(round=number, accepted=accepted or ("job-a",))))

    def run_to_grant(self) -> GrantLeases:
        self.begin()
        self.place(self.quote())
        self.store()
        return one(self.open(), GrantLeases)


def one(commands: list[RoundCommand], kind: type[C]) -> C:
    found = [command for command in commands if isinstance(command, kind)]
    assert len(found) == 1, commands
    return found[0]


def kinds(commands: list[RoundCommand]) -> list[type]:
    return [type(command) for command in commands]
