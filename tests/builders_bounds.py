"""The exact optimum of small workloads, found by trying everything, second by second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np
from hypothesis import strategies as st

from hadare.scheduling.bounds import Workload
from hadare.simulator.jobs import SimJob
from hadare.simulator.rates import jobs_of, shipped_table
from hadare.simulator.traces import read_trace

Progress = tuple[int, ...]

TWENTY_OF_EACH = np.array([20.0, 20.0, 20.0])


TYPES = ("V100", "P100", "K80")


def gavel_jobs(trace: str) -> tuple[SimJob, ...]:
    """A shipped trace with Gavel's measured rates."""
    return jobs_of(read_trace(trace), shipped_table(), TYPES)


def gavel_work(jobs: Sequence[SimJob], *, forks: bool, width: bool = False) -> Workload:
    """Jobs on 20 devices of each type, at the rates of single devices (``forks``) or of a rank of their own gang."""
    return Workload(
        np.array([[job.rates(forks).get(t, 0.0) for t in TYPES] for job in jobs]),
        np.array([float(job.total_steps) for job in jobs]),
        TWENTY_OF_EACH,
        np.array([job.arrival_s for job in jobs]),
        np.array([float(job.gang) for job in jobs]) if width else None,
    )


class Exact:
    """Optima over schedules that change at whole seconds. ``gangs``: a job has exactly its width of devices or none.

    Such schedules are some of all, so an optimum over all is never above these.
    """

    def __init__(self, work: Workload, *, gangs: bool = False) -> None:
        self._rates = work.rates.astype(int).tolist()
        self._steps = tuple(work.steps.astype(int).tolist())
        self._devices = work.devices.astype(int).tolist()
        self._arrival = work.arrival_s.astype(int).tolist()
        self._width = None if work.width is None else work.width.astype(int).tolist()
        self._gangs = gangs
        self._moves = cache(self._all_moves)
        self._sum = cache(self._least_sum)
        self._end = cache(self._least_end)

    def mean_jct(self) -> float:
        return float(self._sum(0, self._steps)) / len(self._steps)

    def duration(self) -> float:
        return float(self._end(0, self._steps) - min(self._arrival))

    def _least_sum(self, now: int, left: Progress) -> float:
        if not any(left):
            return 0
        here = sum(1 for steps, at in zip(left, self._arrival, strict=True) if steps and at <= now)
        return here + min(self._sum(min(now + 1, max(self._arrival)), after) for after in self._next(now, left))

    def _least_end(self, now: int, left: Progress) -> float:
        if not any(left):
            return now
        if now < max(self._arrival):
            return min(self._end(now + 1, after) for after in self._next(now, left))
        return 1 + min(self._end(now, after) for after in self._next(now, left))

    def _next(self, now: int, left: Progress) -> set[Progress]:
        ready = tuple(bool(s) and at <= now for s, at in zip(left, self._arrival, strict=True))
        return {
            tuple(max(0, steps - done) for steps, done in zip(left, move, strict=True)) for move in self._moves(ready)
        } - ({left} if any(ready) else set())

    def _all_moves(self, ready: tuple[bool, ...]) -> list[Progress]:
        moves = {
            self._progress(split) for split in product(*(splits(c, ready) for c in self._devices)) if self._ok(split)
        }
        return [m for m in moves if not any(m != o and all(a <= b for a, b in zip(m, o, strict=True)) for o in moves)]

    def _ok(self, split: tuple[Progress, ...]) -> bool:
        if self._width is None:
            return True
        held = [sum(counts) for counts in zip(*split, strict=True)]
        if self._gangs:
            return all(count in (0, width) for count, width in zip(held, self._width, strict=True))
        return all(count <= width for count, width in zip(held, self._width, strict=True))

    def _progress(self, split: tuple[Progress, ...]) -> Progress:
        return tuple(
            sum(split[r][job] * self._rates[job][r] for r in range(len(split))) for job in range(len(self._steps))
        )


def splits(devices: int, ready: tuple[bool, ...]) -> Iterator[Progress]:
    """Every way to give some of the devices of a type to the jobs that are ready."""
    for counts in product(*(range(devices + 1) if able else (0,) for able in ready)):
        if sum(counts) <= devices:
            yield counts


@st.composite
def small_workloads(draw: st.DrawFn, *, width: bool = False, arrivals: bool = False) -> Workload:
    jobs, types = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    devices = [draw(st.integers(1, 2)) for _ in range(types)]
    rates = [[draw(st.integers(0, 3)) for _ in range(types)] for _ in range(jobs)]
    for row in rates:
        if not any(row):
            row[0] = 1
    wide = [draw(st.integers(1, min(2, sum(c for c, x in zip(devices, row, strict=True) if x)))) for row in rates]
    return Workload(
        rates=np.array(rates, dtype=float),
        steps=np.array([draw(st.integers(1, 7)) for _ in range(jobs)], dtype=float),
        devices=np.array(devices, dtype=float),
        arrival_s=np.array([draw(st.integers(0, 4)) if arrivals else 0 for _ in range(jobs)], dtype=float),
        width=np.array(wide, dtype=float) if width else None,
    )
