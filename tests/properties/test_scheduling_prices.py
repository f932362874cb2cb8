"""Prices, utilities, quotas and throughput, whatever the numbers."""

from hypothesis import assume, given
from hypothesis import strategies as st

from builders_snapshots import snapshots
from hadare.model.devices import NodeState
from hadare.model.jobs import Measured
from hadare.model.plans import Snapshot
from hadare.scheduling.division import quotas
from hadare.scheduling.eligibility import Cells, job_table
from hadare.scheduling.pricing import Curves, price_book
from hadare.scheduling.throughput import observe
from hadare.scheduling.utility import Stake, utility_names, utility_of

positive = st.floats(1e-3, 1e6)


@given(snapshots())
def test_prices_lie_within_their_bounds_and_rise_with_what_is_taken(snapshot: Snapshot) -> None:
    book = price_book(1, snapshot.nodes, snapshot.jobs, 360, now_s=snapshot.now_s)
    for curve in book.curves:
        prices = [curve.price(taken) for taken in range(curve.capacity + 1)]
        assert 0 < curve.u_min <= curve.u_max
        assert prices == sorted(prices)
        assert curve.u_min * (1 - 1e-9) <= prices[0]
        assert prices[-1] <= curve.u_max * (1 + 1e-9)


@given(snapshots())
def test_the_planner_prices_devices_by_the_very_curves_that_were_quoted(snapshot: Snapshot) -> None:
    cells = Cells(snapshot.nodes)
    curves = Curves(cells, price_book(1, snapshot.nodes, snapshot.jobs, 360, now_s=snapshot.now_s))
    book = price_book(1, snapshot.nodes, snapshot.jobs, 360, now_s=snapshot.now_s)
    assert len(book.curves) == len(cells.keys)
    for i, curve in enumerate(book.curves):
        assert abs(curves.marginal(cells.capacity)[i] - curve.price(curve.capacity)) <= 1e-9 * curve.u_max


@given(snapshots(), st.integers(1, 10_000))
def test_an_empty_cell_lets_any_job_in(snapshot: Snapshot, horizon: int) -> None:
    """One device of any type, held until the job has finished on it, costs less than the job is then worth."""
    nodes = [n for n in snapshot.nodes if n.state is NodeState.READY]
    book = price_book(1, nodes, snapshot.jobs, 360, horizon, now_s=snapshot.now_s)
    reserve = {curve.type: curve.price(0) for curve in book.curves}
    types = sorted(reserve)
    table = job_table(snapshot.jobs, types, snapshot.now_s)
    for row, job in enumerate(table.jobs):
        for column, device_type in enumerate(types):
            rate = float(table.rates[row, column])
            if rate > 0:
                left_s = job.steps_left / rate
                stake = table.stake_of(row)
                worth = utility_of(job.utility).value(stake, stake.age_s + left_s)
                assert worth > max(left_s / 360, 1.0) * reserve[device_type]


@given(st.sampled_from(utility_names()), st.lists(positive, min_size=8, max_size=8), positive, positive)
def test_finishing_later_is_never_worth_more(name: str, figures: list[float], left_s: float, later_s: float) -> None:
    stake = Stake(*figures)
    finish_s = stake.age_s + left_s
    assume(finish_s > stake.age_s)
    value = utility_of(name).value
    assert value(stake, finish_s + later_s) <= value(stake, finish_s)
    assert value(stake, finish_s + later_s) >= 0
    assert value(stake, finish_s + later_s) > 0 or name == "hard_deadline"


@given(st.integers(0, 10**7), st.lists(st.tuples(positive, st.floats(1, 4)), min_size=1, max_size=12))
def test_quotas_are_whole_steps_within_what_is_left(steps_left: int, forks: list[tuple[float, float]]) -> None:
    expected, slacks = [e for e, _ in forks], [s for _, s in forks]
    parts = quotas(steps_left, expected, slacks)
    assert sum(parts) <= steps_left
    assert sum(part > 0 for part in parts) == min(len(parts), steps_left)
    assert all(part >= 0 for part in parts)


@given(st.integers(0, 10**7), st.lists(positive, min_size=1, max_size=12))
def test_quotas_give_out_all_that_a_round_could_do(steps_left: int, expected: list[float]) -> None:
    parts = quotas(steps_left, expected, [1.5] * len(expected))
    assert sum(parts) >= min(steps_left, sum(expected))


@given(st.integers(50, 10**6), st.lists(st.floats(10, 1e6), min_size=1, max_size=8))
def test_forks_whose_quotas_bind_end_together(steps_left: int, expected: list[float]) -> None:
    assume(steps_left <= sum(expected))
    parts = quotas(steps_left, expected, [1.5] * len(expected))
    share = steps_left / sum(expected)
    ends = [part / e for part, e in zip(parts, expected, strict=True)]
    assert all(abs(end - share) <= (len(expected) + 1) / e for end, e in zip(ends, expected, strict=True))


@given(st.floats(0.01, 1e5), st.lists(st.floats(0.95, 1.05), min_size=3, max_size=10))
def test_after_the_first_observation_the_estimate_is_within_the_noise(truth: float, noise: list[float]) -> None:
    known = Measured(steps_per_s=truth * 2.6, count=0)
    for factor in noise:
        known = observe(known, truth * factor)
        assert abs(known.steps_per_s / truth - 1) <= 0.0501


@given(st.floats(0.01, 1e5), st.integers(1, 1000), st.floats(2, 50), st.booleans())
def test_a_change_of_speed_is_seen_after_two_rounds(truth: float, count: int, factor: float, faster: bool) -> None:
    now = truth * factor if faster else truth / factor
    known = observe(observe(Measured(steps_per_s=truth, count=count), now), now)
    assert known == Measured(steps_per_s=now, count=1)
