"""Leases of a gang's ranks: what an agent takes, and how a gang that has lost a rank ends here."""

from __future__ import annotations

from dataclasses import replace

from builders_leases import Bench, a_lease
from hadare.machines import lease_commands as do
from hadare.machines import lease_events as ev
from hadare.model.leases import GangRank, Lease

ADDRESS = "10.0.0.1:29400"


def a_rank(rank: int = 0, round_: int = 1, *, world: int = 3, device: int = 0, fork: int = 0, epoch: int = 1) -> Lease:
    lease = a_lease("apple", round_, fork=fork, devices=(device,), epoch=epoch)
    gang = GangRank(rank=rank, shares=(2,) * world, address=ADDRESS)
    return replace(lease, key=replace(lease.key, rank=rank), gang=gang)


def test_two_ranks_of_a_gang_on_one_node_have_a_process_each() -> None:
    bench = Bench()
    one, two = bench.training(a_rank(0, device=0)), bench.training(a_rank(1, device=1))
    assert one != two


def test_a_rank_whose_lease_does_not_fit_its_gang_is_refused() -> None:
    lease = a_rank(1)
    assert "is rank 0 in its gang" in Bench().lease(replace(lease, gang=a_rank(0).gang)).reason
    assert "has one device" in Bench().lease(replace(lease, devices=(0, 1))).reason
    assert "no rank 3 in a gang of 3" in Bench().lease(a_rank(3)).reason


def test_a_lease_of_the_same_name_in_another_gang_is_another_lease() -> None:
    bench = Bench()
    assert bench.lease(a_rank(0)).accepted
    assert "another lease has the name" in bench.lease(a_rank(0, world=2)).reason


def test_ending_a_gangs_leases_leaves_the_jobs_other_forks_alone() -> None:
    bench = Bench()
    rank, other = a_rank(0, device=0), a_lease("apple", 1, fork=1, devices=(1,))
    process = bench.training(rank)
    bench.training(other)
    assert bench.revoke(at=1.0, leases=(str(rank.key),)) is None
    assert [(stop.process, stop.lease) for stop in bench.some(do.Stop)] == [(process, str(rank.key))]
    bench.tick(4.1)  # it hangs in an exchange and does not hand back
    assert [kill.process for kill in bench.some(do.Kill)] == [process]
    bench.gone(process, at=4.2)
    answer = bench.only(do.AnswerRevoke).answer
    assert (answer.ended, answer.free) == ((str(rank.key),), True)
    assert str(other.key) in bench.machine.busy().values()


def test_a_rank_that_waits_ends_at_once_and_its_device_is_free_for_the_next_round() -> None:
    bench = Bench()
    lease = a_rank(0)
    bench.lease(lease)
    answer = bench.revoke(leases=(str(lease.key),))
    assert answer is not None
    assert answer.ended == (str(lease.key),)
    assert [deliver.result.reason for deliver in bench.results(lease)] == ["revoked"]
    assert bench.lease(a_rank(0, 2), at=1.0).accepted


def test_a_grant_that_arrives_after_the_order_to_end_it_is_refused() -> None:
    bench = Bench()
    lease = a_rank(0)
    bench.revoke(leases=(str(lease.key),))
    assert "has been revoked" in bench.lease(lease).reason
    assert bench.lease(a_rank(0, fork=1)).accepted


def test_an_order_of_an_older_allocator_ends_nothing() -> None:
    bench = Bench()
    lease = a_rank(0, epoch=5)
    bench.training(lease)
    answer = bench.revoke(leases=(str(lease.key),), epoch=4)
    assert answer is not None
    assert answer.ended == ()
    assert not bench.some(do.Stop)
    assert bench.lease(a_rank(1, device=1, epoch=5)).accepted


def test_an_order_of_a_newer_allocator_fences_the_older_ones_leases() -> None:
    bench = Bench()
    bench.revoke(leases=("apple.1.0.0",), epoch=7)
    assert "epoch 5 is over" in bench.lease(a_rank(1, epoch=5)).reason


def test_a_rank_that_was_revoked_tells_it_in_its_one_result() -> None:
    bench = Bench()
    lease = a_rank(1)
    process = bench.training(lease)
    bench.revoke(at=1.0, leases=(str(lease.key),))
    outcome = ev.Outcome(reason="clock", steps=7, path=None, update_s=0.5, exchange_s=0.1)
    bench.give(ev.WorkDone(at=2.0, process=process, lease=str(lease.key), outcome=outcome))
    (told,) = bench.results(lease)
    assert (told.result.reason, told.result.steps, told.result.key.rank) == ("revoked", 0, 1)
    assert (told.result.update_s, told.result.exchange_s) == (0.5, 0.1)
