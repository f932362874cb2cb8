"""Gavel's rounds: how a share of the time becomes turns. What each job was given is held against what it should get.

Since the last reset, ``f[i, j]`` is job i's part of all the time that jobs spent on type j; each job begins with half a
round of credit. The priority of a job on a type is its share over f. A reset, at which the programme is solved anew,
keeps what a job missed as its deficit, which breaks ties.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hadare.scheduling.eligibility import Floats

UNSERVED = 1e9
"""Stands for 1/f of a job that has had no time at all."""


def priorities(shares: Floats, time_s: Floats, worker_s: Floats, rates: Floats) -> Floats:
    """``X/f``; ``1e9·X`` where f is 0; 0 where the share or the rate is 0."""
    fraction = np.divide(time_s, worker_s, out=np.zeros_like(time_s), where=worker_s > 0)
    urgency = np.divide(shares, fraction, out=UNSERVED * shares, where=fraction > 0)
    return np.asarray(np.where((shares > 0) & (rates > 0), urgency, 0.0), dtype=np.float64)


@dataclass(slots=True)
class Account:
    """Rows are jobs, columns types. ``worker_s`` is the time that jobs, those gone too, spent on each type."""

    shares: Floats
    time_s: Floats
    deficit_s: Floats
    worker_s: Floats
    reset_s: float
    at_s: float
    solved_for: str

    def reset(self, shares: Floats, now_s: float, credit_s: float, solved_for: str) -> None:
        """Begin anew with new shares; what was missed or had too much since the last reset is kept as deficit."""
        self.deficit_s += self.shares * (now_s - self.reset_s) - (self.time_s - credit_s)
        self.shares = shares
        self.time_s = np.full_like(shares, credit_s)
        self.worker_s = self.time_s.sum(axis=0)
        self.reset_s = now_s
        self.solved_for = solved_for


def recall(
    memory: Mapping[str, Any], jobs: Sequence[str], types: Sequence[str], now_s: float, credit_s: float
) -> Account:
    """The account of the round before, for the jobs and types of today, with the time that has passed since."""
    known: Mapping[str, Any] = memory.get("jobs", {})
    columns = {name: column for column, name in enumerate(memory.get("types", ()))}
    at_s = float(memory.get("at_s", now_s))
    table = np.zeros((3, len(jobs), len(types)))
    table[1] = credit_s
    pairs = [(new, columns[name]) for new, name in enumerate(types) if name in columns]
    old = [row for row, job in enumerate(jobs) if job in known]
    if old and pairs:
        rows = np.array([known[jobs[row]] for row in old], dtype=np.float64).transpose(1, 0, 2)
        for new, column in pairs:
            table[:, old, new] = rows[:, :, column]
    worker_s = np.full(len(types), credit_s * (len(jobs) - len(old)))
    for new, column in pairs:
        worker_s[new] += float(memory["worker_s"][column])
    index, here = {job: row for row, job in enumerate(jobs)}, {name: new for new, name in enumerate(types)}
    for job, name in memory.get("ran", {}).items():
        if name in here:
            worker_s[here[name]] += now_s - at_s
            if job in index:
                table[1, index[job], here[name]] += now_s - at_s
    return Account(
        shares=table[0],
        time_s=table[1],
        deficit_s=table[2],
        worker_s=worker_s,
        reset_s=float(memory.get("reset_s", now_s)),
        at_s=now_s,
        solved_for=str(memory.get("solved_for", "")),
    )


def remembered(account: Account, jobs: Sequence[str], types: Sequence[str], ran: Mapping[str, str]) -> dict[str, Any]:
    """What the next round needs of this one; ``ran`` maps each placed job to its type."""
    rows = np.stack([account.shares, account.time_s, account.deficit_s], axis=1).tolist()
    return {
        "types": list(types),
        "jobs": dict(zip(jobs, rows, strict=True)),
        "worker_s": account.worker_s.tolist(),
        "reset_s": account.reset_s,
        "at_s": account.at_s,
        "solved_for": account.solved_for,
        "ran": dict(sorted(ran.items())),
    }
