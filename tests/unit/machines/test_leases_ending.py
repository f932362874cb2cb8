"""How leases end when the clock, an operator, a crash or a broken device ends them, and how results are delivered."""

from __future__ import annotations

import pytest

from builders_leases import Bench, a_device, a_lease
from hadare.machines import lease_commands as do
from hadare.machines import lease_events as ev
from hadare.machines.lease_state import LeaseLimits
from hadare.model.leases import Failure, ForkResult, LeaseAnswer, Revoked

HANDING_BACK = ev.Progress(phase="handing_back", steps=9)


def test_the_machine_wakes_at_the_deadline_and_orders_a_stop() -> None:
    bench = Bench()
    process = bench.training(a_lease(duration_s=10.0), at=2.0)
    assert bench.machine.wake_at() == 12.0
    bench.tick(11.9)
    assert bench.news == []
    bench.tick(12.0)
    assert bench.only(do.Stop) == do.Stop(process=process, lease="apple.1.0.0")


def test_a_fork_that_ignores_the_stop_is_killed_after_the_grace_and_called_hung() -> None:
    bench = Bench(limits=LeaseLimits(stop_grace_s=4.0))
    process = bench.training(a_lease(duration_s=10.0))
    bench.tick(10.0)
    assert bench.machine.wake_at() == 14.0
    bench.tick(14.0)
    assert bench.only(do.Kill).process == process
    result = bench.only(do.Deliver).result
    assert (result.reason, result.failure.kind if result.failure else "") == ("failed", "hung")


LIMITS = LeaseLimits(stop_grace_s=15.0, revoke_grace_s=3.0)


def hung_and_wanted(
    steps_per_s: float, phase: ev.WorkPhase = "training", *, limits: LeaseLimits = LIMITS, quota: int = 500
) -> Bench:
    """A fork that did not stop at 10 s, and whose device the next round's lease asks for at 12 s."""
    bench = Bench(a_device(0), limits=limits)
    process = bench.training(a_lease(duration_s=10.0, quota=quota))
    bench.progressed(process, a_lease(), 9.0, ev.Progress(phase="training", steps=9, steps_per_s=steps_per_s))
    bench.tick(10.0)
    if phase != "training":
        bench.progressed(process, a_lease(), 11.0, ev.Progress(phase=phase, steps=9, steps_per_s=steps_per_s))
    assert bench.lease(a_lease(round_=2), at=12.0).accepted
    return bench


def test_a_fork_that_hangs_is_killed_soon_once_the_next_round_wants_its_device() -> None:
    bench = hung_and_wanted(steps_per_s=100.0)
    assert bench.machine.wake_at() == 15.0
    bench.tick(15.0)
    assert bench.some(do.Kill)
    failure = bench.only(do.Deliver).result.failure
    assert failure == Failure(kind="hung", message="it did not hand back in time")


def test_one_whose_steps_are_long_has_time_for_two_of_them() -> None:
    assert hung_and_wanted(steps_per_s=0.25).machine.wake_at() == 20.0


def test_but_no_more_than_its_grace() -> None:
    assert hung_and_wanted(steps_per_s=0.01).machine.wake_at() == 22.0  # when the new lease ends by its clock
    assert hung_and_wanted(steps_per_s=0.01, limits=LeaseLimits(stop_grace_s=11.0)).machine.wake_at() == 21.0


@pytest.mark.parametrize(("quota", "killed_at"), [(500, 15.0), (2, 22.0), (4, 17.0), (0, 22.0)])
def test_one_that_has_told_of_no_step_yet_has_time_for_two_by_its_quota(quota: int, killed_at: float) -> None:
    assert hung_and_wanted(0.0, quota=quota).machine.wake_at() == killed_at


def test_one_that_saves_its_weights_may_end_that_and_its_process_lives() -> None:
    bench = hung_and_wanted(100.0, "handing_back", limits=LeaseLimits(hand_back_s=10.5))
    assert bench.machine.wake_at() == 21.5


def test_one_that_hangs_in_an_evaluation_says_so() -> None:
    bench = hung_and_wanted(100.0, "evaluating")
    bench.tick(15.0)
    failure = bench.only(do.Deliver).result.failure
    assert failure == Failure(kind="hung", message="it did not hand back in time: it was evaluating")


