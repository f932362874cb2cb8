"""Which specs become jobs, and what may become of a job."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hadare.machines import admission
from hadare.machines.admission import check_spec, digest_of, name_of, read_spec
from hadare.model.errors import Rejected
from hadare.model.jobs import Desired, JobRecord, JobState


def a_spec(**changes: Any) -> dict[str, Any]:
    return {"workload": "pkg.mod:TinyNet", "total_steps": 100, "batch_size": 8, **changes}


def a_record(**changes: Any) -> JobRecord:
    intent = admission.intent_of(read_spec(a_spec()), "request-1", submitted_at=1.0, traceparent="")
    return dataclasses.replace(intent.record, **changes)


def faults(raw: object) -> dict[str, str]:
    return {fault.path: fault.message for fault in check_spec(raw)}


def test_a_correct_spec_has_no_faults() -> None:
    assert faults(a_spec(name="mine", until={"metric": "accuracy", "at_least": 0.9}, config={"lr": 0.1})) == {}


def test_every_fault_is_found_at_once() -> None:
    found = faults({"batch_size": 0, "total_steps": "many", "priority": -1, "seed": 1.5})
    assert set(found) == {"batch_size", "total_steps", "priority", "seed", "workload"}


def test_an_unknown_field_is_a_fault_with_a_suggestion() -> None:
    assert faults(a_spec(total_stepz=5)) == {"total_stepz": "there is no such field; did you mean 'total_steps'?"}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"fork_after": "aut"}, "expected a number or auto; got 'aut'; did you mean 'auto'?"),
        ({"consolidation": {"ema_half_life": "week"}}, "expected a number or round; got 'week'"),
    ],
)
def test_where_a_number_or_a_word_may_stand_a_wrong_word_is_told_the_right_one(
    changes: dict[str, Any], fault: str
) -> None:
    assert list(faults(a_spec(**changes)).values()) == [fault]


def test_an_unknown_field_far_from_any_known_one_gets_no_suggestion() -> None:
    assert faults(a_spec(qqqq=5)) == {"qqqq": "there is no such field"}


def test_a_fault_inside_a_nested_field_has_its_whole_path() -> None:
    assert set(faults(a_spec(constraints={"types": ["V100", "!"], "lables": {}}))) == {
        "constraints.types[1]",
        "constraints.lables",
    }


def test_every_faulty_element_of_a_list_is_found() -> None:
    found = faults(a_spec(constraints={"types": [1, "V100", "?"]}))
    assert set(found) == {"constraints.types[0]", "constraints.types[2]"}


def test_a_list_that_is_too_long_is_a_fault_of_the_list() -> None:
    assert set(faults(a_spec(constraints={"types": ["V100"] * 65}))) == {"constraints.types"}


@pytest.mark.parametrize(
    ("consolidation", "path"),
    [
        ({"outer_momentum": 0.5}, "consolidation.outer_momentum"),
        ({"method": "weighted_average", "outer_momentum": 0.0}, "consolidation.outer_momentum"),
        ({"method": "diloco", "outer_momentum": 1.0}, "consolidation.outer_momentum"),
        ({"method": "sgd"}, "consolidation.method"),
        ({"ema_half_life": 0}, "consolidation.ema_half_life"),
        ({"ema_half_life": "week"}, "consolidation.ema_half_life"),
        ({"method": "auto", "outer_rate": 1.0}, "consolidation.outer_rate"),
        ({"guard": {"metric": "loss", "better": "lower"}, "method": "diloco"}, "consolidation.guard"),
        ({"guard": {"metric": "loss", "better": "lower"}, "outer_rate": 1.5}, "consolidation.guard"),
        ({"guard": {"metric": "loss"}}, "consolidation.guard.better"),
    ],
)
def test_a_consolidation_that_cannot_be_is_named(consolidation: dict[str, object], path: str) -> None:
    assert list(faults(a_spec(consolidation=consolidation))) == [path]


def test_diloco_may_have_its_momentum_and_an_average_of_versions() -> None:
    wanted = {"method": "diloco", "outer_momentum": 0.9, "ema_half_life": 1000}
    assert faults(a_spec(consolidation=wanted)) == {}


@pytest.mark.parametrize(
    ("until", "path"),
    [
        ({"metric": "loss"}, "until"),
        ({"metric": "loss", "at_least": 1, "at_most": 2}, "until"),
        ({"metric": "", "at_most": 2}, "until.metric"),
        ({"at_most": 2}, "until.metric"),
    ],
)
def test_until_needs_a_metric_and_exactly_one_bound(until: dict[str, Any], path: str) -> None:
    assert set(faults(a_spec(until=until))) == {path}


def test_a_number_that_is_not_finite_is_a_fault_wherever_it_is() -> None:
    found = faults(a_spec(priority=float("nan"), config={"a": {"b": [1.0, float("inf")]}}))
    assert set(found) == {"priority", "config.a.b[1]"}


def test_a_config_may_hold_json_only() -> None:
    assert set(faults(a_spec(config={"when": b"x", "map": {1: 2}}))) == {"config.when", "config.map.1"}


def test_a_config_may_not_be_too_deep() -> None:
    deep: Any = 1
    for _ in range(64):
        deep = [deep]
    assert any("nested deeper" in message for message in faults(a_spec(config={"deep": deep})).values())


def test_a_wrong_choice_names_the_right_ones() -> None:
    message = faults(a_spec(utility="least_work"))["utility"]
    assert "hard_deadline, least_remaining_work, makespan, throughput" in message
    assert "did you mean 'least_remaining_work'" in message


def test_every_registered_utility_is_accepted_and_some_need_a_deadline() -> None:
    assert faults(a_spec(utility="finish_time_fairness")) == {}
    assert faults(a_spec(utility="hard_deadline", deadline=3600)) == {}
    assert "hard_deadline" in faults(a_spec(utility="hard_deadline"))["deadline"]


def test_a_truth_value_is_no_number() -> None:
    assert set(faults(a_spec(gang=True))) == {"gang"}


def test_a_gang_of_several_devices_is_allowed_with_forks() -> None:
    assert faults(a_spec(gang=4, mode="forks")) == {}


def test_a_name_may_not_look_like_a_jobs_identifier() -> None:
    assert set(faults(a_spec(name=admission.job_id_of("anything")))) == {"name"}


def test_a_variable_of_the_environment_needs_a_proper_name() -> None:
    assert set(faults(a_spec(env={"A=B": "x", "OK": "y"}))) == {"env.A=B"}


def test_what_is_not_a_map_is_one_fault() -> None:
    assert faults(["workload"]) == {"": "expected a map of fields, got list"}


def test_a_refusal_carries_all_faults_with_their_paths() -> None:
    with pytest.raises(Rejected) as refusal:
        read_spec({"workload": 1})
    assert refusal.value.code == 400
    assert {fault["path"] for fault in refusal.value.details["faults"]} == {"workload", "total_steps", "batch_size"}


def test_a_spec_that_is_too_large_is_refused() -> None:
    with pytest.raises(Rejected) as refusal:
        read_spec(a_spec(config={"text": "x" * admission.MAX_SPEC_BYTES}))
    assert refusal.value.code == 413


def test_whole_numbers_become_the_floats_that_a_field_wants() -> None:
    assert isinstance(read_spec(a_spec(priority=2)).priority, float)


def test_the_digest_ignores_order_and_spelt_out_defaults() -> None:
    plain, spelt = a_spec(), dict(reversed(a_spec(gang=1, seed=0, config={}).items()))
    assert digest_of(read_spec(plain)) == digest_of(read_spec(spelt))


def test_the_digest_changes_with_any_value() -> None:
    assert digest_of(read_spec(a_spec())) != digest_of(read_spec(a_spec(config={"lr": 0.1})))


def test_the_same_request_gives_the_same_job_identifier() -> None:
    assert admission.job_id_of("a") == admission.job_id_of("a") != admission.job_id_of("b")


def test_a_job_identifier_is_a_valid_name_for_a_subject_and_a_key() -> None:
    assert admission.job_id_of("Ünï code / any.text").isalnum()


def test_a_name_is_made_from_the_class_and_the_request() -> None:
    name = name_of(read_spec(a_spec()), "request-1")
    assert name.startswith("tiny-net-")
    assert name != name_of(read_spec(a_spec()), "request-2")


def test_a_class_without_letters_still_gives_a_name() -> None:
    assert name_of(read_spec(a_spec(workload="m:___")), "r").startswith("job-")


def test_a_chosen_name_is_kept() -> None:
    assert name_of(read_spec(a_spec(name="mine")), "request-1") == "mine"


@pytest.mark.parametrize("request_id", ["", "x" * 257])
def test_a_request_id_has_bounds(request_id: str) -> None:
    with pytest.raises(Rejected):
        admission.request_key(request_id)


@pytest.mark.parametrize("state", [state for state in JobState if not state.ended])
def test_cancelling_is_possible_in_every_open_state(state: JobState) -> None:
    assert admission.wish(a_record(), state, "cancel").desired is Desired.CANCELLED


def test_cancelling_wins_over_a_pause() -> None:
    paused = a_record(desired=Desired.PAUSED)
    assert admission.wish(paused, JobState.PAUSED, "cancel").desired is Desired.CANCELLED


@pytest.mark.parametrize("what", ["pause", "resume"])
def test_nothing_takes_a_cancellation_back(what: admission.Wish) -> None:
    with pytest.raises(Rejected) as refusal:
        admission.wish(a_record(desired=Desired.CANCELLED), JobState.RUNNING, what)
    assert refusal.value.code == 409


@pytest.mark.parametrize("what", ["cancel", "pause", "resume"])
@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED])
def test_nothing_can_be_wanted_of_a_job_that_has_ended(what: admission.Wish, state: JobState) -> None:
    with pytest.raises(Rejected) as refusal:
        admission.wish(a_record(), state, what)
    assert refusal.value.code == 409


@pytest.mark.parametrize("state", [JobState.CANCELLING, JobState.CANCELLED])
def test_cancelling_twice_changes_nothing(state: JobState) -> None:
    record = a_record(desired=Desired.CANCELLED)
    assert admission.wish(record, state, "cancel") is record


def test_pausing_twice_changes_nothing() -> None:
    record = a_record(desired=Desired.PAUSED)
    assert admission.wish(record, JobState.RUNNING, "pause") is record


def test_resuming_a_paused_job_lets_it_run() -> None:
    assert admission.wish(a_record(desired=Desired.PAUSED), JobState.PAUSED, "resume").desired is Desired.RUN


@pytest.mark.parametrize("state", [state for state in JobState if state.ended])
def test_a_job_that_has_ended_can_be_deleted(state: JobState) -> None:
    admission.check_delete(a_record(), state)


@pytest.mark.parametrize("state", [state for state in JobState if not state.ended])
def test_an_open_job_cannot_be_deleted_and_the_refusal_says_what_to_do(state: JobState) -> None:
    with pytest.raises(Rejected, match="cancel it first") as refusal:
        admission.check_delete(a_record(), state)
    assert refusal.value.code == 409
