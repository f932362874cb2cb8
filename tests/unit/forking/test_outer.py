from __future__ import annotations

import math

import pytest

from hadare.forking.outer import AUTO, AVERAGE, CANDIDATES, DILOCO, Outer, choose, ema_decay, outer_of
from hadare.model.jobs import ConsolidationSpec, GuardSpec

LOWER = GuardSpec(metric="loss", better="lower", margin=0.01)
HIGHER = GuardSpec(metric="accuracy", better="higher", margin=0.01)


def test_the_papers_average_is_the_default() -> None:
    assert outer_of(ConsolidationSpec()) == Outer(rate=1.0, momentum=0.0)
    assert outer_of(ConsolidationSpec()).is_average


def test_diloco_has_the_measured_defaults() -> None:
    assert outer_of(ConsolidationSpec(method="diloco")) == Outer(rate=0.7, momentum=0.5)


def test_what_a_job_asks_for_wins() -> None:
    spec = ConsolidationSpec(method="diloco", outer_rate=1.0, outer_momentum=0.0)
    assert outer_of(spec) == Outer(rate=1.0, momentum=0.0)


def test_an_average_of_versions_forgets_half_in_a_half_life() -> None:
    assert ema_decay(300, 300) == 0.5
    assert ema_decay(600, 300) == 0.25
    assert ema_decay(17, "round") == 0.5


@pytest.mark.parametrize(
    ("steps", "rate"), [((5, 5, 5), 0.5), ((10, 6, 4, 3, 1), 0.5 * 10 * 24 / 162), ((10, 1), 0.5 * 110 / 101)]
)
def test_the_step_of_auto_is_longer_the_more_unequal_the_forks_are(steps: tuple[int, ...], rate: float) -> None:
    assert AUTO.of_round(steps) == Outer(rate=pytest.approx(rate), momentum=0.5)


def test_one_fork_alone_is_followed_by_auto_as_it_is() -> None:
    assert AUTO.of_round((7,)).is_average


def test_steps_that_a_job_has_chosen_do_not_depend_on_the_forks() -> None:
    assert DILOCO.of_round((10, 1)) == DILOCO


@pytest.mark.parametrize(
    ("scores", "guard", "chosen"),
    [
        ({"average": 1.0, "longer": 0.98}, LOWER, "longer"),
        ({"average": 1.0, "longer": 0.995}, LOWER, "average"),
        ({"average": 1.0, "longer": 1.5}, LOWER, "average"),
        ({"average": 0.90, "fastest": 0.92, "nesterov": 0.91}, HIGHER, "fastest"),
        ({"average": 0.90, "fastest": 0.905}, HIGHER, "average"),
        ({"average": 0.90, "fastest": 0.80}, HIGHER, "average"),
        ({"average": -1.0, "longer": -1.02}, LOWER, "longer"),
        ({"average": -1.0, "longer": -0.98}, LOWER, "average"),
        ({"average": math.nan, "longer": 3.0, "fastest": 2.0}, LOWER, "fastest"),
        ({"average": 1.0, "longer": -math.inf}, LOWER, "average"),
        ({"longer": math.nan}, LOWER, "average"),
        ({"average": 1.0, "nesterov": 0.5, "fastest": 0.5}, LOWER, "fastest"),
    ],
)
def test_the_guard_leaves_the_average_for_a_clear_gain_only(
    scores: dict[str, float], guard: GuardSpec, chosen: str
) -> None:
    assert choose(scores, guard) == chosen


def test_the_guard_always_has_the_average_to_fall_back_on() -> None:
    assert CANDIDATES[AVERAGE].is_average