def test_the_grace_grows_with_the_lease() -> None:
    bench = Bench(limits=LeaseLimits(stop_grace_s=4.0, stop_grace_part=0.25))
    bench.training(a_lease(duration_s=360.0))
    bench.tick(360.0)
    assert bench.machine.wake_at() == 450.0


def test_a_fork_that_hands_back_gets_the_longer_limit_once() -> None:
    bench = Bench(limits=LeaseLimits(stop_grace_s=1.0, hand_back_s=30.0))
    process = bench.training(a_lease(duration_s=10.0))
    bench.tick(10.0)
    bench.progressed(process, a_lease(), 10.5, HANDING_BACK)
    bench.progressed(process, a_lease(), 20.0, HANDING_BACK)
    bench.tick(40.4)
    assert not bench.some(do.Kill)
    bench.tick(40.5)
    assert bench.some(do.Kill)


def test_a_fork_that_already_hands_back_is_not_told_to_stop() -> None:
    bench = Bench()
    process = bench.training(a_lease(duration_s=10.0))
    bench.progressed(process, a_lease(), 9.9, HANDING_BACK)
    bench.tick(10.0)
    assert not bench.ever(do.Stop)


def test_a_fork_that_already_hands_back_is_not_told_to_stop_by_a_revoke_either() -> None:
    bench = Bench()
    process = bench.training(a_lease(duration_s=10.0))
    bench.progressed(process, a_lease(), 9.9, HANDING_BACK)
    bench.revoke(at=9.95)
    assert not bench.ever(do.Stop)


def test_a_train_lease_whose_time_is_up_before_it_began_brings_nothing_and_keeps_its_process() -> None:
    bench = Bench()
    bench.lease(a_lease(duration_s=10.0))
    bench.tick(10.0)
    result = bench.only(do.Deliver).result
    assert (result.steps, result.reason, result.failure) == (0, "clock", None)
    assert not bench.some(do.Kill)


def test_an_init_lease_that_overruns_is_killed_and_fails() -> None:
    bench = Bench()
    process = bench.training(a_lease(kind="init", duration_s=10.0))
    bench.tick(10.0)
    assert bench.only(do.Kill).process == process
    result = bench.only(do.Deliver).result
    assert result.failure == Failure(kind="hung", message="init did not finish within its 10 s (running)")


def test_a_process_that_does_not_come_up_fails_with_the_cause() -> None:
    bench = Bench(limits=LeaseLimits(start_limit_s=20.0))
    bench.lease(a_lease(duration_s=100.0))
    bench.tick(20.0)
    assert bench.only(do.Kill)
    failure = bench.only(do.Deliver).result.failure
    assert failure == Failure(kind="hung", message="the process did not start within 20 s")


def test_a_crash_is_reported_at_once_and_its_tree_is_ended() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    fault = Failure(kind="out_of_memory", message="exit status 137", tail="…", node_specific=True)
    bench.failed(process, at=3.0, fault=fault)
    result = bench.only(do.Deliver).result
    assert (result.reason, result.failure, result.steps) == ("failed", fault, 0)
    assert bench.only(do.Kill).process == process


def test_after_a_crash_the_device_is_used_again_only_when_it_is_proven_free() -> None:
    bench = Bench()
    process = bench.training(a_lease("apple", 1))
    bench.failed(process, at=3.0)
    bench.lease(a_lease("apple", 2), at=4.0)
    assert not bench.some(do.StartProcess)
    bench.gone(process, at=5.0)
    assert bench.only(do.StartProcess)


def test_a_process_that_vanishes_without_a_word_ends_its_lease() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    bench.gone(process, at=3.0)
    failure = bench.only(do.Deliver).result.failure
    assert failure == Failure(kind="killed", message="its process is gone")


def test_of_a_crashed_fork_the_steps_that_were_reported_are_recorded_as_lost_work() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    for at, steps in ((1.0, 0), (3.0, 20)):
        progress = ev.Progress(phase="training", steps=steps, nominal_rate=10.0)
        bench.progressed(process, a_lease(), at, progress)
    bench.failed(process, at=3.5)
    ended = bench.only(do.Record).data
    assert (ended["steps"], ended["trained_s"], ended["since_last_s"], ended["nominal_rate"]) == (20, 2.0, 0.5, 10.0)
    assert bench.only(do.Deliver).result.steps == 0


