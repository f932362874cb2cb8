from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hadare.bench import quality
from hadare.bench.quality import FULL, at_steps, at_time, spread, time_to
from hadare.bench.quality_runs import (
    SPEEDS,
    TOGETHER,
    Case,
    Curve,
    Point,
    alone,
    better_of_both,
    forked,
    guarded,
    with_outer,
)
from hadare.forking.outer import DILOCO, Outer
from hadare.training.workloads import BUILTIN

CASE = Case(workload=BUILTIN[0], batch_size=8, budget=40, round_steps=20)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def a_curve(*metrics: float) -> Curve:
    return tuple(Point(time=10.0 * i, steps=24 * i, metric=m) for i, m in enumerate(metrics, start=1))


def test_every_built_in_workload_is_measured() -> None:
    assert {case.workload for case in FULL.values()} == set(BUILTIN)


def test_a_curve_is_read_at_a_time_and_at_a_number_of_steps() -> None:
    curve = a_curve(3.0, 2.0, 1.0)
    assert (at_time(curve, 20.0), at_time(curve, 29.0), at_steps(curve, 24), at_steps(curve, 71)) == (
        2.0,
        2.0,
        3.0,
        2.0,
    )


@pytest.mark.parametrize(
    ("target", "better", "time"),
    [(2.5, "lower", 20.0), (0.5, "lower", None), (2.5, "higher", 10.0), (4, "higher", None)],
)
def test_the_time_to_a_target_is_that_of_the_first_version_at_or_past_it(
    target: float, better: str, time: float | None
) -> None:
    assert time_to(a_curve(3.0, 2.0, 1.0), target, better) == time


def test_the_spread_is_of_the_seeds_that_have_a_value() -> None:
    assert (spread([1.0, 3.0]).mean, spread([1.0, 3.0]).deviation, spread([]).count) == (2.0, 1.0, 0)


def test_one_worker_is_followed_for_as_long_as_a_gang_would_need() -> None:
    plain, smooth = alone(CASE, 0)
    assert plain[-1].steps == round(CASE.budget * TOGETHER / CASE.round_steps) * CASE.round_steps
    assert [p.time for p in plain] == [p.time for p in smooth]
    assert plain[-1].metric != smooth[-1].metric


def test_forks_count_the_steps_of_all_in_the_time_of_the_fastest(tmp_path: Path) -> None:
    curve = forked(CASE, 0, tmp_path, with_outer(Outer()))
    assert [(p.time, p.steps) for p in curve] == [(20, 48), (40, 96)]
    assert sum(SPEEDS) * 2 == 48


def test_the_outer_step_makes_other_versions(tmp_path: Path) -> None:
    plain, stepped = (forked(CASE, 0, tmp_path, with_outer(outer)) for outer in (Outer(), DILOCO))
    assert plain[-1].metric != stepped[-1].metric


def test_a_guard_is_never_far_worse_than_the_average_in_its_first_round(tmp_path: Path) -> None:
    case = Case(workload=BUILTIN[0], batch_size=8, budget=20, round_steps=20)
    plain, chosen = (forked(case, 0, tmp_path, merge) for merge in (with_outer(Outer()), guarded))
    assert chosen[0].metric >= plain[0].metric


def test_the_default_is_the_better_of_a_version_and_the_average_of_versions(tmp_path: Path) -> None:
    curve = forked(CASE, 0, tmp_path, with_outer(Outer(), "round"))
    assert [p.metric for p in better_of_both(curve, "higher")] == [max(p.metric, p.smooth or 0) for p in curve]
    assert forked(CASE, 0, tmp_path, with_outer(Outer()))[-1].smooth is None


def test_processes_share_the_work_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "FULL", {"digits": CASE})
    alone_, shared = (quality.measure(["digits"], seeds=1, tuned=False, workers=n) for n in (1, 2))
    assert alone_ == shared


def test_a_learning_rate_is_the_workloads_times_a_factor() -> None:
    rates = [
        Case(workload=BUILTIN[0], batch_size=8, budget=1, round_steps=1, rate=rate).trainer(0).optimizer.param_groups[0]
        for rate in (1.0, 2.0)
    ]
    assert rates[1]["lr"] == 2 * rates[0]["lr"]


def test_in_full_each_setting_is_also_measured_at_its_best_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "FULL", {"digits": CASE})
    found = quality.measure(["digits"], seeds=2)
    settings = [cell.setting for cell in found.cells]
    assert settings[:8] == settings[8:] == list(quality.SETTINGS)
    assert {cell.rate for cell in found.cells[:8]} == {"same"}
    assert {cell.rate for cell in found.cells[8:]} == {"tuned"}
    assert {cell.factor for cell in found.cells[8:]} <= {0.5, 1.0, 2.0}


def test_a_gang_is_one_worker_in_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "FULL", {"digits": CASE})
    monkeypatch.setattr(quality, "_QUICK", {"digits": 40})
    cells = {cell.setting: cell for cell in quality.measure(["digits"], quick=True, seeds=1).cells}
    assert cells[quality.GANG].equal_steps == cells[quality.ONE].equal_steps
    assert cells[quality.GANG].equal_wall.mean != cells[quality.ONE].equal_wall.mean
