"""Ranks meet as threads of this process, over real sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from hadare.model.leases import GangRank
from hadare.training import gang_meeting
from hadare.training.gang_line import GangBroken
from hadare.training.gang_meeting import Met, Party, host_and_port, meet, ranks


def a_free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"127.0.0.1:{found.getsockname()[1]}"


def a_party(rank: int, address: str, *, name: str = "a-gang", wait_s: float = 20.0, cuda: bool = False) -> Party:
    part = GangRank(rank=rank, shares=(2, 1, 1), address=address)
    return Party(part=part, name=name, cuda=cuda, until=time.monotonic() + wait_s, revoked=lambda: None)


Start = Callable[[Party], "Future[Met]"]


@pytest.fixture
def start() -> Start:
    threads = ThreadPoolExecutor(8)
    return lambda party: threads.submit(meet, party, lambda: 4711)


def met(futures: list[Future[Met]]) -> list[Met]:
    found = [future.result(30) for future in futures]
    for line in (line for each in found for line in each.lines.values()):
        line.close()
    return found


def test_all_ranks_learn_the_port_of_the_store_and_rank_0_has_a_line_to_each(start: Start) -> None:
    address = a_free_address()
    found = met([start(a_party(rank, address)) for rank in (2, 1, 0)])
    assert {each.port for each in found} == {4711}
    assert [set(each.lines) for each in found] == [{0}, {0}, {1, 2}]


@pytest.mark.parametrize(("cuda", "expected"), [((True, True, True), True), ((True, False, True), False)])
def test_a_gang_has_cuda_if_every_rank_has(start: Start, cuda: tuple[bool, ...], expected: bool) -> None:
    address = a_free_address()
    found = met([start(a_party(rank, address, cuda=has)) for rank, has in enumerate(cuda)])
    assert {each.cuda for each in found} == {expected}


def test_a_crowd_of_silent_strangers_keeps_no_rank_out(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_meeting, "_STRANGERS", 3)
    address = a_free_address()
    first = start(a_party(0, address))
    strangers = []
    while len(strangers) < 20:
        try:
            strangers.append(socket.create_connection(host_and_port(address)))
        except ConnectionRefusedError:
            assert not first.done()
    found = met([first, *(start(a_party(rank, address)) for rank in (1, 2))])
    assert set(found[0].lines) == {1, 2}
    for stranger in strangers:
        stranger.close()


def test_a_rank_of_another_gang_is_turned_away(start: Start) -> None:
    address = a_free_address()
    late = start(a_party(1, address, name="an-earlier-gang", wait_s=1.0))
    found = met([start(a_party(rank, address)) for rank in range(3)])
    assert set(found[0].lines) == {1, 2}
    with pytest.raises(GangBroken, match="rank 0 did not come"):
        late.result(30)


def test_a_rank_that_leaves_before_the_others_came_ends_the_meeting(start: Start) -> None:
    address = a_free_address()
    first = start(a_party(0, address))
    with pytest.raises(GangBroken):
        start(a_party(2, address, wait_s=0.2)).result(30)
    with pytest.raises(GangBroken, match="rank 2 has ended"):
        first.result(30)


def test_a_port_that_stays_taken_is_named(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(GangBroken, match=f"cannot listen at {address}"):
            start(a_party(0, address, wait_s=0.2)).result(30)


@pytest.mark.parametrize("address", ["north", "north:", ":80", "north:0", "north:70000", "north:x"])
def test_an_address_that_is_none_is_a_clear_fault(address: str) -> None:
    with pytest.raises(GangBroken, match="not host:port"):
        host_and_port(address)


def test_an_address_of_the_sixth_version_has_brackets() -> None:
    assert host_and_port("[fe80::1]:4000") == ("fe80::1", 4000)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([3], "rank 3"), ([1, 3], "ranks 1 and 3"), ([1, 2, 4], "ranks 1, 2 and 4")],
)
def test_missing_ranks_are_named(numbers: list[int], text: str) -> None:
    assert ranks(numbers) == text


def test_many_missing_ranks_are_cut_short() -> None:
    assert ranks(range(1, 41)).endswith("14, 15 and 25 more")
