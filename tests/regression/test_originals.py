"""Baselines in our simulator against the simulators that they were published with, on the same trace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders_baselines import golden
from hadare.simulator.rates import shipped_table
from hadare.simulator.settings import Settings
from hadare.simulator.study import nodes_of, prepare, study
from hadare.simulator.traces import read_trace


def test_yarn_in_our_simulator_is_what_tiresias_simulator_says_of_it() -> None:
    """Durations times 20, as the golden case has them; four nodes of four equal devices, event by event."""
    nodes = nodes_of((f"n{number}", [("V100", 4)], {}) for number in range(4))
    rows = [replace(row, gpu_hours=20 * row.gpu_hours) for row in read_trace("tiresias_60")]
    settings = Settings(oracle=True, round_s=0.0, pace_s=3600.0)
    jobs = prepare(rows, shipped_table(), nodes)
    found = study(jobs, nodes, ["yarn-cs"], settings, bounds=False).metrics["yarn-cs"]
    expected = golden("tiresias_sim.json")["results"]["60_job_x20_yarn-fifo"]
    assert found.mean_jct_s == pytest.approx(expected["avg_jct"], rel=1e-4)
    assert found.median_jct_s == pytest.approx(expected["median_jct"], rel=1e-4)
    assert found.ttd_s == pytest.approx(expected["makespan"], rel=1e-4)
    assert found.preemptions == 0
