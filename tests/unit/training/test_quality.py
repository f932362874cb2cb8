from __future__ import annotations

from pathlib import Path

from hadare.model.jobs import JobSpec
from hadare.training.local import run_local
from hadare.training.quality import quotas, run_forked
from hadare.training.workloads import BUILTIN


def test_forks_do_steps_in_proportion_to_their_speeds() -> None:
    assert quotas((10.0, 5.0, 1.0), 100, 10**6) == [100, 50, 10]


def test_the_last_round_ends_the_budget_exactly() -> None:
    last = quotas((10.0, 5.0, 1.0), 100, 37)
    assert sum(last) == 37
    assert last[0] > last[1] > last[2]


def test_forks_use_up_the_budget_in_rounds(tmp_path: Path) -> None:
    spec = JobSpec(workload=BUILTIN[0], total_steps=100, batch_size=8)
    done = run_forked(spec, tmp_path, speeds=(2.0, 1.0), fastest_steps=20)
    assert (done.steps, done.rounds, done.rejected) == (100, 4, 0)
    assert 0.0 < min(done.agreements) <= max(done.agreements) <= 1.0


def test_one_fork_in_one_round_is_one_worker(tmp_path: Path) -> None:
    spec = JobSpec(workload=BUILTIN[0], total_steps=60, batch_size=8)
    alone = run_local(spec, seed=0)
    assert run_forked(spec, tmp_path, seed=0, speeds=(1.0,), fastest_steps=60).metrics == alone.metrics
