"""Where the time between two rounds goes, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hadare.bench.boundaries import PHASES, Boundary, boundaries, consolidations, medians, result_bytes, works
from hadare.bench.boundary_task import Mlp, width_for
from hadare.bench.round import RoundOptions, summary
from hadare.model.errors import Broken
from hadare.model.events import Event, StoredEvent

JOB = "apple"


def told(what: str, node: str, round_: int, **data: Any) -> StoredEvent:
    identity = {"kind": "train", "job": JOB, "round": round_, "fork": 0, "attempt": 0}
    return StoredEvent(sequence=1, at=0.0, event=Event(kind="node", id=node, what=what, data={**identity, **data}))


def a_lease(node: str, round_: int, accepted: float, ended: float, *, cold: bool = False) -> list[StoredEvent]:
    """Accepted, 10 ms later begun, 5 ms for loading, 15 ms to the first step; 30 ms to save and 40 to upload."""
    trained = (ended - 0.070) - (accepted + 0.030)
    end = {
        **{"steps": 9, "at_s": ended, "since_last_s": 0.070, "upload_s": 0.040, "trained_s": trained},
        "phases_ms": {"load": 5.0, "train": 1e3, "save": 30.0},
    }
    return [
        told("lease_started", node, round_, cold=cold, waited_s=0.010, at_s=accepted + 0.010),
        told("lease_ended", node, round_, **end),
    ]


def two_rounds(**second: Any) -> list[StoredEvent]:
    return [
        *a_lease("a", 1, 10.0, 12.0),
        *a_lease("b", 1, 10.0, 12.1),
        *a_lease("a", 2, 12.5, 14.0, **second),
        *a_lease("b", 2, 12.6, 14.0),
    ]


def test_every_millisecond_between_two_rounds_has_its_phase() -> None:
    first, second = boundaries(works(two_rounds(), JOB), {1: (12.11, 12.41)})
    assert first.phases == pytest.approx(
        {
            **{"save": 30.0, "upload": 40.0, "others": 110.0, "consolidate": 300.0},
            **{"plan": 90.0, "fetch": 10.0, "load": 5.0, "first_step": 15.0},
        }
    )
    assert second.phases["others"] == pytest.approx(10.0)
    for one in (first, second):
        assert sum(one.phases.values()) == pytest.approx(one.total_ms)


def test_a_fork_in_a_new_process_is_not_one_that_stayed() -> None:
    assert [one.node for one in boundaries(works(two_rounds(cold=True), JOB), {1: (12.11, 12.41)})] == ["b"]


def test_a_round_whose_consolidation_is_not_on_record_is_left_out() -> None:
    assert boundaries(works(two_rounds(), JOB), {2: (14.0, 14.1)}) == []


def test_leases_of_other_jobs_and_without_steps_are_left_out() -> None:
    strange = [told("lease_ended", "a", 1, steps=0), told("lease_started", "a", 1), *two_rounds()]
    assert works(strange, "pear") == []


def test_consolidations_are_put_on_the_monotonic_clock() -> None:
    span = {
        **{"name": "consolidate job", "start_ns": 1_000_500_000_000, "end_ns": 1_000_750_000_000},
        "attributes": {"hadare.job": JOB, "hadare.round": 4},
    }
    assert consolidations([span, {**span, "name": "else"}], JOB, 1000.0) == {4: (0.5, 0.75)}


def test_what_a_fork_sent_is_a_median_of_the_rounds() -> None:
    def a_span(total: int, job: str = JOB) -> dict[str, Any]:
        return {"name": "consolidate job", "attributes": {"hadare.job": job, "hadare.forks": 2, "hadare.bytes": total}}

    assert result_bytes([a_span(200), a_span(20), a_span(40), a_span(10**6, "pear")], JOB) == 20
    assert result_bytes([], JOB) == 0


def test_the_summary_has_medians() -> None:
    found = [Boundary("a", n, float(n), dict.fromkeys(PHASES, float(n))) for n in (1, 2, 9)]
    cost = summary(RoundOptions(), found)
    assert (cost.boundary_ms_median, cost.boundaries, cost.phases_ms) == (2.0, 3, medians(found))


def test_a_boundary_is_compared_with_its_transfers_alone() -> None:
    found = [Boundary("a", 1, 300.0, dict.fromkeys(PHASES, 1.0))]
    assert summary(RoundOptions(), found, raw_s=0.2).raw_ratio == pytest.approx(1.5)
    assert summary(RoundOptions(), found).raw_ratio is None


def test_what_travels_grows_with_the_optimisers_state_and_the_average_of_versions() -> None:
    plain = RoundOptions(params=100)
    adamw = RoundOptions(params=100, optimizer="adamw", average=True)
    assert (plain.fork_bytes, plain.version_bytes) == (400, 400)
    assert (adamw.fork_bytes, adamw.version_bytes) == (1200, 1600)


def test_nothing_measured_is_an_error_and_no_number() -> None:
    with pytest.raises(Broken, match="nothing was measured"):
        summary(RoundOptions(), [])


@pytest.mark.parametrize("params", [1000, 100_000, 1_000_000])
def test_the_model_has_the_size_that_was_asked_for(params: int) -> None:
    model = Mlp({"params": params, "optimizer": "sgd"}, 8, 0).build_model()
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == pytest.approx(params, rel=0.05)
    assert width_for(params) > 0