def test_a_long_traceback_is_cut_to_what_the_wire_takes() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    bench.failed(process, fault=Failure(kind="exception", message="x" * 9999, tail="y" * 99999 + "end"))
    failure = bench.only(do.Deliver).result.failure
    assert failure is not None
    assert (len(failure.message), len(failure.tail)) == (4096, 65536)
    assert failure.tail.endswith("end")


def test_a_warm_process_without_a_lease_is_ended_after_two_rounds() -> None:
    bench = Bench()
    process = bench.training(a_lease(duration_s=10.0))
    bench.done(process, a_lease(), at=10.0, path=None)
    bench.give(ev.ResultAnswered(at=10.0, lease="apple.1.0.0", counted=True))
    assert bench.machine.wake_at() == 30.0
    bench.tick(29.9)
    assert not bench.some(do.Kill)
    bench.tick(30.0)
    assert bench.only(do.Kill).process == process


# --- revocation ---------------------------------------------------------------------------------------------------


def test_a_revoke_is_answered_only_when_the_process_is_proven_gone() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    assert bench.revoke(at=1.0) is None
    assert bench.only(do.Stop).process == process
    bench.done(process, a_lease(), at=1.5)
    assert bench.only(do.Kill).process == process
    assert not bench.ever(do.AnswerRevoke)
    bench.gone(process, at=2.0)
    assert bench.only(do.AnswerRevoke).answer == Revoked(ended=("apple.1.0.0",), free=True)


def test_a_revoked_forks_work_is_handed_back_with_the_reason() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    bench.revoke(at=1.0)
    bench.done(process, a_lease(), at=1.5, reason="clock", steps=12)
    bench.uploaded(a_lease(), at=1.6)
    result = bench.only(do.Deliver).result
    assert (result.reason, result.steps) == ("revoked", 12)


def test_a_fork_that_does_not_let_go_is_killed_after_the_revoke_grace() -> None:
    bench = Bench(limits=LeaseLimits(revoke_grace_s=3.0))
    process = bench.training(a_lease())
    bench.revoke(at=1.0)
    bench.tick(4.0)
    assert bench.only(do.Kill).process == process
    result = bench.only(do.Deliver).result
    assert (result.reason, result.failure) == ("revoked", None)


def test_a_revoke_shortens_a_hand_back_under_way() -> None:
    bench = Bench(limits=LeaseLimits(revoke_grace_s=3.0, hand_back_s=60.0))
    process = bench.training(a_lease())
    bench.progressed(process, a_lease(), 9.0, HANDING_BACK)
    bench.revoke(at=9.5)
    assert bench.machine.wake_at() == 12.5


def test_a_revoke_ends_leases_that_wait_and_processes_that_idle() -> None:
    bench = Bench()
    idle = bench.training(a_lease("apple", 1, devices=(0,)))
    bench.done(idle, a_lease("apple", 1), at=10.0, path=None)
    bench.lease(a_lease("apple", 2, devices=(1,)), at=11.0)
    assert bench.revoke(at=12.0) is None
    assert [kill.process for kill in bench.some(do.Kill)] == [idle, "p2"]
    bench.gone("p2", at=13.0)
    assert not bench.some(do.AnswerRevoke)
    bench.gone(idle, at=13.0)
    assert bench.only(do.AnswerRevoke).answer == Revoked(ended=("apple.2.0.0",), free=True)


def test_a_revoke_touches_no_other_job() -> None:
    bench = Bench()
    bench.training(a_lease("apple", devices=(0,)))
    bench.training(a_lease("pear", devices=(1,)))
    bench.revoke("apple", at=1.0)
    assert bench.only(do.Stop).lease == "apple.1.0.0"


def test_a_revoke_of_a_job_that_is_not_here_is_answered_at_once() -> None:
    assert Bench().revoke("plum") == Revoked(ended=(), free=True)


def test_a_revoke_that_arrives_twice_is_answered_twice() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    bench.revoke(at=1.0)
    bench.revoke(at=1.1)
    bench.done(process, a_lease(), at=1.5)
    bench.gone(process, at=2.0)
    assert len(bench.some(do.AnswerRevoke)) == 2


