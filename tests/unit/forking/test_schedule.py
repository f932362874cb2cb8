from __future__ import annotations

import pytest

from hadare.forking.schedule import data_seed, position, schedule_span


@pytest.mark.parametrize("steps", [0, 1, 250, 749, 750, 999, 1000])
def test_with_one_fork_the_schedule_is_the_consumed_budget(steps: int) -> None:
    assert position(steps=steps, path=steps, total_steps=1000) == pytest.approx(steps / 1000)


def test_with_forks_the_schedule_follows_the_path_while_budget_is_left() -> None:
    assert position(steps=600, path=170, total_steps=1000) == pytest.approx(0.17)


def test_the_schedule_ends_with_the_job_however_short_its_path() -> None:
    assert position(steps=1000, path=280, total_steps=1000) == 1.0


def test_in_the_last_quarter_of_the_budget_the_schedule_catches_up() -> None:
    assert position(steps=875, path=250, total_steps=1000) == pytest.approx(0.5)


def test_more_steps_than_the_budget_do_not_lead_beyond_the_end() -> None:
    assert position(steps=1100, path=1100, total_steps=1000) == 1.0


def test_a_rounds_span_starts_where_the_last_one_ended() -> None:
    planned = [100, 50]
    first = schedule_span(steps=0, path=0.0, planned=planned, total_steps=1000)
    path = (100 * 100 + 50 * 50) / 150
    second = schedule_span(steps=150, path=path, planned=planned, total_steps=1000)
    assert first[0] == 0.0
    assert first[1] == pytest.approx(second[0])
    assert second[0] < second[1]


def test_a_round_without_steps_does_not_move_the_schedule() -> None:
    start, end = schedule_span(steps=500, path=300.0, planned=[], total_steps=1000)
    assert start == end


def test_no_two_forks_or_rounds_or_jobs_share_an_order_of_data() -> None:
    seeds = {data_seed(job, r, fork) for job in range(5) for r in range(20) for fork in range(20)}
    assert len(seeds) == 5 * 20 * 20


def test_an_order_of_data_is_the_same_on_every_machine() -> None:
    assert data_seed(0, 0, 0) == data_seed(0, 0, 0) == 3680262936881944


def test_a_data_seed_fits_into_a_lease() -> None:
    assert all(0 <= data_seed(s, 10**6, 4096) < 2**53 for s in range(100))
