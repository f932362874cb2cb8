from hadare.bench.chaos.plan import ODDS, Kind, draw_faults


def test_the_same_seed_draws_the_same_faults_and_another_seed_others() -> None:
    assert draw_faults(7, 50, 100.0) == draw_faults(7, 50, 100.0)
    assert draw_faults(7, 50, 100.0) != draw_faults(8, 50, 100.0)


def test_every_kind_has_its_odds() -> None:
    assert ODDS.keys() == set(Kind)


def test_the_first_faults_are_each_of_another_kind() -> None:
    for seed in range(20):
        assert len({fault.kind for fault in draw_faults(seed, 12, 60.0)}) == 12
        assert {fault.kind for fault in draw_faults(seed, 60, 60.0)} == set(Kind)


def test_faults_come_in_order_within_the_time() -> None:
    faults = draw_faults(3, 40, 80.0)
    assert [fault.number for fault in faults] == list(range(40))
    assert sorted(fault.at_s for fault in faults) == [fault.at_s for fault in faults]
    assert 0 <= faults[0].at_s <= faults[-1].at_s <= 80.0


def test_a_fault_lasts_as_long_as_its_kind_may() -> None:
    for fault in draw_faults(5, 300, 600.0):
        assert ODDS[fault.kind].shortest_s <= fault.for_s <= ODDS[fault.kind].longest_s


def test_only_the_given_kinds_are_drawn() -> None:
    kinds = (Kind.KILL_AGENT, Kind.REPLAY)
    assert {fault.kind for fault in draw_faults(1, 30, 60.0, kinds)} == set(kinds)