def test_a_process_that_will_not_die_is_told_in_the_answer_and_its_device_withdrawn() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    bench.revoke(at=1.0)
    bench.tick(4.0)
    bench.gone(process, at=20.0, free=False)
    assert bench.only(do.AnswerRevoke).answer.free is False
    assert [device.healthy for device in bench.only(do.ReportHealth).devices] == [False, True]


def test_a_grant_that_was_overtaken_by_the_revoke_does_not_start_the_job_again() -> None:
    bench = Bench()
    bench.lease(a_lease("pear", 3, devices=(1,)))
    bench.revoke("apple", at=1.0)
    assert "revoked" in bench.lease(a_lease("apple", 3), at=1.1).reason
    assert bench.lease(a_lease("apple", 4), at=9.0).accepted, "a resumed job runs in a later round"


# --- the end of the agent -----------------------------------------------------------------------------------------


def test_a_drained_agent_hands_back_and_says_when_nothing_is_left() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    bench.give(ev.DrainAsked(at=5.0, limit_s=20.0))
    assert bench.only(do.Stop).process == process
    bench.done(process, a_lease(), at=6.0, steps=40)
    bench.gone(process, at=6.5)
    bench.uploaded(a_lease(), at=7.0)
    assert bench.only(do.Deliver).result.reason == "drained"
    assert not bench.some(do.Drained)
    bench.give(ev.ResultAnswered(at=7.5, lease="apple.1.0.0", counted=True))
    assert bench.only(do.Drained).undelivered == 0


def test_a_draining_agent_accepts_nothing_new() -> None:
    bench = Bench()
    bench.training(a_lease())
    bench.give(ev.DrainAsked(at=5.0, limit_s=20.0))
    assert bench.lease(a_lease("pear", devices=(1,)), at=6.0) == LeaseAnswer(
        accepted=False, reason="this node is shutting down"
    )


def test_an_idle_agent_is_drained_at_once() -> None:
    bench = Bench()
    bench.give(ev.DrainAsked(at=5.0, limit_s=20.0))
    assert bench.news == [do.Drained(undelivered=0)]
    bench.tick(99.0)
    assert bench.news == []


def test_at_the_limit_a_draining_agent_kills_what_still_runs() -> None:
    bench = Bench(limits=LeaseLimits(stop_grace_s=60.0))
    process = bench.training(a_lease())
    bench.progressed(process, a_lease(), 4.0, HANDING_BACK)
    bench.give(ev.DrainAsked(at=5.0, limit_s=20.0))
    assert bench.machine.wake_at() == 25.0
    bench.tick(25.0)
    assert bench.only(do.Kill).process == process
    bench.gone(process, at=26.0)
    assert bench.only(do.Drained).undelivered == 1


def test_at_the_limit_an_upload_is_given_up() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    bench.done(process, a_lease(), at=4.0)
    bench.give(ev.DrainAsked(at=5.0, limit_s=20.0))
    bench.gone(process, at=6.0)
    assert bench.machine.wake_at() == 25.0
    bench.tick(25.0)
    result = bench.only(do.Deliver).result
    assert (result.reason, result.steps, result.object) == ("drained", 0, None)
    assert bench.only(do.Drained)


def test_a_drained_agent_does_not_wait_long_for_a_tracker_that_is_gone() -> None:
    bench = Bench(limits=LeaseLimits(farewell_s=2.0))
    process = bench.training(a_lease())
    bench.give(ev.DrainAsked(at=5.0, limit_s=60.0))
    bench.done(process, a_lease(), at=6.0, path=None)
    bench.gone(process, at=6.5)
    bench.give(ev.DeliveryFailed(at=6.6, lease="apple.1.0.0", message="no answer"))
    bench.tick(8.5)
    assert bench.only(do.Drained).undelivered == 1


# --- devices --------------------------------------------------------------------------------------------------------


def test_a_device_that_is_lost_in_mid_training_fails_its_fork_and_is_withdrawn() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    bench.give(ev.HealthChanged(at=3.0, device=0, healthy=False, reason="Xid 79"))
    failure = bench.only(do.Deliver).result.failure
    assert failure == Failure(kind="device", message="device 0 is unhealthy: Xid 79")
    assert bench.only(do.Kill).process == process
    assert bench.only(do.ReportHealth).devices[0].reason == "Xid 79"


