"""Which leases an agent accepts, and how one runs from its grant to its result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders_leases import NODE, Bench, a_device, a_lease, a_ref, a_spec
from hadare.machines import lease_commands as do
from hadare.machines import lease_events as ev
from hadare.machines.lease_state import TRANSITIONS, LeaseLimits, Phase, Run
from hadare.model.errors import Broken
from hadare.model.jobs import ObjectRef
from hadare.model.leases import Failure


def test_an_accepted_lease_fetches_its_base_while_its_process_starts() -> None:
    bench = Bench()
    lease = a_lease()
    assert bench.lease(lease).accepted
    assert bench.only(do.Fetch).ref == lease.base
    assert bench.only(do.StartProcess).devices == (0,)
    assert not bench.some(do.Assign)


def test_training_begins_when_both_the_base_and_the_process_are_there() -> None:
    bench = Bench()
    bench.lease(a_lease(), at=0.0)
    bench.ready("p1", at=2.0)
    assert not bench.some(do.Assign)
    bench.fetched(a_lease(), at=3.0)
    assign = bench.only(do.Assign)
    assert (assign.process, assign.base_path, assign.left_s) == ("p1", "base", 7.0)


def test_an_init_lease_needs_no_base() -> None:
    bench = Bench()
    lease = a_lease(kind="init")
    bench.lease(lease)
    assert not bench.some(do.Fetch)
    bench.ready("p1")
    assert bench.only(do.Assign).base_path is None


def test_a_finished_fork_uploads_and_then_delivers_its_result() -> None:
    bench = Bench()
    lease = a_lease()
    process = bench.training(lease)
    bench.done(process, lease, at=10.0, steps=321, samples=321 * 32, updates=321, throughput=33.0, nominal_rate=35.0)
    assert bench.only(do.Upload).path == "weights"
    assert not bench.some(do.Deliver)
    bench.uploaded(lease, at=11.0)
    result = bench.only(do.Deliver).result
    assert (result.steps, result.samples, result.updates, result.reason) == (321, 321 * 32, 321, "clock")
    assert (result.object, result.base_version, result.epoch, result.ranks) == (a_ref("b"), 0, 1, 1)
    assert (result.throughput, result.nominal_rate, result.failure) == (33.0, 35.0, None)


def test_an_evaluation_is_delivered_without_an_upload() -> None:
    bench = Bench()
    lease = a_lease(kind="evaluate")
    process = bench.training(lease)
    bench.done(process, lease, path=None, steps=0, reason="done")
    assert not bench.some(do.Upload)
    assert bench.only(do.Deliver).result.reason == "done"


@pytest.mark.parametrize(
    ("lease", "reason"),
    [
        (a_lease(node="south"), "this is node north"),
        (a_lease(devices=(5,)), "no device 5"),
        (a_lease(devices=(0, 0)), "named twice"),
        (a_lease(device_type="T4"), "device 0 is a V100, not a T4"),
        (a_lease(base=None), "needs base weights"),
        (a_lease(kind="evaluate", base=None), "needs base weights"),
    ],
)
def test_a_lease_that_cannot_run_here_is_refused_with_the_reason(lease: object, reason: str) -> None:
    bench = Bench()
    answer = bench.lease(lease)  # type: ignore[arg-type]
    assert not answer.accepted
    assert reason in answer.reason
    assert bench.news == [do.AnswerLease(ticket=1, answer=answer)]


def test_an_unhealthy_device_is_refused() -> None:
    bench = Bench(a_device(0, healthy=False, reason="Xid 79"))
    assert "Xid 79" in bench.lease(a_lease()).reason


def test_a_lease_of_an_older_epoch_is_refused() -> None:
    bench = Bench()
    bench.lease(a_lease("apple", epoch=5))
    answer = bench.lease(a_lease("pear", devices=(1,), epoch=4))
    assert (answer.accepted, answer.reason) == (False, "epoch 4 is over: the allocator is at epoch 5")


def test_the_trackers_leases_are_fenced_apart_from_the_allocators() -> None:
    bench = Bench()
    bench.lease(a_lease(epoch=5))
    assert bench.lease(a_lease(kind="evaluate", epoch=2)).accepted
    assert not bench.lease(a_lease("pear", kind="evaluate", epoch=1)).accepted


def test_a_train_lease_of_a_round_that_is_over_on_this_node_is_refused() -> None:
    bench = Bench()
    bench.lease(a_lease("apple", 4))
    assert "round 3 is over" in bench.lease(a_lease("pear", 3, devices=(1,))).reason


def test_a_refused_lease_leaves_nothing_behind() -> None:
    bench = Bench()
    bench.lease(a_lease(devices=(7,)))
    assert bench.machine.wake_at() is None
    assert bench.machine.busy() == {}


def test_a_lease_that_arrives_twice_is_accepted_twice_and_runs_once() -> None:
    bench = Bench()
    bench.training(a_lease())
    again = bench.lease(replace(a_lease(), traceparent="00-another"))
    assert again.accepted
    assert len(bench.ever(do.StartProcess)) == 1
    assert len(bench.ever(do.Assign)) == 1


def test_a_finished_lease_that_arrives_again_has_its_result_sent_again() -> None:
    bench = Bench()
    lease = a_lease()
    process = bench.training(lease)
    bench.done(process, lease, path=None)
    bench.give(ev.ResultAnswered(at=1.0, lease=str(lease.key), counted=True))
    assert bench.lease(lease, at=2.0).accepted
    assert bench.only(do.Deliver).result.key == lease.key
    assert not bench.some(do.StartProcess)


def test_another_lease_under_the_same_name_is_refused() -> None:
    bench = Bench()
    bench.training(a_lease())
    assert "another lease has the name" in bench.lease(a_lease(devices=(1,))).reason


def test_a_running_lease_that_a_new_allocator_repeats_reports_to_the_new_epoch() -> None:
    bench = Bench()
    process = bench.training(a_lease(epoch=1))
    assert bench.lease(a_lease(epoch=2)).accepted
    bench.done(process, a_lease(), path=None)
    assert bench.only(do.Deliver).result.epoch == 2


def test_a_device_belongs_to_one_lease_of_a_round() -> None:
    bench = Bench()
    bench.training(a_lease("apple"))
    answer = bench.lease(a_lease("pear"))
    assert (answer.accepted, answer.reason) == (False, "device 0 is taken by apple.1.0.0 in the same round")


def test_a_later_attempt_at_the_same_fork_takes_its_device() -> None:
    bench = Bench()
    bench.training(a_lease(attempt=0))
    assert bench.lease(a_lease(attempt=1), at=1.0).accepted
    assert bench.only(do.Stop).lease == "apple.1.0.0"


def test_an_earlier_attempt_does_not_take_the_device_back() -> None:
    bench = Bench()
    bench.training(a_lease(attempt=1))
    assert not bench.lease(a_lease(attempt=0), at=1.0).accepted


def test_two_leases_run_side_by_side_on_two_devices() -> None:
    bench = Bench()
    bench.training(a_lease("apple", devices=(0,)))
    bench.training(a_lease("pear", devices=(1,)))
    assert bench.machine.busy() == {"0": "apple.1.0.0", "1": "pear.1.0.0"}


def test_the_next_rounds_lease_waits_for_a_device_that_is_still_handing_back() -> None:
    bench = Bench()
    first, second = a_lease("apple", 1), a_lease("apple", 2)
    process = bench.training(first)
    bench.tick(10.0)
    assert bench.lease(second, at=10.5).accepted
    bench.fetched(second, at=10.6)
    assert not bench.some(do.Assign)
    bench.done(process, first, at=12.0)
    assign = bench.only(do.Assign)
    assert (assign.lease, assign.process) == (second, process)
    assert assign.left_s == pytest.approx(8.5), "the duration counts from receipt"


def test_the_next_rounds_lease_ends_an_older_one_that_still_trains() -> None:
    bench = Bench()
    process = bench.training(a_lease("apple", 1))
    bench.lease(a_lease("apple", 2), at=5.0)
    assert bench.only(do.Stop) == do.Stop(process=process, lease="apple.1.0.0")


def test_the_next_rounds_lease_ends_an_older_one_that_never_began() -> None:
    bench = Bench()
    bench.lease(a_lease("apple", 1))
    bench.lease(a_lease("apple", 2), at=5.0)
    assert bench.only(do.Deliver).result.steps == 0
    bench.fetched(a_lease("apple", 2), at=6.0)
    bench.ready("p1", at=6.0)
    assert bench.only(do.Assign).lease.key.round == 2


def test_a_fork_that_stays_keeps_its_warm_process() -> None:
    bench = Bench()
    process = bench.training(a_lease("apple", 1))
    bench.done(process, a_lease("apple", 1), at=10.0)
    bench.lease(a_lease("apple", 2, fork=3), at=11.0)
    bench.fetched(a_lease("apple", 2, fork=3), at=11.0)
    assert bench.only(do.Assign).process == process
    assert len(bench.ever(do.StartProcess)) == 1
    assert not bench.ever(do.Kill)


def test_another_jobs_warm_process_is_proven_gone_before_the_new_one_starts() -> None:
    bench = Bench()
    process = bench.training(a_lease("apple", 1))
    bench.done(process, a_lease("apple", 1), at=10.0)
    bench.lease(a_lease("pear", 2), at=11.0)
    assert bench.only(do.Kill).process == process
    assert not bench.some(do.StartProcess)
    bench.gone(process, at=12.0)
    assert bench.only(do.StartProcess).process != process


def test_a_warm_process_on_other_devices_is_not_reused() -> None:
    bench = Bench()
    process = bench.training(a_lease("apple", 1, devices=(0,)))
    bench.done(process, a_lease("apple", 1), at=10.0)
    bench.lease(a_lease("apple", 2, devices=(1,)), at=11.0)
    assert bench.only(do.StartProcess).devices == (1,)


def test_a_gang_waits_until_all_its_devices_are_free() -> None:
    bench = Bench()
    one = bench.training(a_lease("apple", 1, devices=(0,)))
    other = bench.training(a_lease("pear", 1, fork=1, devices=(1,)))
    bench.tick(10.0)
    bench.lease(a_lease("fig", 2, devices=(0, 1)), at=10.5)
    bench.done(one, a_lease("apple", 1), at=11.0)
    bench.gone(one, at=11.5)
    assert not bench.ever(do.StartProcess)[2:]
    bench.done(other, a_lease("pear", 1, fork=1), at=12.0)
    bench.gone(other, at=12.5)
    assert bench.only(do.StartProcess).devices == (0, 1)


def test_leases_without_devices_share_the_cpu_one_after_the_other() -> None:
    bench = Bench(limits=LeaseLimits(cpu_slots=1))
    first, second = a_lease("apple", kind="init"), a_lease("pear", kind="init")
    process = bench.training(first)
    assert bench.lease(second).accepted
    assert not bench.some(do.StartProcess)
    bench.done(process, first, at=1.0, reason="done")
    assert bench.only(do.Kill).process == process
    bench.gone(process, at=2.0)
    assert bench.only(do.StartProcess).key == second.key


def test_a_failed_fetch_ends_the_lease_and_keeps_the_process_warm() -> None:
    bench = Bench()
    bench.lease(a_lease())
    bench.give(ev.FetchFailed(at=1.0, lease=str(a_lease().key), message="no such object"))
    failure = bench.only(do.Deliver).result.failure
    assert failure == Failure(kind="fetch", message="no such object")
    assert not bench.some(do.Kill)


def test_a_failed_upload_reports_no_steps() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    bench.done(process, a_lease(), steps=50)
    bench.give(ev.UploadFailed(at=1.0, lease=str(a_lease().key), message="store is full"))
    result = bench.only(do.Deliver).result
    assert (result.steps, result.reason, result.failure) == (
        0,
        "failed",
        Failure(kind="upload", message="store is full"),
    )


def test_a_late_answer_of_a_fetch_changes_nothing() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    bench.give(ev.FetchFailed(at=1.0, lease=str(a_lease().key), message="late"))
    assert bench.news == []
    bench.done(process, a_lease(), path=None)
    assert len(bench.results(a_lease())) == 1


def test_reports_are_at_most_one_a_second_but_for_news() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    reports = []
    for tenth in range(1, 41):
        bench.progressed(process, a_lease(), tenth / 10, ev.Progress(phase="training", steps=tenth))
        reports += bench.some(do.Report)
    assert [report.report.steps for report in reports] == [1, 11, 21, 31]
    bench.progressed(process, a_lease(), 4.05, ev.Progress(phase="handing_back", steps=41))
    assert bench.only(do.Report).report.phase == "handing_back"


def test_a_leases_start_and_end_are_recorded_for_the_timeline() -> None:
    bench = Bench()
    process = bench.training(a_lease(), at=1.0)
    started = bench.only(do.Record)
    assert (started.what, started.data["device_type"], started.data["cold"]) == ("lease_started", "V100", True)
    bench.done(process, a_lease(), at=9.0, trained_s=7.5, idle_s=0.25, steps=42, nominal_rate=6.0)
    bench.uploaded(a_lease(), at=9.5)
    ended = bench.only(do.Record).data
    assert (ended["steps"], ended["trained_s"], ended["since_last_s"]) == (42, 7.5, 0.75)
    assert (ended["job"], ended["round"], ended["devices"], ended["nominal_rate"]) == ("apple", 1, [0], 6.0)


def test_a_process_is_started_with_the_jobs_spec_and_device_type() -> None:
    bench = Bench()
    spec = a_spec(seed=7)
    bench.lease(a_lease(spec=spec))
    start = bench.only(do.StartProcess)
    assert (start.spec, start.device_type, start.key) == (spec, "V100", a_lease().key)


def test_work_of_a_process_that_lost_its_lease_is_discarded() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    bench.failed(process, at=1.0)
    bench.done(process, a_lease(), at=1.1, path="orphan")
    assert bench.news == [do.Discard(path="orphan")]


def test_a_repeated_end_of_work_does_not_discard_what_is_being_uploaded() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    bench.done(process, a_lease(), at=1.0)
    bench.done(process, a_lease(), at=1.1)
    assert bench.news == []


def test_more_open_leases_than_allowed_are_refused() -> None:
    bench = Bench(limits=LeaseLimits(max_open=1))
    bench.lease(a_lease("apple", devices=(0,)))
    assert "open already" in bench.lease(a_lease("pear", devices=(1,))).reason


def test_a_gang_that_is_larger_than_a_fork_may_be_is_refused() -> None:
    bench = Bench(limits=LeaseLimits(max_devices=1))
    assert "at most 1 devices" in bench.lease(a_lease(devices=(0, 1))).reason


def test_an_illegal_transition_raises_and_changes_nothing() -> None:
    run = Run(lease=a_lease(), received_at=0.0, sequence=1)
    with pytest.raises(Broken, match=r"apple\.1\.0\.0 cannot go from queued to uploading"):
        run.move(Phase.UPLOADING)
    assert run.phase is Phase.QUEUED


def test_every_phase_can_end_and_nothing_follows_the_end() -> None:
    assert all(Phase.ENDED in after for phase, after in TRANSITIONS.items() if phase is not Phase.ENDED)
    assert TRANSITIONS[Phase.ENDED] == frozenset()
    assert a_lease().node == NODE


# First weights that exist already


@pytest.mark.parametrize(("name", "sent"), [("weights.abc", True), ("japple.1.0.0.abc", False)])
def test_an_init_lease_waits_for_the_weights_that_it_shall_begin_with(name: str, sent: bool) -> None:
    bench = Bench()
    start = ObjectRef(name=name, sha256="c" * 64, bytes=5)
    lease = a_lease(kind="init", spec=a_spec(start_object=start))
    bench.lease(lease)
    assert bench.ever(do.Fetch) == [do.Fetch(lease=str(lease.key), ref=start, sent=sent)]


def test_a_train_lease_of_such_a_job_fetches_its_version_alone() -> None:
    bench = Bench()
    start = ObjectRef(name="weights.abc", sha256="c" * 64, bytes=5)
    lease = a_lease(spec=a_spec(start_object=start))
    bench.lease(lease)
    assert [command.ref for command in bench.ever(do.Fetch)] == [lease.base]


def test_an_evaluation_on_a_device_runs_in_the_warm_process_that_trained_there() -> None:
    bench = Bench()
    lease = a_lease()
    process = bench.training(lease)
    bench.done(process, lease, at=10.0)
    bench.uploaded(lease, at=11.0)
    guard = a_lease(kind="evaluate", fork=1, devices=(0,), device_type="V100", base=a_ref("c"), duration_s=5.0)
    assert bench.lease(guard, at=12.0).accepted
    bench.fetched(guard, at=12.1)
    assert bench.only(do.Assign).process == process
    assert len([command for command in bench.said if isinstance(command, do.StartProcess)]) == 1


def test_training_takes_a_device_from_an_evaluation() -> None:
    bench = Bench()
    guard = a_lease(kind="evaluate", fork=1, epoch=9, devices=(0,), device_type="V100")
    bench.training(guard)
    assert bench.lease(a_lease(round_=1), at=1.0).accepted
    assert bench.only(do.Deliver).lease == str(guard.key)
    assert bench.only(do.Kill).process == "p1"


def test_an_evaluation_does_not_take_a_device_from_training_whatever_its_epoch() -> None:
    bench = Bench()
    bench.training(a_lease())
    guard = a_lease(kind="evaluate", round_=7, fork=1, epoch=9, devices=(0,), device_type="V100")
    assert "device 0 is taken" in bench.lease(guard, at=1.0).reason


def test_a_short_evaluation_does_not_shorten_the_patience_with_a_warm_process() -> None:
    bench = Bench(limits=LeaseLimits(idle_rounds=2.0))
    lease = a_lease(duration_s=360.0)
    process = bench.training(lease)
    bench.done(process, lease, at=10.0)
    bench.uploaded(lease, at=11.0)
    guard = a_lease(kind="evaluate", fork=1, devices=(0,), device_type="V100", base=a_ref("c"), duration_s=5.0)
    bench.lease(guard, at=12.0)
    bench.fetched(guard, at=12.0)
    bench.done(process, guard, at=13.0, path=None, steps=0, reason="done")
    bench.give(ev.Ticked(at=13.0 + 700.0))
    assert not bench.some(do.Kill)
