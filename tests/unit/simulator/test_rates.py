"""True rates: rows, what an empty cell means, and what is assumed and flagged."""

from __future__ import annotations

import pytest

from builders_simulator import a_sim_job
from hadare.model.errors import Rejected
from hadare.scheduling.devices import pmi
from hadare.scheduling.throughput import workload_key
from hadare.simulator.jobs import SimJob, TraceRow, record_of
from hadare.simulator.rates import jobs_of, parse_table, shipped_table

PAPER = ("V100", "P100", "K80")


def a_job(types: tuple[str, ...] = PAPER, **row: object) -> SimJob:
    fields = {"job_id": "a", "arrival_s": 0.0, "model": "LM", "batch_size": 5, "total_steps": 10, **row}
    (job,) = jobs_of([TraceRow(**fields)], shipped_table(), types)  # type: ignore[arg-type]
    return job


def test_a_fork_on_one_device_runs_at_the_one_gpu_row() -> None:
    assert a_job(gang=8).fork_rates == {"V100": 109.16662, "P100": 90.77591, "K80": 25.4855}


def test_a_rank_of_a_gang_runs_at_its_part_of_the_gangs_row() -> None:
    assert a_job(gang=8).gang_rates["V100"] == pytest.approx(698.77329 / 8)


def test_an_empty_cell_cannot_run_there() -> None:
    job = a_job(model="ResNet-50", batch_size=128, gang=4)
    assert set(job.gang_rates) == {"V100", "P100"}
    assert set(job.fork_rates) == {"V100", "P100", "K80"}


def test_a_gang_without_a_row_runs_at_the_one_gpu_row_and_is_flagged() -> None:
    job = a_job(model="CycleGAN", batch_size=0, gang=4)
    assert job.gang_rates == job.fork_rates
    assert any("gang of 4" in flag for flag in job.flags)


def test_a_type_without_a_column_is_scaled_by_its_index_and_flagged() -> None:
    job = a_job(types=("V100", "A100"))
    known = (109.16662 / pmi("V100"), 90.77591 / pmi("P100"), 25.4855 / pmi("K80"))
    mean = (known[0] * known[1] * known[2]) ** (1 / 3)
    assert job.fork_rates["A100"] == pytest.approx(mean * pmi("A100"))
    assert any("A100" in flag for flag in job.flags)


def test_gpu_hours_become_steps_of_a_v100() -> None:
    job = a_job(total_steps=0, gpu_hours=2.0)
    assert job.total_steps == round(2 * 3600 * 109.16662)


def test_spread_is_what_the_table_says_of_gangs_over_servers() -> None:
    assert a_job(gang=8).spread["V100"] == pytest.approx(73.11998 / 698.77329)


def test_a_job_that_can_run_on_no_type_is_refused_with_its_place() -> None:
    with pytest.raises(Rejected, match=r"line 3.*ResNet-50"):
        a_job(types=("K80",), model="ResNet-50", batch_size=128, gang=4, place="t.csv line 3")


def test_a_bad_figure_of_a_table_is_refused_with_line_and_column() -> None:
    text = "model,batch_size_per_gpu,num_gpus,v100_steps_s\nLM,5,1,3.0\nLM,5,2,fast\n"
    with pytest.raises(Rejected, match=r"t\.csv line 3, column v100_steps_s"):
        parse_table(text, "t.csv")


def test_jobs_of_different_gangs_share_rates_only_where_they_fork() -> None:
    small, large = a_sim_job("small", gang=1), a_sim_job("large", gang=8)

    def alike(forking: bool) -> bool:
        return workload_key(record_of(small, forking).spec) == workload_key(record_of(large, forking).spec)

    assert (alike(forking=True), alike(forking=False)) == (True, False)
