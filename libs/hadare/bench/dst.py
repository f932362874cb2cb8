"""Simulates many seeds on all cores with the control services as they run live, and shrinks what fails."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from hadare.dst.plane import SimPlane
from hadare.dst.scenario import FAULTS, Scenario, draw
from hadare.dst.shrink import shrink
from hadare.dst.weights import SimAverager
from hadare.dst.world import Verdict, simulate
from hadare.machines.job_book import TrackerSettings
from hadare.machines.nodes import NodeTimes
from hadare.machines.round_phases import RoundSettings
from hadare.runtime.election import Term

_BATCH = 10
_MOST_SHRUNK = 3


class LiveServices:
    """The control services by their modules' names, as the supervisor starts them: the library imports none."""

    def __init__(self) -> None:
        self._pricing: Any = import_module("hadare_pricing.service").Pricing
        self._tracker: Any = import_module("hadare_jobtracker.service").JobTracker
        self._allocator: Any = import_module("hadare_allocator.service").Allocator

    def pricing(self, plane: SimPlane) -> Awaitable[None]:
        work: Awaitable[None] = self._pricing(plane).run()
        return work

    def tracker(
        self, plane: SimPlane, averager: SimAverager, settings: TrackerSettings, instance: str, term: Term
    ) -> Awaitable[None]:
        work: Awaitable[None] = self._tracker(plane, averager, settings, instance, term).run()
        return work

    def allocator(
        self, plane: SimPlane, settings: RoundSettings, instance: str, times: NodeTimes, term: Term, tick_s: float
    ) -> Awaitable[None]:
        work: Awaitable[None] = self._allocator(plane, settings, instance, times, term, tick_s).run()
        return work


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """A seed that broke a law, and the fewest faults found that break it."""

    seed: int
    law: str
    detail: str
    at_s: float
    faults: tuple[str, ...] = ()
    story: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """``events``: messages, writes to the state of record, and events of agents, over all seeds."""

    seeds: int
    first_seed: int
    events: int
    rounds: int
    faults: int
    virtual_s: float
    seconds: float
    violations: int
    failing: tuple[Failing, ...] = ()


@dataclass(slots=True)
class _Sum:
    events: int = 0
    rounds: int = 0
    virtual_s: float = 0.0
    failing: list[Failing] = field(default_factory=list)

    def add(self, other: _Sum) -> None:
        self.events += other.events
        self.rounds += other.rounds
        self.virtual_s += other.virtual_s
        self.failing += other.failing


def replay(seed: int, faults: int = FAULTS) -> Verdict:
    """One seed, here and now."""
    return simulate(draw(seed, faults), LiveServices())


def run_campaign(
    seeds: int,
    first_seed: int = 1,
    faults: int = FAULTS,
    workers: int | None = None,
    said: Callable[[str], None] = lambda _line: None,
) -> Campaign:
    """Simulates ``seeds`` seeds; ``said`` hears how far it is. The first few that fail are shrunk."""
    began, total, done = time.monotonic(), _Sum(), 0
    batches = [
        range(start, min(start + _BATCH, first_seed + seeds)) for start in range(first_seed, first_seed + seeds, _BATCH)
    ]
    # Started afresh, not forked: a worker must not inherit threads, loops or random state.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=context) as pool:
        pending = {pool.submit(_run_batch, batch, faults): len(batch) for batch in batches}
        for finished in as_completed(pending):
            batch = finished.result()
            total.add(batch)
            done += pending[finished]
            for one in batch.failing:
                said(f"seed {one.seed} breaks a law: {one.law}: {one.detail}")
            said(f"{done} of {seeds} seeds, {total.events:,} events, {len(total.failing)} failing")
    failing = sorted(total.failing, key=lambda one: one.seed)
    shrunk = [_shrunk(one, faults) for one in failing[:_MOST_SHRUNK]]
    return Campaign(
        seeds=seeds,
        first_seed=first_seed,
        events=total.events,
        rounds=total.rounds,
        faults=faults * seeds,
        virtual_s=round(total.virtual_s, 1),
        seconds=round(time.monotonic() - began, 1),
        violations=len(failing),
        failing=(*shrunk, *failing[_MOST_SHRUNK:]),
    )


def _run_batch(seeds: range, faults: int) -> _Sum:
    total = _Sum()
    gc.collect()
    gc.freeze()  # what is imported stays, and need not be searched after every seed
    for seed in seeds:
        verdict = replay(seed, faults)
        gc.collect()
        total.add(_Sum(verdict.events, verdict.rounds, verdict.virtual_s))
        if verdict.violations:
            total.failing.append(_failing(seed, verdict))
    return total


def _failing(seed: int, verdict: Verdict) -> Failing:
    first = verdict.violations[0]
    return Failing(seed=seed, law=first.law, detail=first.detail, at_s=round(first.at, 3))


def _shrunk(failing: Failing, faults: int) -> Failing:
    services = LiveServices()

    def run(scenario: Scenario) -> Verdict:
        return simulate(scenario, services)

    verdict = shrink(replay(failing.seed, faults), run)
    small = _failing(failing.seed, verdict)
    return Failing(
        seed=failing.seed,
        law=small.law,
        detail=small.detail,
        at_s=small.at_s,
        faults=tuple(str(fault) for fault in verdict.scenario.faults),
        story=verdict.story,
    )