def test_a_lost_device_fails_the_lease_that_waits_for_it_too() -> None:
    bench = Bench(a_device(0))
    bench.training(a_lease("apple", 1))
    bench.tick(10.0)
    bench.lease(a_lease("pear", 2), at=10.5)
    bench.give(ev.HealthChanged(at=11.0, device=0, healthy=False, reason="ECC"))
    assert sorted(deliver.lease for deliver in bench.some(do.Deliver)) == ["apple.1.0.0", "pear.2.0.0"]


def test_a_repaired_device_is_offered_and_accepted_again() -> None:
    bench = Bench(a_device(0, healthy=False, reason="Xid 79"))
    bench.give(ev.HealthChanged(at=1.0, device=0, healthy=True))
    assert bench.only(do.ReportHealth).devices[0].healthy
    assert bench.lease(a_lease(), at=2.0).accepted


# --- results --------------------------------------------------------------------------------------------------------


def test_a_result_is_sent_again_until_it_is_answered_with_growing_pauses() -> None:
    bench = Bench(limits=LeaseLimits(retry_s=0.5, retry_max_s=3.0))
    process = bench.training(a_lease())
    bench.done(process, a_lease(), at=10.0, path=None)
    bench.give(ev.ProcessEnded(at=10.0, process=process, free=True))
    at, pauses = 10.0, []
    for _ in range(5):
        bench.give(ev.DeliveryFailed(at=at, lease="apple.1.0.0", message="no answer"))
        due = bench.machine.wake_at()
        assert due is not None
        pauses.append(due - at)
        bench.tick(due)
        assert bench.only(do.Deliver)
        at = due
    assert pauses == [0.5, 1.0, 2.0, 3.0, 3.0]
    bench.give(ev.ResultAnswered(at=at, lease="apple.1.0.0", counted=True))
    assert bench.only(do.Forget).lease == "apple.1.0.0"
    assert bench.machine.wake_at() is None


def test_a_refused_result_is_forgotten_with_the_reason() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    bench.done(process, a_lease(), path=None)
    bench.give(ev.ResultAnswered(at=1.0, lease="apple.1.0.0", counted=False, reason="round 1 is closed"))
    assert bench.only(do.Forget) == do.Forget(lease="apple.1.0.0", reason="round 1 is closed")


def test_a_second_answer_to_a_result_changes_nothing() -> None:
    bench = Bench()
    process = bench.training(a_lease())
    bench.done(process, a_lease(), path=None)
    bench.give(ev.ResultAnswered(at=1.0, lease="apple.1.0.0", counted=True))
    bench.give(ev.ResultAnswered(at=1.1, lease="apple.1.0.0", counted=False))
    assert bench.news == []


def test_results_of_an_earlier_incarnation_are_delivered() -> None:
    bench = Bench()
    lease = a_lease()
    result = ForkResult(kind="train", key=lease.key, epoch=1, node="north", device_type="V100", steps=5)
    bench.give(ev.ResultsRecovered(at=0.0, results=(result,)))
    assert bench.only(do.Deliver).result == result
    bench.give(ev.ResultsRecovered(at=0.1, results=(result,)))
    assert bench.news == []


def test_the_oldest_result_is_given_up_when_too_many_are_undelivered() -> None:
    bench = Bench(limits=LeaseLimits(max_kept=2))
    for number in range(1, 4):
        lease = a_lease("apple", number)
        bench.lease(lease, at=number * 20.0)
        bench.tick(number * 20.0 + 10.0)
    forgotten = bench.only(do.Forget)
    assert forgotten.lease == "apple.1.0.0"
    assert "undelivered" in forgotten.reason


def test_the_same_events_give_the_same_commands() -> None:
    def story() -> list[do.Command]:
        bench = Bench()
        one = bench.training(a_lease("apple", devices=(0,)))
        bench.training(a_lease("pear", devices=(1,)))
        bench.revoke("apple", at=3.0)
        bench.done(one, a_lease("apple"), at=4.0)
        bench.gone(one, at=4.5)
        bench.tick(30.0)
        return bench.said

    assert story() == story()
