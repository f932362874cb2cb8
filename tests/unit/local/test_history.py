import pytest

from builders_local import a_lease_end, an_event
from hadare.local.history import mean_completion, spans, total_duration, trainings, use_of_devices, utilisation


def test_a_lease_trained_from_its_first_to_its_last_step_on_the_streams_clock() -> None:
    (training,) = trainings([a_lease_end(110.0)])
    assert training.ended == 109.5
    assert training.began == 105.5


def test_leases_that_made_no_step_or_did_not_train_are_left_out() -> None:
    assert (
        trainings([a_lease_end(10.0, steps=0), a_lease_end(10.0, kind="evaluate"), an_event("lease_started", 1.0)])
        == []
    )


def test_a_fork_on_two_devices_occupies_both() -> None:
    assert [t.device for t in trainings([a_lease_end(10.0, devices=[1, 0])])] == [0, 1]


def test_a_job_spans_from_its_first_event_to_its_end() -> None:
    found = spans([an_event("submitted", 5.0), an_event("consolidated", 7.0), an_event("completed", 9.0)])
    assert (found["j1"].arrived, found["j1"].ended, found["j1"].end) == (5.0, 9.0, "completed")


def test_the_order_in_which_events_are_given_does_not_matter() -> None:
    found = spans([an_event("completed", 9.0), an_event("submitted", 5.0)])
    assert (found["j1"].arrived, found["j1"].ended) == (5.0, 9.0)


def test_ttd_is_from_the_first_arrival_to_the_last_end() -> None:
    events = [an_event("submitted", 5.0, entity="a"), an_event("submitted", 8.0, entity="b")]
    events += [an_event("completed", 20.0, entity="a"), an_event("failed", 12.0, entity="b")]
    found = spans(events)
    assert total_duration(found.values()) == 15.0
    assert mean_completion(found.values()) == (15.0 + 4.0) / 2


def test_a_run_in_which_nothing_has_ended_lasts_nothing() -> None:
    found = spans([an_event("submitted", 5.0)])
    assert total_duration(found.values()) == 0.0
    assert mean_completion(found.values()) == 0.0


def test_utilisation_is_trained_device_seconds_over_those_that_exist() -> None:
    found = trainings([a_lease_end(10.0), a_lease_end(10.0, node="n2", trained_s=2.0)])
    assert utilisation(found, devices=3, duration_s=4.0) == pytest.approx(6.0 / 12.0)


def test_utilisation_of_nothing_is_zero() -> None:
    assert utilisation([], devices=0, duration_s=0.0) == 0.0


def test_the_rate_of_a_device_weighs_its_leases_by_their_time() -> None:
    found = trainings([a_lease_end(10.0), a_lease_end(20.0, steps=30, trained_s=2.0, nominal_rate=20.0)])
    (use,) = use_of_devices(found)
    assert use.reached_rate == pytest.approx(130 / 6)
    assert use.nominal_rate == pytest.approx((25 * 4 + 20 * 2) / 6)
    assert use.leases == 2


def test_a_device_that_is_not_emulated_counts_as_reached() -> None:
    (use,) = use_of_devices(trainings([a_lease_end(10.0, nominal_rate=0.0)]))
    assert use.reached == 1.0
